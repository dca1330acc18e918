"""Owns the JSON that commands print: one form for all of them, with units and with times in UTC.

An answer is an object with its ``format``, such as ``cachesvc.admin.tokens.list/1``: the command, and the
version of the answer. Every field is always there; what is not known, or does not apply, is ``null``.
docs/reference/json.md is generated from the tables of this module and the types of the answers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ..wire.errors import CacheSvcError
from ..wire.requests.protocol import EnvironmentUse
from ..wire.requests.reports import STATES

VERSIONS: dict[str, int] = {}
"""Versions of the answers that are not at 1, by command. A field that is added is no new version."""
ERROR_FORMAT = "cachesvc.error/1"
"""The ``format`` of an error."""
TIMES = frozenset(
    (
        *("at", "created", "expires", "first_seen", "last_seen", "last_used", "offered", "pinned"),
        *("previous_until", "published", "quarantined", "revoked", "seen", "signed", "since"),
        *("last_delivered", "oldest", "retry"),
    )
)
"""Names of the fields that hold seconds of UTC. An answer has them as texts of ISO 8601, or ``null``."""
UNITS = {
    "lag": "lag_seconds",
    "saved": "saved_seconds",
    "spent": "spent_seconds",
    "measured": "measured_seconds",
    "pack_size": "pack_bytes",
    "moved": "moved_bytes",
    "files": "file_count",
    "hit": "hits",
    "hit_before": "hits_before",
}
"""Names that fields of numbers have in an answer, where their own name lacks the unit or what is counted."""
RENAMED = {"mend": "fix"}
"""Names that other fields have in an answer. The wire keeps the old ones."""


def format_of(command: str) -> str:
    """Return the ``format`` of the answer of a command, such as ``admin tokens list``."""
    return f"cachesvc.{command.replace(' ', '.')}/{VERSIONS.get(command, 1)}"


def document(command: str, body: object) -> dict[str, Any]:
    """Return the answer of a command. ``body``: a record, or a mapping of its fields."""
    fields = (
        {str(name): present(value) for name, value in body.items()} if isinstance(body, Mapping) else None
    )
    return {"format": format_of(command), **(present(body) if fields is None else fields)}


def error_document(error: CacheSvcError) -> dict[str, Any]:
    """Return an error as programs get it. ``code`` and ``exit_status`` decide; the texts are for people."""
    return {"format": ERROR_FORMAT, "error": error_record(error)}


def error_record(error: CacheSvcError) -> dict[str, Any]:
    """Return what an error says, as a part of an answer has it."""
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "exit_status": error.exit_status,
    }


def present(value: object) -> Any:
    """Return a value as answers have it: records as objects with all their fields, numbers under names with
    their unit, and times as texts. A record with a method ``as_answer`` says itself how an answer has it."""
    if as_answer := getattr(type(value), "as_answer", None):
        return as_answer(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        starts = {name: fields.pop(name) for name in STATES} if isinstance(value, EnvironmentUse) else None
        record = dict(_field(name, item) for name, item in fields.items())
        return record if starts is None else {**record, "starts": starts}
    if isinstance(value, Mapping):
        return {str(name): present(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [present(item) for item in value]
    return str(value) if isinstance(value, (str, PurePath)) else value


def utc_text(seconds: int | None) -> str | None:
    """Return a time, in seconds of UTC, as ``2026-11-24T23:24:13Z``; ``None`` for ``None`` and for 0, which
    older registries send for a time that they do not know."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None


def _field(name: str, value: object) -> tuple[str, Any]:
    if name in TIMES and (value is None or type(value) is int):
        return name, utc_text(value)
    if name in UNITS and (isinstance(value, (int, float)) or name == "measured"):
        return UNITS[name], present(value)
    return RENAMED.get(name, name), present(value)
