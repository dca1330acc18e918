"""Extends PyTorch's pickles of guards by objects that PyTorch does not pickle."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

_BY_NAME = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
"""Types of objects that a pickle holds by their name: what is read of such an object is not in the pickle."""

_WITHOUT_VALUE = (
    *("DUPLICATE_INPUT", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"),
    *("NOT_PRESENT_IN_GENERIC_DICT", "NONZERO_MEMORY_CHECK", "EMPTY_NN_MODULE_HOOKS_DICT"),
)
"""Guards that hold all that they compare: two names, a key, or that there is nothing."""


@contextlib.contextmanager
def recordable_guards() -> Iterator[None]:
    """Pickle the objects that guards compare in a way that a service can read.

    - A source of torch 2.11 by the arguments of its class: it adds fields that it computes.
    - A custom operator by its name: its object holds the library that defines it.
    - A module of a class that has no name in a module, such as a parametrized one, by its attributes: the
      guard of its class is recorded with a description.
    """
    from torch._dynamo.guards import GuardsStatePickler
    from torch._dynamo.source import DefaultsSource

    with (
        _replaced(DefaultsSource, "__reduce__", _reduce_source),
        _replaced(GuardsStatePickler, "reducer_override", _reducer(GuardsStatePickler.reducer_override)),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
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
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            return custom_operator, (value._qualname,)
        answer = original(pickler, value)
        if answer is NotImplemented and isinstance(value, torch.nn.Module) and not has_name(type(value)):
            return plain_module, (vars(value).copy(),)
        return answer

    return reducer_override


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


def has_name(kind: type) -> bool:
    """Return whether the class is found in its module under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
