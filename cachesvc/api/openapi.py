"""What the OpenAPI document says of answers that are not a record of the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ALL


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """``code`` decides; ``message`` and ``hint`` are for people."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Every error has this form."""

    error: ErrorBody


@dataclass(frozen=True, slots=True)
class Health:
    """The process runs."""

    status: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """``ready``: those of ``parts`` that requests need are ``ok``. A part that is not says why not."""

    ready: bool
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Completed:
    """The whole of what was given the beginning of."""

    digest: Digest


Word = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A text to search for. PostgreSQL takes no NUL."""
BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def errors(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: these codes, and what any route may answer."""
    told: dict[int | str, dict[str, Any]] = {}
    for code in ("invalid", "protocol", "too_large", "unavailable", *codes):
        kind = ALL[code]
        held = told.setdefault(kind.status, {"model": ErrorAnswer, "description": ""})
        held["description"] = " / ".join(filter(None, [held["description"], f"`{code}`"]))
    told["default"] = {"model": ErrorAnswer, "description": "Any other error"}
    return told
