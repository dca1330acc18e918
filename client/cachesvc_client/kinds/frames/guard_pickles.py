"""Says which guards a record holds as pickles and which as descriptions.

Extends PyTorch's pickles of guards by objects that PyTorch does not pickle.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .groups import describe_of_job

_BY_NAME = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
"""Types of objects that a pickle holds by their name: what is read of such an object is not in the pickle."""

_WITHOUT_VALUE = (
    *("DUPLICATE_INPUT", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"),
    *("NOT_PRESENT_IN_GENERIC_DICT", "NONZERO_MEMORY_CHECK", "EMPTY_NN_MODULE_HOOKS_DICT"),
)
"""Guards that hold all that they compare: two names, a key, or that there is nothing."""
STACKS = {"stack": None, "user_stack": None}
UNSET = {
    **dict.fromkeys(("obj_weakref", "guarded_class_weakref", "guard_types", "code_list", "_hash")),
    **STACKS,
}
"""Fields of a guard that refer to objects of the process in which it was made, or to lines of its sources:
these are comments in PyTorch's log of recompiles, and take more bytes than the guards."""


@contextlib.contextmanager
def recordable_guards() -> Iterator[None]:
    """Pickle the objects that guards compare in a way that a service can read.

    - A guard without its hash, which is another one in each process.
    - A source of torch 2.11 by the arguments of its class: it adds fields that it computes.
    - A custom operator by its name: its object holds the library that defines it.
    - A module of a class that has no name in a module, such as a parametrized one, by its attributes: the
      guard of its class is recorded with a description.
    """
    from torch._dynamo.guards import GuardsStatePickler
    from torch._dynamo.source import DefaultsSource

    with (
        temporary_attribute(DefaultsSource, "__reduce__", _reduce_source),
        temporary_attribute(
            GuardsStatePickler, "reducer_override", _reducer(GuardsStatePickler.reducer_override)
        ),
    ):
        yield


@contextlib.contextmanager
def temporary_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a class another attribute within the block."""
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _reduce_source(source: Any) -> tuple[Any, ...]:
    fields = [getattr(source, field.name) for field in dataclasses.fields(source) if field.init]
    return type(source), tuple(fields)


def _reducer(original: Any) -> Any:
    import torch

    def reducer_override(pickler: Any, value: Any) -> Any:
        if isinstance(value, torch._guards.Guard):
            return _reduce_guard(value)
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            return custom_operator, (value._qualname,)
        answer = original(pickler, value)
        if answer is NotImplemented and isinstance(value, torch.nn.Module) and not has_name(type(value)):
            return plain_module, (vars(value).copy(),)
        return answer

    return reducer_override


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


def custom_operator(name: str) -> Any:
    """Return the custom operator of a name in this process. Raises ``KeyError`` where there is none."""
    import torch

    return torch._library.custom_ops.OPDEFS[name]


def plain_module(attributes: dict[str, Any]) -> Any:
    """Return a module with these attributes, of no class of its own."""
    import torch

    module = torch.nn.Module()
    vars(module).update(attributes)
    return module


def reads_by_name(builder: Any, guard: Any) -> bool:
    """Return whether a guard reads its value of a class, a module or a function, such as a constant of a
    class. A pickle holds these by name, so a service would read its own value and compare it with itself."""
    if guard.create_fn_name() in _WITHOUT_VALUE:
        return False
    source = guard.originating_source
    if guard.create_fn_name() != "HASATTR":
        source = getattr(source, "base", None)
    scope = {**guard_functions(), **builder.scope}
    while source is not None:
        name = source.name() if callable(source.name) else source.name
        with contextlib.suppress(Exception):
            if isinstance(eval(name, scope), _BY_NAME):
                return True
        source = getattr(source, "base", None)
    return False


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


def has_name(kind: type) -> bool:
    """Return whether the class is found in its module under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


@contextlib.contextmanager
def recording_settings() -> Iterator[None]:
    """Have Dynamo guard what it otherwise trusts to stay within one process: nobody ties parameters after the
    trace. Between two processes somebody may."""
    from torch._dynamo import config

    name = "skip_no_tensor_aliasing_guards_on_parameters"
    with config.patch({name: False} if hasattr(config, name) else {}):
        yield


def made_from_live(manager: Any, builder: Any, guard: Any) -> bool:
    """Return whether a guard compares the identity of an object, or what a pickle does not hold."""
    name = guard.create_fn_name()
    if {name, *(guard.guard_types or ())} & {*manager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES}:
        return True
    if guard._unserializable or reads_by_name(builder, guard) or _is_of_job(builder, guard):
        return True
    return name == "TYPE_MATCH" and not has_name(type(builder.get(guard)))


def _is_of_job(builder: Any, guard: Any) -> bool:
    """Return whether a guard is of a process group or a device mesh, of which PyTorch compares little."""
    try:
        return bool(describe_of_job(builder.get(guard)))
    except Exception:  # noqa: BLE001 - a guard of no object
        return False


def bare(guard: Any) -> Any:
    """Return the guard without what refers to objects of this process."""

    def dereferenced(value: Any) -> Any:
        is_reference = isinstance(value, weakref.ref) or type(value).__name__ == "TensorWeakRef"
        return value() if is_reference else value

    create = guard.create_fn
    if isinstance(create, functools.partial):
        words = {name: dereferenced(value) for name, value in create.keywords.items()}
        create = functools.partial(create.func, *map(dereferenced, create.args), **words)
    return dataclasses.replace(guard, create_fn=create, **UNSET)
