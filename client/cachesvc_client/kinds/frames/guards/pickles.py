"""Writes and reads the guards of a recorded frame: the guards with the words of their objects, and what
Dynamo knows of the frame besides its objects.

Nothing of the program is pickled: an object of another class than those of Python and torch raises
``TypeError``. Of the program's classes, functions and members of enumerations, which may be keys of
dictionaries, the name is written, and found again in a service that has the module imported.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import io
import pickle
import sys
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ....graphs.memory import overlaps
from ..describe.objects import named
from .same_objects import SameObjects
from .set_orders import SetOrders
from .spoken import line_of, object_name
from .words import guard_words, source_of_object

_OF_LIBRARIES = frozenset({
    *("torch", "sympy", "mpmath", "builtins", "collections", "functools", "operator", "_operator"),
    *("copyreg", "math", "itertools"),
})  # fmt: skip
"""The packages whose objects are pickled as Python does: none of them runs code of a program."""
OF_TENSORS = ("TENSOR_MATCH", "ID_MATCH", "NOT_NONE_MATCH")
"""The guards that may compare a tensor. The last two are those of an optimizer's tensors and of gradients."""
_STACKS = {"stack": None, "user_stack": None}
_UNSET = {
    **dict.fromkeys(("obj_weakref", "guarded_class_weakref", "guard_types", "code_list", "_hash")),
    **_STACKS,
}
"""Fields of a guard that refer to objects of the process in which it was made, or to lines of its sources."""


class DescribedGuards(NamedTuple):
    """The guards of one frame.

    Attributes:
        guards: The guards, each with the words of its object (`guard_words`).
        state: Dynamo's ``OutputGraphGuardsState`` without objects and guards.
        shapes: Dynamo's ``ShapeCodeParts``.
        overlaps: Which guarded tensors lie in the same memory (`graphs.memory.overlaps`).
        objects: Which names lead to one object (`same_objects`).
        orders: The orders of constant sets (`set_orders`).
        unguarded: The guards that Dynamo omits: compared before a frame is used, and not later.
    """

    guards: list[tuple[Any, str]]
    state: Any
    shapes: Any
    overlaps: list[str]
    objects: list[int]
    orders: Mapping[str, str]
    unguarded: Sequence[tuple[Any, str]] = ()

    def layout(self, guard: Any) -> Any:
        """Return the sizes and strides that the code has for the tensor of a guard; ``None`` if not known."""
        return layout_of(self.state, guard)


def write(
    manager: Any,
    builder: Any,
    guards: Sequence[Any],
    output_graph: Any,
    *,
    sets_read: Collection[str] = (),
    unguarded: Sequence[Any] = (),
) -> bytes:
    """Return the guards of a frame as bytes.

    The first parameters are those of ``CheckFunctionManager.serialize_guards``. ``sets_read``: the names of
    the sets that the trace has read as a whole. ``unguarded``: the guards that Dynamo omits. Raises
    ``TypeError`` for a guard that cannot be compared in another process, or whose object has no words.
    """
    from torch._dynamo.guards import convert_int_to_concrete_values
    from torch._guards import GuardsSet
    from torch.utils._ordered_set import OrderedSet
    from torch.utils._pytree import tree_map

    state = output_graph.dump_guards_state()
    state = dataclasses.replace(
        state,
        local_scope={},
        global_scope={},
        _guards=GuardsSet(OrderedSet()),
        input_source_to_sizes_strides=tree_map(
            convert_int_to_concrete_values, state.input_source_to_sizes_strides
        ),
        skip_guards_check=True,
    )
    texts: dict[str, str] = {}  # equal words are one object, which a pickle holds once
    described, tensors, objects, sets = [], [], SameObjects(), SetOrders()
    for guard in (*guards, *unguarded):
        source = source_of_object(guard)
        value = builder.get(source) if source is not None else None
        try:
            words = guard_words(guard, value, layout_of(state, guard))
        except Exception as error:  # noqa: BLE001 - an object without words raises anything
            line = line_of(getattr(guard, "user_stack", None))
            kind = guard.create_fn_name()
            raise TypeError(f"{object_name(guard.name)}{line}, {kind}: {error}") from None
        objects.note(guard.name, value)
        sets.note(guard, value)
        described.append((_bare(guard), texts.setdefault(words, words)))
        if is_of_tensor(guard, value):
            tensors.append((guard.name, value))
    facts = (overlaps(tensors), objects.numbers, sets.orders(sets_read))
    made, compared = described[: len(guards)], described[len(guards) :]
    return _dumps(DescribedGuards(made, state, manager.shape_code_parts, *facts, compared))


def is_of_tensor(guard: Any, value: Any) -> bool:
    """Return whether a guard compares a tensor."""
    import torch

    return guard.create_fn_name() in OF_TENSORS and isinstance(value, torch.Tensor)


def read(data: bytes) -> DescribedGuards:
    """Return what `write` wrote. ``data``: of a verified file."""
    guards = pickle.loads(data)
    assert isinstance(guards, DescribedGuards)
    return guards


def layout_of(state: Any, guard: Any) -> Any:
    """Return what a state knows of the sizes and strides of a guard's tensor; ``None`` if nothing."""
    from torch._dynamo.guards import convert_to_concrete_values

    known = state.input_source_to_sizes_strides.get(guard.originating_source)
    if known is None:
        return None
    return convert_to_concrete_values(known["size"]), convert_to_concrete_values(known["stride"])


def _dumps(value: Any) -> bytes:
    out = io.BytesIO()
    _pickler()(out, protocol=4).dump(value)
    return out.getvalue()


@functools.cache
def _pickler() -> type[pickle.Pickler]:
    """Return the class of pickles of guards, which needs torch."""
    import torch
    from torch._dynamo.source import DefaultsSource

    plain_of_torch: dict[type, Any] = {
        torch._C.DispatchKeySet: lambda keys: (torch._C.DispatchKeySet.from_raw_repr, (keys.raw_repr(),)),
    }

    class GuardPickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch._guards.Guard):
                return _reduce_guard(value)
            if isinstance(value, DefaultsSource):  # torch 2.11 adds fields that it computes
                fields = [getattr(value, one.name) for one in dataclasses.fields(value) if one.init]
                return type(value), tuple(fields)
            if reduce := plain_of_torch.get(type(value)):
                return reduce(value)
            if isinstance(value, enum.Enum):
                return getattr, (type(value), value.name)
            if isinstance(value, type) and hasattr(value, "_torch_unpickler"):  # torch's own of sympy
                function: Any = value
                return function._torch_unpickler, (function._torch_handler_name,)
            if isinstance(value, (type, types.FunctionType)):
                return _reduce_named(value)
            if isinstance(value, torch.Tensor) or _package(type(value)) not in _OF_LIBRARIES:
                if type(value) is DescribedGuards:
                    return NotImplemented
                kind = type(value)
                raise TypeError(f"a guard holds an object of {kind.__module__}.{kind.__qualname__}")
            return NotImplemented

    return GuardPickler


def _reduce_named(value: type | types.FunctionType) -> Any:
    """Return how a pickle finds a class or a function: those of a program only where they are imported."""
    if _package(value) in _OF_LIBRARIES or value is DescribedGuards or value is named:
        return NotImplemented
    module, name = str(value.__module__), str(value.__qualname__)
    if getattr(sys.modules.get(module), name, None) is not value:
        raise TypeError(f"a guard holds {module}.{name}, which no module has")
    return named, (module, name)


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "builtins").partition(".")[0]


def _reduce_guard(guard: Any) -> tuple[Any, ...]:
    """Return how a pickle makes a guard: a model has thousands, of which few have more than a source and a
    function."""
    state = {
        field.name: getattr(guard, field.name)
        for field in dataclasses.fields(guard)
        if field.name not in ("originating_source", "create_fn", "_hash")
        and getattr(guard, field.name) != field.default
    }
    made = (type(guard), (guard.originating_source, guard.create_fn))
    return (*made, (None, state)) if state else made


def _bare(guard: Any) -> Any:
    """Return the guard without what refers to objects of this process: PyTorch takes them from its source."""
    create = guard.create_fn
    if isinstance(create, functools.partial):
        words = {name: value for name, value in create.keywords.items() if not _is_reference(value)}
        has_arguments = bool(create.args or words)
        create = functools.partial(create.func, *create.args, **words) if has_arguments else create.func
    return dataclasses.replace(guard, create_fn=create, **_UNSET)


def _is_reference(value: Any) -> bool:
    return isinstance(value, weakref.ref) or type(value).__name__ == "TensorWeakRef"


def guard_functions() -> Mapping[str, Any]:
    """Return the functions that Dynamo's names of guards call."""
    from torch._dynamo import guards

    functions: Mapping[str, Any] = getattr(guards, "_get_closure_vars", dict)()
    return functions


def split_hooks(guards: Iterable[Any]) -> tuple[list[Any], dict[str, tuple[str, ...]]]:
    """Return the guards without those that a module has no hook, and what these say: names of modules ->
    the names of their empty dictionaries of hooks.

    Two guards of five are such, and Dynamo makes nothing of them unless it is set to.
    """
    from torch._dynamo import config

    if not getattr(config, "skip_nnmodule_hook_guards", False):
        return [*guards], {}
    others, empty = [], collections.defaultdict[str, list[str]](list)
    for guard in guards:
        if guard.create_fn_name() == "EMPTY_NN_MODULE_HOOKS_DICT":
            owner, _, attribute = guard.name.rpartition(".")
            empty[owner].append(attribute)
        else:
            others.append(guard)
    return others, {owner: tuple(attributes) for owner, attributes in empty.items()}


@contextmanager
def recording_settings() -> Iterator[None]:
    """Have Dynamo guard what it otherwise trusts to stay within one process: nobody ties parameters after the
    trace. Between two processes somebody may."""
    from torch._dynamo import config

    name = "skip_no_tensor_aliasing_guards_on_parameters"
    with config.patch({name: False} if hasattr(config, name) else {}):
        yield


@contextmanager
def temporary_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a class or a module another attribute within the block."""
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
