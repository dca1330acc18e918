"""Dataclasses to JSON and back, strictly: unknown shapes are errors, never guesses.

``canonical`` gives canonical bytes (sorted keys, no spaces, UTF-8), so that equal records have
equal digests. ``parse_json`` and ``build`` take hostile input: depth, size and types are bounded before any
record is built.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union

R = TypeVar("R")


def canonical(value: Any) -> bytes:
    """Canonical JSON of plain values and records. Raises ``ValueError`` on NaN and infinities."""
    return _CANONICAL.encode(value).encode()


def plain(value: Any) -> Any:
    """Records as dicts, recursively; fields that are ``None`` are left out."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, str):
        return str(value)
    if _names(kind) is not None:
        return {name: plain(item) for name, item in _record(value).items()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _record(value: Any) -> dict[str, Any]:
    """What JSON's encoder asks for where it meets a record; all else it walks itself, and faster."""
    kind: Any = type(value)
    names = _names(kind)
    if names is None:
        raise TypeError(f"{kind.__name__} is neither JSON nor a record")
    pairs = ((name, getattr(value, name)) for name in names)
    return {name: item for name, item in pairs if item is not None}


_CANONICAL = json.JSONEncoder(
    default=_record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_SCALARS = frozenset({str, int, float, bool, type(None)})


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """A record's fields; ``None`` for what is no record."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


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
    try:
        return typing.cast(R, _record_reader(typing.cast("Any", record))(value))
    except _Misfit as misfit:
        raise ValueError(f"{where or record.__name__}{misfit.path}: {misfit.said}") from None


_Reader = Callable[[Any], Any]
"""Makes a field's value of a plain one, or raises ``_Misfit``. Made once for each record type: a
manifest has thousands of files, and to look at the types again for each was half of the time of its check."""


class _Misfit(Exception):
    """A value that does not fit. Its ``path`` grows on the way out, so that good values need none."""

    def __init__(self, said: object, path: str = "") -> None:
        self.said = said
        self.path = path

    def inside(self, part: str) -> _Misfit:
        self.path = part + self.path
        return self


def _reader(hint: Any) -> _Reader:
    origin = typing.get_origin(hint)
    if hint is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union_reader(
            [_reader(option) for option in typing.get_args(hint) if option is not type(None)]
        )
    if origin in (list, tuple):
        return _list_reader(origin, _reader(typing.get_args(hint)[0]))
    if origin is dict:
        return _dict_reader(_reader(typing.get_args(hint)[1]))
    if dataclasses.is_dataclass(hint):
        record: Any = hint
        return lambda value: _record_reader(record)(value)  # found only then: a record may hold its like
    return _plain_reader(hint) if hint in (bool, int, float, str) else _text_reader(hint)


@functools.cache
def _record_reader(record: Any) -> _Reader:
    hints = typing.get_type_hints(record)
    fields = [
        (field.name, _reader(hints[field.name]), _has_no_default(field))
        for field in dataclasses.fields(record)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("an object is expected")
        made: dict[str, Any] = {}
        for name, reader, needed in fields:
            item = value.get(name)
            if item is not None:
                try:
                    made[name] = reader(item)
                except _Misfit as misfit:
                    raise misfit.inside(f".{name}") from None
            elif needed:
                raise _Misfit("missing", f".{name}")
        try:
            return record(**made)
        except (TypeError, ValueError) as error:
            raise _Misfit(error) from None

    return read


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union_reader(readers: list[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(value)
            except _Misfit:
                continue
        return readers[-1](value)

    return read


def _list_reader(made: type, reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit("a list is expected")
        items = []
        try:
            for item in value:
                items.append(reader(item))
        except _Misfit as misfit:
            raise misfit.inside(f"[{len(items)}]") from None
        return made(items)

    return read


def _dict_reader(reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("an object is expected")
        made = {}
        for key, item in value.items():
            try:
                made[key] = reader(item)
            except _Misfit as misfit:
                raise misfit.inside(f".{key[:60]}") from None
        return made

    return read


def _plain_reader(hint: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise _Misfit(f"{hint.__name__} is expected")

    return read


def _text_reader(hint: Callable[[Any], Any]) -> _Reader:
    def read(value: Any) -> Any:
        try:
            return hint(value)
        except (TypeError, ValueError) as error:
            raise _Misfit(error) from None

    return read
