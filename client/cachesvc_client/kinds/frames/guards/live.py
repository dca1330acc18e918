"""Makes the guards of a recorded frame, and checks that they hold for the live one.

PyTorch makes a guard from an object. Here that is the live one, once its words are those that were recorded
(`guard_words`). All guards are made in one pass, and Dynamo checks them before each later call.

Dynamo guards no hook of a module after the trace (``skip_nnmodule_hook_guards``): it has seen while tracing
that there is none. Nothing is traced here, so this module looks at the live modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from ....graphs.memory import overlaps
from ..arguments import FrameCall
from ..describe.digests import class_digest
from ..stored import RecordedFrame
from . import optimizers, pickles
from .pickles import guard_functions, recording_settings, temporary_attribute
from .same_objects import SameObjects
from .set_orders import SetOrders
from .spoken import difference, object_name
from .words import guard_words, source_of_object

_WITHIN = re.compile(r"(.+)\._modules\['([^'\\]+)'\]")
"""Matches the name of a module that lies within another one, in a guard: the name of that, and the key."""
_MARK = re.compile(r"(?!_dynamo_propagated_)_(has_)?dynamo_")
"""Matches the attributes with which ``mark_dynamic`` and its like mark a tensor, and not that with which
AOTAutograd marks its own outputs."""
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

    _check_globals(frame, call)
    with _context():
        recorded = pickles.read(frame.guards)
    scope = {"L": call.locals, "G": call.globals}
    _prepare_optimizers(frame, call, {**guard_functions(), **scope})
    _check_classes(frame.facts.classes)
    _check_hooks(frame.without_hooks, {**guard_functions(), **scope})
    with _compiled_once():
        _check_words(frame, recorded, dict(scope))
    graph = dataclasses.replace(
        recorded.state,
        local_scope=call.locals,
        global_scope=call.globals,
        _guards=GuardsSet(OrderedSet(guard for guard, _ in recorded.guards)),
    )
    with recording_settings(), _settings_at_hand(), _compiled_once(), _short_hints():
        manager = CheckFunctionManager(
            call.code,
            OutputGraphCommon(graph),
            shape_code_parts=recorded.shapes,
            runtime_global_scope=call.globals,
        ).guard_manager
    if not manager.check(call.locals):
        raise Differs(_failed_guard(manager, call.locals))
    return manager


def _check_globals(frame: RecordedFrame, call: FrameCall) -> None:
    """Put the globals that Dynamo adds into those of the function. Raise ``Differs`` where one is another."""
    from torch._dynamo.output_graph import get_builtins_dict

    for alias, name in frame.output.modules.items():
        value = _module_or_class(name)
        if call.globals.setdefault(alias, value) is not value:
            raise Differs(f"the global {alias} is not {name}")
    if frame.output.builtins:
        call.globals.setdefault(frame.output.builtins, get_builtins_dict(call.globals))


def _prepare_optimizers(frame: RecordedFrame, call: FrameCall, names: dict[str, Any]) -> None:
    """Have the state of the optimizers of a frame made as its trace did. Raise ``Differs``, before anything
    is changed, where one is not what it was."""
    starts = frame.facts.optimizers
    found = {name: _evaluate(name, names) for name in {*starts, *frame.facts.weak.values()}}
    if why := optimizers.differing(starts, found):
        raise Differs(why)
    if any(name in call.globals for name in frame.output.tensors):
        raise Differs("a graph of it holds the tensors of another optimizer, or of another state")
    for alias, name in frame.facts.weak.items():
        if call.globals.setdefault(alias, weakref.ref(found[name]))() is not found[name]:
            raise Differs(f"{object_name(name)} is another optimizer than that which it was given for")
    optimizers.prepare(starts, found)


def tensors_of(frame: RecordedFrame, graph: str, call: FrameCall) -> tuple[list[Any], list[Any]]:
    """Return the live tensors of a graph of a frame, and the optimizers whose they are."""
    names = {**guard_functions(), "L": call.locals, "G": call.globals}
    owners = [_evaluate(name, names) for name in frame.facts.weak.values()]
    return [_evaluate(name, names) for name in frame.output.tensors.get(graph, ())], owners


def _check_words(frame: RecordedFrame, recorded: pickles.DescribedGuards, scope: dict[str, Any]) -> None:
    """Raise ``Differs`` where an object is not what it was when the guard was recorded."""
    functions = dict(guard_functions())
    values: dict[Any, Any] = {}
    tensors, objects, sets = [], SameObjects(), SetOrders()
    for guard, words in (*recorded.guards, *recorded.unguarded):
        value, source = None, source_of_object(guard)
        if source is not None:
            with _readable(guard.name):
                value = source.get_value(scope, functions, values)
        try:
            now = guard_words(guard, value, recorded.layout(guard))
        except Exception as error:  # noqa: BLE001 - an object of another kind
            raise Differs(f"{object_name(guard.name)} has no description: {error}"[:200]) from None
        if now != words:
            raise Differs(f"{object_name(guard.name)} differs: {difference(words, now)}")
        objects.note(guard.name, value)
        sets.note(guard, value)
        if pickles.is_of_tensor(guard, value):
            _check_marks(guard.name, value, frame.facts.markings.get(guard.name, {}))
            tensors.append((guard.name, value))
    if overlaps(tensors) != recorded.overlaps:
        raise Differs("other tensors lie in the same memory")
    if objects.numbers != recorded.objects:
        raise Differs("names that led to several objects lead to one, or the other way round")
    if not sets.are(recorded.orders):
        raise Differs("a set has another order")


def _check_marks(name: str, tensor: Any, recorded: Mapping[str, Any]) -> None:
    """Raise ``Differs`` where a program marks a size of a tensor that it did not mark in the builder, as
    PyTorch's guard of the tensor does."""
    for attribute, mark in marks_of(tensor).items():
        if attribute not in recorded or not _is_within(mark, recorded[attribute]):
            raise Differs(f"{name} has other marks on its sizes")


def marks_of(tensor: Any) -> dict[str, Any]:
    """Return the attributes by which a program marked the sizes of a tensor."""
    return {name: mark for name, mark in vars(tensor).items() if _MARK.match(name) and mark}


def _is_within(mark: Any, recorded: Any) -> bool:
    both_sets = isinstance(mark, (set, frozenset)) and isinstance(recorded, (set, frozenset))
    return mark <= recorded if both_sets else bool(mark == recorded)


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
                raise Differs(f"{object_name(owner)}.{attribute} is not empty")


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


def _failed_guard(manager: Any, scope: Mapping[str, Any]) -> str:
    """Return the guard that does not hold, in PyTorch's words."""
    try:
        parts = manager.check_verbose(scope).verbose_code_parts
        text = " ".join(str(parts[0]).split()) if parts else ""
    except Exception:  # noqa: BLE001 - only the words are missing
        text = ""
    return f"a guard does not hold: {text[:160]}" if text else "a guard does not hold"
