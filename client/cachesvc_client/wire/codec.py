"""Converts dataclasses to JSON and back, strictly: a value of an unknown shape is an error, never a guess.

`canonical` returns canonical bytes (sorted keys, no spaces, UTF-8), so that equal records have equal digests.
`plain` returns a record as dictionaries and lists. `parse_json` and `build` read hostile input: they bound
depth, size and types before they build any record.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union

R = TypeVar("R")


def canonical(value: Any) -> bytes:
    """Returns the canonical JSON of plain values and records. Raises ``ValueError`` on NaN and infinities."""
    return _CANONICAL.encode(value).encode()


def plain(value: Any) -> Any:
    """Returns records as dictionaries, recursively, without the fields that are ``None``."""
    value_type: Any = type(value)
    if value_type in _SCALARS:
        return value
    if isinstance(value, str):
        return str(value)
    if _field_names(value_type) is not None:
        return {name: plain(item) for name, item in _record_fields(value).items()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _record_fields(value: Any) -> dict[str, Any]:
    """Returns a record's fields. JSON's encoder calls this for each record that it meets; it walks all other
    values itself, and faster."""
    value_type: Any = type(value)
    names = _field_names(value_type)
    if names is None:
        raise TypeError(f"{value_type.__name__} is neither JSON nor a record")
    pairs = ((name, getattr(value, name)) for name in names)
    return {name: item for name, item in pairs if item is not None}


_CANONICAL = json.JSONEncoder(
    default=_record_fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
"""Encodes canonical JSON."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types that JSON and the records share."""


@functools.cache
def _field_names(record_type: Any) -> tuple[str, ...] | None:
    """Returns the names of a record's fields; ``None`` for a type that is no record."""
    if not dataclasses.is_dataclass(record_type):
        return None
    return tuple(field.name for field in dataclasses.fields(record_type))


_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches the beginning of the escape of half a character. UTF-8 itself has none, and two halves that belong
together are a whole one."""


def parse_json(data: bytes, *, limit: int, what: str) -> Any:
    """Parse JSON of at most ``limit`` bytes. Raise ``ValueError`` that names ``what``, also for a text with
    half of a character, which no file, digest or terminal takes, and for another coding than UTF-8."""
    if len(data) > limit:
        raise ValueError(f"{what}: {len(data)} bytes, more than the {limit} allowed")
    try:
        # Given bytes, json would guess UTF-16 too, in which nothing finds half of a character.
        text = str(data, "utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if _HALF.search(data):
            canonical(value)
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: not JSON that is accepted: {str(error)[:200]}") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number here")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return entries


def build(record: type[R], value: Any, where: str = "") -> R:
    """Builds a dataclass from plain JSON values.

    Ignores unknown keys, because a newer peer may send more of them. Raises ``ValueError`` that names the
    field's path if a key without a default is missing, or a value has another type.
    """
    try:
        return typing.cast(R, _record_reader(typing.cast("Any", record))(value))
    except _InvalidValue as invalid:
        raise ValueError(f"{where or record.__name__}{invalid.path}: {invalid.reason}") from None


_Reader = Callable[[Any], Any]
"""Converts a plain value into a field's value, or raises ``_InvalidValue``. There is one reader for each
record type: a manifest has thousands of files, and to look at the types again for each file took half of the
time of its check."""


class _InvalidValue(Exception):
    """Reports a value that a field does not accept. ``path`` grows on the way out, so that good values need
    no path."""

    def __init__(self, reason: object, path: str = "") -> None:
        self.reason = reason
        self.path = path

    def within(self, part: str) -> _InvalidValue:
        """Prefixes the path with the part of the record that has the value."""
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
    if origin is typing.Literal:
        return _choice_reader(typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        record: Any = hint
        return lambda value: _record_reader(record)(value)  # read on use: a record may hold its own type
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
            raise _InvalidValue("an object is expected")
        arguments: dict[str, Any] = {}
        for name, reader, required in fields:
            item = value.get(name)
            if item is not None:
                try:
                    arguments[name] = reader(item)
                except _InvalidValue as invalid:
                    raise invalid.within(f".{name}") from None
            elif required:
                raise _InvalidValue("missing", f".{name}")
        try:
            return record(**arguments)
        except (TypeError, ValueError) as error:
            raise _InvalidValue(error) from None

    return read


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union_reader(readers: list[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(value)
            except _InvalidValue:
                continue
        return readers[-1](value)

    return read


def _list_reader(sequence: type, reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _InvalidValue("a list is expected")
        items = []
        try:
            for item in value:
                items.append(reader(item))
        except _InvalidValue as invalid:
            raise invalid.within(f"[{len(items)}]") from None
        return sequence(items)

    return read


def _dict_reader(reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _InvalidValue("an object is expected")
        entries = {}
        for key, item in value.items():
            try:
                entries[key] = reader(item)
            except _InvalidValue as invalid:
                raise invalid.within(f".{key[:60]}") from None
        return entries

    return read


def _plain_reader(hint: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise _InvalidValue(f"{hint.__name__} is expected")

    return read


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value in choices:
            return value
        raise _InvalidValue(f"one of {', '.join(map(repr, choices))} is expected")

    return read


def _text_reader(hint: Callable[[Any], Any]) -> _Reader:
    def read(value: Any) -> Any:
        try:
            return hint(value)
        except (TypeError, ValueError) as error:
            raise _InvalidValue(error) from None

    return read
