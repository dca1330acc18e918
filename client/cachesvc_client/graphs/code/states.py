"""Describes the states of loggers, locks, files and tensors for which code below Dynamo asks."""

from __future__ import annotations

import pathlib
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from .constants import code_digest
from .values import Undescribed, describe_plain, type_name

_LOGGER: dict[str, Callable[[Any], Any]] = {
    "level": lambda one: one.level,
    "disabled": lambda one: (one.disabled, one.manager.disable),
    "isEnabledFor": lambda one: (one.getEffectiveLevel(), one.disabled, one.manager.disable),
    "getEffectiveLevel": lambda one: one.getEffectiveLevel(),
    "handlers": lambda one: list(map(type_name, map(type, one.handlers))),
    "hasHandlers": lambda one: one.hasHandlers(),
    "filters": lambda one: list(map(type_name, map(type, one.filters))),
    "propagate": lambda one: one.propagate,
    "name": lambda one: one.name,
}
"""Names with which code asks a logger for a state -> the state."""
_OF_LOGGERS = frozenset((*_LOGGER, "parent", "manager", "root", "_cache"))
_TENSOR: dict[str, Callable[[Any], Any]] = {
    "_version": lambda one: one._version,
    "grad": lambda one: one.grad if one.grad is None else describe_plain(one.grad),
    "grad_fn": lambda one: type(one.grad_fn).__name__,
    "is_leaf": lambda one: one.is_leaf,
    "is_inference": lambda one: one.is_inference(),
    "is_conj": lambda one: one.is_conj(),
    "is_neg": lambda one: one.is_neg(),
    "is_shared": lambda one: one.is_shared(),
    "_is_view": lambda one: one._is_view(),
    "_base": lambda one: one._base if one._base is None else describe_plain(one._base),
    **dict.fromkeys(
        ("storage", "_typed_storage", "untyped_storage", "as_strided", "set_", "resize_", "is_set_to"),
        lambda one: (one.storage_offset(), one.untyped_storage().nbytes()),
    ),
    "storage_offset": lambda one: one.storage_offset(),
}
"""Names with which code asks a tensor for what is beside its values -> what that is."""
_ADDRESSES = frozenset(("data_ptr", "is_set_to", "_base"))
"""Names with which code may ask whether two tensors share memory."""
_STATES: dict[str, tuple[tuple[str, ...], str]] = {
    "logging.Logger": (tuple(_LOGGER), "logger"),
    "logging.RootLogger": (tuple(_LOGGER), "logger"),
    "torch.Tensor": ((*_TENSOR, *_ADDRESSES), "tensor"),
    "torch.nn.parameter.Parameter": ((*_TENSOR, *_ADDRESSES), "tensor"),
    "_thread.lock": (("locked", "acquire"), "lock"),
    "threading.Event": (("is_set", "isSet", "_flag"), "event"),
    "threading.Semaphore": (("_value", "acquire"), "semaphore"),
    "threading.BoundedSemaphore": (("_value", "acquire"), "semaphore"),
    "_io.TextIOWrapper": (("read", "readline", "readlines", "closed", "seek", "tell"), "file"),
    "pathlib.PosixPath": (tuple({*dir(pathlib.Path)} - {*dir(pathlib.PurePath)}), "file"),
    "_frozen_importlib.ModuleSpec": (("origin", "submodule_search_locations"), "spec"),
    "typing.TypeVar": (("__name__", "__bound__", "__constraints__"), "variable"),
}
"""Type of objects that decide nothing -> the names with which code asks for a state, and what they are."""


def has_state(value: Any) -> bool:
    """Return whether an object decides nothing unless code asks for its state."""
    return type_name(type(value)) in _STATES


def states(values: Sequence[Any], names: Set[str]) -> Iterator[str]:
    """Yield the states of such objects for which code has a name. Raises `Undescribed` with the reason for
    one that no text describes."""
    for value in values:
        asking, kind = _STATES[type_name(type(value))]
        if asked := names & frozenset(asking):
            yield f"{kind} {_state(kind, value, asked)}"
        if kind == "logger":
            own = {name: one for name, one in vars(value).items() if name in names - _OF_LOGGERS}
            yield from (f"{name} of a logger {_plain(value, one)}" for name, one in sorted(own.items()))
    if names & _ADDRESSES:
        yield f"shared memory {list(_shared(values))}"


def _plain(logger: Any, value: Any) -> str:
    """Return the text of what a program put on a logger. A method for messages, such as vLLM's
    ``warning_once``, is told by its own code: what it keeps says which messages there were."""
    if isinstance(value, types.MethodType) and value.__self__ is logger:
        return f"{value.__qualname__} {code_digest(value.__func__.__code__)}"
    if (text := describe_plain(value)) is None:
        raise Undescribed("an attribute of a logger")
    return text


def _shared(values: Iterable[Any]) -> Iterator[int]:
    """Yield a number for each tensor, the same for those whose memory begins at the same place."""
    places: dict[int, int] = {}
    for one in values:
        if _STATES[type_name(type(one))][1] == "tensor":
            yield places.setdefault(one.data_ptr(), len(places))


def _state(kind: str, value: Any, asked: Set[str]) -> str:
    if kind == "logger":
        return f"{value.name} {[(name, _LOGGER[name](value)) for name in sorted(asked)]}"
    if kind == "tensor":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # storages, and gradients that are not kept
            return str([(name, _TENSOR[name](value)) for name in sorted(asked & set(_TENSOR))])
    if kind == "lock":
        return str(value.locked())
    if kind == "event":
        return str(value._flag)
    if kind == "semaphore":
        return str(value._value)
    if kind == "spec":
        return f"{value.name} {value.origin}"
    if kind == "variable":
        return f"{value.__name__} {value.__constraints__} {value.__bound__}"
    raise Undescribed("a file")
