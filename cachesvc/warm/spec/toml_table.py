"""Read the tables of a TOML file with types, and with errors that name file, line and key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cachesvc_client.wire.errors import SpecError
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.suggestion import nearest

from .toml_lines import KeyPath, line_of

CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""Pattern of ``module:function``."""
MADE_BY = "()"
"""Key of a factory's argument that a call of this ``module:function`` makes, with the table's other keys."""
ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?")
"""Pattern of the id of a target, and of the name of an input set."""

_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "long": "int64"}
_ALIASES |= {"float": "float32", "int": "int64", "train": "training", "eval": "inference"}


@dataclass(frozen=True, slots=True)
class Source:
    """Says from which file tables come, and on which line each key stands."""

    path: Path
    lines: dict[KeyPath, int]


class Table:
    """Reads one TOML table with types. A key that nobody reads is an error at `finish`.

    ``defaults``: a table with defaults. ``label``: names the table in errors.
    """

    def __init__(
        self, data: dict[str, Any], path: KeyPath, source: Source, label: str, defaults: Table | None = None
    ) -> None:
        self.data, self.path, self.source, self.label = data, path, source, label
        self.defaults = defaults
        self.keys_read: dict[str, None] = {}

    def fail(self, key: str | KeyPath, problem: str, hint: str = "") -> NoReturn:
        """Raise ``SpecError`` for a key of this table, or of the defaults that it comes from."""
        keys = (key,) if isinstance(key, str) else key
        owner = self
        if self.defaults and keys[0] in self.defaults.data and keys[0] not in self.data:
            owner = self.defaults
        line = line_of(owner.source.lines, owner.path + keys)
        where = f"{owner.source.path}" + (f", line {line}" if line else "")
        dotted = ".".join(str(part) for part in keys if not isinstance(part, int))
        raise SpecError(f"{where}: {owner.label}: {dotted}: {problem}", hint)

    def has(self, key: str) -> bool:
        """Return whether the table itself, and not the defaults, has the key."""
        return key in self.data

    def get(self, key: str) -> Any:
        """Return the value, else the default, else ``None`` (which TOML does not have)."""
        self.keys_read[key] = None
        if key in self.data or not self.defaults:
            return self.data.get(key)
        return self.defaults.data.get(key)

    def typed(self, key: str, types: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """Return the value, which must be one of ``types``. ``what``: names them in an error."""
        value = self.get(key)
        if value is None:
            return default
        allowed = types if isinstance(types, tuple) else (types,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            self.fail(key, f"{toml_value(value)} is not {what}", f"expected {what}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        return str(self.typed(key, str, "a string", default))

    def texts(self, key: str, what: str = "a list of strings") -> tuple[str, ...]:
        """Return a list of strings. ``what``: names it in an error."""
        value = self.typed(key, list, what, [])
        if not all(isinstance(item, str) for item in value):
            self.fail(key, f"{toml_value(value)} is not {what}", f"expected {what}")
        return tuple(value)

    def values(self, key: str, what: str) -> dict[str, Any]:
        """Return a table of plain values, which travel as JSON."""
        value: dict[str, Any] = self.typed(key, dict, what, {})
        for name, item in value.items():
            try:
                json.dumps(item, allow_nan=False)
            except (TypeError, ValueError):
                self.fail((key, name), f"{toml_value(item)} is no JSON value", "text, numbers, lists, tables")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return bool(self.typed(key, bool, "true or false", default))

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        """Return a string that is one of ``allowed``."""
        value = self.text(key, default)
        if value != default:
            self.one_of(key, value, allowed)
        return value

    def choices(self, key: str, allowed: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of different strings of ``allowed``, at least one."""
        if self.get(key) is None:
            return default
        values = self.texts(key, "a list such as " + toml_list(list(allowed)[:2]))
        for value in values:
            self.one_of(key, value, allowed)
        if not values or len(set(values)) < len(values):
            self.fail(key, "empty" if not values else f"{toml_value(list(values))} names one twice")
        return values

    def one_of(self, key: str | KeyPath, value: str, allowed: Iterable[str]) -> None:
        """Raise unless ``value`` is one of ``allowed``."""
        names = list(allowed)
        if value not in names:
            self.fail(key, f"{value!r} is not known", did_you_mean(value, names))

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """Return a number from ``low`` to ``high``."""
        value = float(self.typed(key, (int, float), "a number", default))
        if not low <= value <= high or math.isnan(value):
            self.fail(key, f"{value:g} is out of range", f"{low:g} to {high:g}")
        return value

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``."""
        value = int(self.typed(key, int, "a whole number", default))
        if not low <= value <= high:
            self.fail(key, f"{value} is out of range", f"{low} to {high}")
        return value

    def call(self, key: str) -> str:
        """Return a ``module:function``, or an empty string."""
        value = self.text(key)
        if value and not CALL.fullmatch(value):
            self.fail(key, f"{value!r} is not module:function", 'such as "models:bert"')
        return value

    def path_to(self, key: str, value: str, *, folder: bool) -> str:
        """Return an absolute path; ``value`` starts from the spec's folder. A missing path is an error."""
        path = (self.source.path.parent / value).absolute()
        if not (path.is_dir() if folder else path.is_file()):
            what = "folder" if folder else "file"
            self.fail(key, f"no such {what}: {path}", "paths are relative to the spec's folder")
        return str(path)

    def name(self, key: str) -> Name:
        """Return a name, ``namespace/name`` with or without a tag, which is required."""
        value = self.text(key)
        if not value:
            raise SpecError(f"{self.source.path}: {key}: missing", 'such as name = "team/bert"')
        try:
            return Name.parse(value)
        except ValueError as error:
            self.fail(key, str(error), "namespace/name or namespace/name:tag, in lower case")

    def table(self, key: str) -> Table | None:
        """Return an inner table, or ``None``."""
        value = self.typed(key, dict, "a table", None)
        return None if value is None else Table(value, (*self.path, key), self.source, key)

    def tables(self, key: str) -> list[Table]:
        """Return an array of tables, which is required."""
        value = self.typed(key, list, f"an array of tables ([[{key}]])", [])
        if not value or not all(isinstance(item, dict) for item in value):
            raise SpecError(f"{self.source.path}: no [[{key}]]", f"declare at least one [[{key}]]")
        return [Table(item, (*self.path, key, index), self.source, key) for index, item in enumerate(value)]

    def fail_on_misspelling(self, missing: Sequence[str]) -> None:
        """Raise for a key that looks like one of ``missing``, which are required: a typing error."""
        for key in self.data:
            if key not in self.keys_read and nearest(key, missing):
                self.fail(key, "unknown key", did_you_mean(key, list(missing)))

    def finish(self, allowed: str = "allowed: ") -> None:
        """Raise for a key that nobody has read."""
        for key in self.data:
            if key not in self.keys_read:
                self.fail(key, "unknown key", did_you_mean(key, list(self.keys_read), allowed))


def did_you_mean(value: str, allowed: list[str], lead: str = "allowed: ") -> str:
    """Return a hint: the value that is nearest to ``value``, if one is near, and all that are allowed."""
    near = _ALIASES[value] if _ALIASES.get(value) in allowed else nearest(value, allowed)
    return (f"did you mean {near!r}? " if near else "") + lead + ", ".join(allowed)


def toml_value(value: object) -> str:
    """Return a TOML value for a message, at most 80 characters."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def toml_list(values: list[str]) -> str:
    """Return a list of strings as TOML: ``["a", "b"]``."""
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"
