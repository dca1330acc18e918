"""Makes the guards of a recorded frame, and checks that they hold for the live one.

PyTorch makes a guard from a value: from the recorded one, if PyTorch serialised the guard, so that the guard
compares what the frame was compiled for. A guard that compares an identity is made from the live object, once
that object's description is the recorded one. All guards are made in one pass, and Dynamo checks them before
each later call.

Dynamo guards no hook of a module after the trace (``skip_nnmodule_hook_guards``): it has seen while tracing
that there is none. Nothing is traced here, so this module looks at the live modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import pickle
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .arguments import FrameCall
from .deferred import with_stand_ins
from .describe import class_digest, code_digest, describe_guarded
from .guard_pickles import UNSET, guard_functions, recording_settings, temporary_attribute
from .stored import RecordedFrame

_WITHIN = re.compile(r"(.+)\._modules\['([^'\\]+)'\]")
"""Matches the name of a module that lies within another one, in a guard: the name of that, and the key."""
_OFTEN_READ = (
    "skip_tensor_guards_with_matching_dict_tags",
    "max_saved_pointers_for_recursive_dict_tags_check",
    "issue_3_13_0_warning",
    "_unsafe_skip_fsdp_module_guards",
    "skip_no_tensor_aliasing_guards_on_parameters",
    "log_compilation_metrics",
    "force_nn_module_property_static_shapes",
)
"""Settings of Dynamo's that PyTorch reads at each guard."""
_MOST_EXPRESSIONS = 4096
"""Compiled expressions that are kept."""


class Differs(Exception):
    """A recorded frame does not fit the live one; the text says why."""


def live_guards(frame: RecordedFrame, call: FrameCall) -> Any:
    """Return PyTorch's manager of all guards of a frame. Raises ``Differs`` if one does not hold."""
    from torch._dynamo.guards import CheckFunctionManager
    from torch._dynamo.output_graph import OutputGraphCommon
    from torch._guards import GuardsSet
    from torch.utils._ordered_set import OrderedSet

    state = _state(frame, call)
    scope = {"L": call.locals, "G": call.globals}
    names = {**guard_functions(), **scope}
    _check_classes(frame.classes)
    recorded = [*state.output_graph._guards]
    _check_hooks(frame.without_hooks, names)
    identities = _identities(frame, names)
    guards = GuardsSet(OrderedSet([*recorded, *identities]))
    graph = dataclasses.replace(state.output_graph, _guards=guards)
    with (
        recording_settings(),
        _settings_at_hand(),
        _compiled_once(),
        _live_objects(identities, scope, frame.markings),
        _short_hints(),
    ):
        manager = CheckFunctionManager(
            call.code,
            OutputGraphCommon(graph),
            shape_code_parts=state.shape_code_parts,
            runtime_global_scope=call.globals,
        ).guard_manager
    if not manager.check(call.locals):
        raise Differs(_failed_guard(manager, call.locals))
    return manager


def _state(frame: RecordedFrame, call: FrameCall) -> Any:
    """Return what PyTorch serialised of the guards, once the globals that Dynamo adds are there."""
    from torch._dynamo.output_graph import get_builtins_dict
    from torch._dynamo.package import load_guards_state

    for alias, name in frame.modules.items():
        value = _module_or_class(name)
        if call.globals.setdefault(alias, value) is not value:
            raise Differs(f"the global {alias} is not {name}")
    with _context(), _one_fake_mode():
        state = load_guards_state(frame.guards)
    if name := state.output_graph.name_of_builtins_dict_key_in_fglobals:
        call.globals.setdefault(name, get_builtins_dict(call.globals))
    return state


@contextlib.contextmanager
def _one_fake_mode() -> Iterator[None]:
    """Have the tensors of recorded guards made in one mode of PyTorch's fake tensors.

    PyTorch makes a mode for each, and each mode reads the source lines of its stack."""
    import torch
    from torch._dynamo import guards

    pickler: Any = getattr(guards, "GuardsStatePickler", types.SimpleNamespace())
    name = "_unpickle_tensor"
    unpickle = vars(pickler).get(name)
    if not isinstance(unpickle, classmethod):
        yield
        return
    fake = torch._subclasses.fake_tensor
    mode = fake.FakeTensorMode()
    subclasses = types.SimpleNamespace(FakeTensorMode=lambda: mode, fake_tensor=fake)
    names = types.SimpleNamespace(_subclasses=subclasses, _C=torch._C, Tensor=torch.Tensor)
    in_one_mode: Any = classmethod(with_stand_ins(unpickle.__func__, {}, torch=names))
    with temporary_attribute(pickler, name, in_one_mode):
        yield


def _context() -> Any:
    """Return the context that an unpickled source asks for, to add a guard which the record has already."""
    from torch._guards import TracingContext, tracing

    return tracing(TracingContext(None))


def _module_or_class(name: str) -> Any:
    """Return a module, or a class as ``module:name``; imports only PyTorch's own. Raises ``Differs`` for one
    that is not there."""
    module, _, kind = name.partition(":")
    if module not in sys.modules and module.partition(".")[0] != "torch":
        raise Differs(f"module {module} is not imported")
    loaded = importlib.import_module(module)
    if not kind:
        return loaded
    if not isinstance(found := getattr(loaded, kind, None), type):
        raise Differs(f"{name} is no class")
    return found


def _check_classes(classes: Mapping[str, str]) -> None:
    """Raise ``Differs`` where a class has other attributes or other bases now than when it was recorded:
    Dynamo guards where it found an attribute, and not that no class before that has one."""
    for name, recorded in classes.items():
        if class_digest(_module_or_class(name)) != recorded:
            raise Differs(f"class {name} has other attributes or bases")


def _check_hooks(without_hooks: Mapping[str, tuple[str, ...]], names: dict[str, Any]) -> None:
    """Raise ``Differs`` where a module has a hook now that had none when it was recorded."""
    known: dict[str, Any] = {}
    for owner, attributes in without_hooks.items():
        module = _module(owner, names, known)
        for attribute in attributes:
            if getattr(module, attribute, True):
                raise Differs(f"{owner}.{attribute} is not empty")


def _identities(frame: RecordedFrame, names: dict[str, Any]) -> list[Any]:
    """Return the guards that compare identities, once each object is what was recorded."""
    guards = []
    with _context():
        recorded = pickle.loads(frame.identities)
    for guard, described in recorded:
        try:
            now = describe_guarded(guard, _evaluate(guard.name, names))
        except TypeError:
            now = ""
        if now != described:
            raise Differs(f"{guard.name} is not {described}"[:200])
        guards.append(dataclasses.replace(guard, **UNSET))
    return guards


def _module(name: str, names: dict[str, Any], known: dict[str, Any]) -> Any:
    """Return the live module of a guard's name, as `_evaluate` does.

    ``known``: those that were asked for. The name of a module within another one begins with that one's."""
    if name not in known:
        within = _WITHIN.fullmatch(name)
        if within is None:
            known[name] = _evaluate(name, names)
        else:
            outer = _module(within[1], names, known)
            with _readable(name):
                known[name] = outer._modules[within[2]]
    return known[name]


def _evaluate(name: str, names: dict[str, Any]) -> Any:
    """Return the live object of a guard's name, which is an expression that Dynamo made. Raises ``Differs``
    where there is none."""
    with _readable(name):
        return eval(_compiled(name), names)  # of a verified file


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Raise ``Differs`` where the block cannot read the object of a name: it is not there, or is something
    else now."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an expression of the program's objects
        raise Differs(f"{name} cannot be read: {type(error).__name__}") from None


@contextlib.contextmanager
def _live_objects(
    identities: Iterable[Any], scope: Mapping[str, Any], markings: Mapping[str, Mapping[str, Any]]
) -> Iterator[None]:
    """Have PyTorch make these guards from live objects, and others from recorded ones where there are any:
    PyTorch leaves out of a record what no guard of the record compares.

    A guard of a code object compares its identity: it is made from the live one, if that is equal code.
    ``markings``: by a guard's name, the attributes that recorded tensors lack.
    """
    from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
    from torch._guards import Guard

    original = GuardBuilder.get
    live = {id(guard) for guard in identities}
    kinds = CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    globals_and_locals = dict(scope)
    recorded_values: dict[str, Any] = {}
    live_values: dict[str, Any] = {}

    def get(builder: Any, asked: Any, *rest: Any, **named: Any) -> Any:
        # PyTorch asks for a value five times on average.
        name = asked.name
        # A guard of an attribute is a guard of its own, which PyTorch makes while it makes another.
        if isinstance(asked, Guard) and (id(asked) in live or asked.create_fn_name() in kinds):
            if name not in live_values:
                live_values[name] = get_live(builder, asked, *rest, **named)
            return live_values[name]
        if not name:  # of a guard of the process, not of an object
            return get_recorded(builder, asked, *rest, **named)
        if name not in recorded_values:
            recorded_values[name] = get_recorded(builder, asked, *rest, **named)
        return recorded_values[name]

    def get_recorded(builder: Any, asked: Any, *rest: Any, **named: Any) -> Any:
        try:
            recorded = original(builder, asked, *rest, **named)
        except Exception:  # noqa: BLE001 - an expression that reads what the record leaves out
            return get_live(builder, asked, *rest, **named)
        if type(recorded).__name__ == "_Missing":
            return get_live(builder, asked, *rest, **named)
        if isinstance(recorded, types.CodeType):
            value = get_live(builder, asked, *rest, **named)
            if not _is_code(value, recorded):
                raise Differs(f"{asked.name} is other code")
            return value
        for name, mark in markings.get(asked.name, {}).items():
            setattr(recorded, name, mark)
        return recorded

    def get_live(builder: Any, asked: Any, *rest: Any, **named: Any) -> Any:
        builder_scope, cache = builder.scope, builder.src_get_value_cache
        builder.scope = {**builder_scope, **globals_and_locals}
        builder.src_get_value_cache = type(cache)()
        try:
            with _readable(asked.name):
                return original(builder, asked, *rest, **named)
        finally:
            builder.scope, builder.src_get_value_cache = builder_scope, cache

    with temporary_attribute(GuardBuilder, "get", get):
        yield


@contextlib.contextmanager
def _settings_at_hand() -> Iterator[None]:
    """Have the settings that PyTorch's code of guards reads found like any attribute of a module.

    It reads some at each guard, 20,000 times for a model of 100 layers, and the module of settings works out
    each anew: a tenth of the time [measured, 2.11]."""
    from torch._dynamo import config

    known = getattr(config, "_config", {})
    at_hand = vars(config)  # a module of settings lets no attribute be set that is no setting
    names = [
        name
        for name in _OFTEN_READ
        if name in known and name not in at_hand and not getattr(known[name], "deprecated", False)
    ]
    try:
        at_hand.update({name: getattr(config, name) for name in names})
        yield
    finally:
        for name in names:
            at_hand.pop(name, None)


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """Have each expression with which PyTorch reads a guarded value compiled once: those of equal layers are
    the same, each of the value that the source before it has."""
    from torch import _guards

    def evaluate(expression: Any, *scope: Any) -> Any:
        if not scope:  # what Python's own function takes then
            caller = sys._getframe(1)
            scope = (caller.f_globals, caller.f_locals)
        return eval(_compiled(expression) if isinstance(expression, str) else expression, *scope)

    with temporary_attribute(_guards, "eval", evaluate):
        yield


@functools.lru_cache(_MOST_EXPRESSIONS)
def _compiled(expression: str) -> types.CodeType:
    return compile(expression, "<guard>", "eval")


@contextlib.contextmanager
def _short_hints() -> Iterator[None]:
    """Have PyTorch look for the variable of a closure, which the text of a failed guard names, only in
    sources that have one. It walks up the whole source of each guard otherwise."""
    from torch._dynamo import guards

    name = "_get_closure_var_hint"
    original = getattr(guards, name, None)
    if original is None:
        yield
        return

    def hint(source: Any) -> Any:
        return original(source) if source is not None and "cell_contents" in source.name else None

    with temporary_attribute(guards, name, hint):
        yield


def _is_code(value: Any, code: types.CodeType) -> bool:
    return isinstance(value, types.CodeType) and code_digest(value) == code_digest(code)


def _failed_guard(manager: Any, scope: Mapping[str, Any]) -> str:
    """Return the guard that does not hold, in PyTorch's words."""
    try:
        parts = manager.check_verbose(scope).verbose_code_parts
        text = " ".join(str(parts[0]).split()) if parts else ""
    except Exception:  # noqa: BLE001 - only the words are missing
        text = ""
    return f"a guard does not hold: {text[:160]}" if text else "a guard does not hold"
