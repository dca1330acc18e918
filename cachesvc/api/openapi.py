"""Describe in the OpenAPI document the answers that are no record of the protocol."""

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
class Home:
    """What answers here, of which versions, and where to go on. ``web_page``: absent if it is turned off."""

    service: str
    version: str
    api: int
    openapi: str
    health: str
    web_page: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The process runs."""

    status: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the parts that requests need are ``ok``; a part that is not ``ok`` says why.
    ``writable``: whether publications are accepted."""

    ready: bool
    writable: bool
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Completed:
    """The digest that begins as the request says."""

    digest: Digest


Word = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Type of a text to search for. PostgreSQL accepts no NUL in it."""
BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
"""The content of an error's answer, without the model: FastAPI builds a validator for each model of each
answer of each route, and those of the errors took a fifth of the start. The ``default`` of the routes puts
the schema into the document."""


def errors(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Returns the ``responses`` of a route: those of ``codes``, and those of every route."""
    responses: dict[int | str, dict[str, Any]] = {}
    for code in ("invalid", "protocol", "too_large", "unavailable", *codes):
        kind = ALL[code]
        response = responses.setdefault(kind.status, {"description": "", "content": _ERROR})
        response["description"] = " / ".join(filter(None, [response["description"], f"`{code}`"]))
    responses["default"] = {"model": ErrorAnswer, "description": "Any other error"}
    return responses
