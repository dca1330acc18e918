"""Dataclasses to JSON and back, strictly: unknown shapes are errors, never guesses.

``dump`` gives canonical bytes (sorted keys, no spaces, UTF-8), so that equal records have
equal digests. ``load`` takes hostile input: depth, size and types are bounded before any
record is built.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar, Union

R = TypeVar("R")


def canonical(value: Any) -> bytes:
    """Canonical JSON of plain values and records. Raises ``ValueError`` on NaN and infinities."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def plain(value: Any) -> Any:
    """Records as dicts, recursively; fields that are ``None`` are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: plain(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def parse_json(data: bytes, *, limit: int, what: str) -> Any:
    """JSON from at most ``limit`` bytes. Raises ``ValueError`` that names ``what``."""
    if len(data) > limit:
        raise ValueError(f"{what}: {len(data)} bytes, more than the {limit} allowed")
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: not JSON that is accepted: {str(error)[:200]}") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number here")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def build(record: type[R], value: Any, where: str = "") -> R:
    """A dataclass from plain JSON values.

    Unknown keys are ignored (a newer peer may send more); missing ones without a default,
    and values of another type, raise ``ValueError`` naming the field's path.
    """
    where = where or record.__name__
    if not isinstance(value, dict):
        raise ValueError(f"{where}: an object is expected")
    made: dict[str, Any] = {}
    for field, hint in _fields(typing.cast(type, record)):
        if field.name in value and value[field.name] is not None:
            made[field.name] = _convert(hint, value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{field.name}: missing")
    try:
        return record(**made)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def _fields(record: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(record)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(record))


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value, where)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{where}: a list is expected")
        item_hint = typing.get_args(hint)[0]
        return origin(_convert(item_hint, item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: an object is expected")
        item_hint = typing.get_args(hint)[1]
        return {key: _convert(item_hint, item, f"{where}.{key[:60]}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value, where)
    return _scalar(hint, value, where)


def _convert_union(hint: Any, value: Any, where: str) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    for option in options[:-1]:
        try:
            return _convert(option, value, where)
        except ValueError:
            continue
    return _convert(options[-1], value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (bool, int, float, str):
        if type(value) is not hint:
            raise ValueError(f"{where}: {hint.__name__} is expected")
        return value
    try:
        return hint(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
