"""``python -m tools.rest_page``: writes docs/reference/rest.md from the registry's OpenAPI document.

``make pages`` runs it, and a test fails if the page is not what the document says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachesvc.api.app import create_app
from cachesvc.bootstrap import open_registry
from cachesvc.settings import Settings
from tools.markdown import DOCS, generated, single_quoted, table

PAGE = DOCS / "reference" / "rest.md"

HEAD = f"""\
# REST API

{generated("the OpenAPI document of cachesvc/api")}

A registry serves its OpenAPI document at `/openapi.json`: schemas of every body are there. This page lists
the routes. All paths under `/v1` take and answer JSON, unless the row says something else.

- **Token.** `Authorization: Bearer csv_…`. The routes of the group *service* need none.
- **Version.** A client may send `X-Cachesvc-Api: 1`. A registry that speaks another version answers 426.
- **Request id.** `X-Request-Id` is taken from the request or made, and is in the answer and in the log.
- **Errors** have one form, see [exit codes and errors](exit-codes.md#errors-of-the-api).
- **Bytes of packs** come from `GET /v1/revisions/{{revision}}/pack`, which understands one byte range, or
  from the links in an answer to `POST /v1/resolve`.
"""

GROUPS = ("service", "read", "publish", "inventory", "admin")
METHODS = ("get", "head", "post", "put", "delete")


def document() -> dict[str, Any]:
    """The OpenAPI document of an embedded registry with default settings."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_registry(Settings(data=Path(folder) / "data")) as registry,
    ):
        return create_app(registry).openapi()


def render() -> str:
    """The whole page."""
    lines = [HEAD]
    operations = list(_operations(document()))
    tags = dict.fromkeys((*GROUPS, *(tag for tag, *_ in operations)))
    for tag in tags:
        rows = [row for of, row in operations if of == tag]
        if rows:
            lines += [f"\n## {tag}\n", *table(("route", "what it does", "body", "answer"), rows)]
    return "\n".join(lines) + "\n"


def _operations(api: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path, methods in api["paths"].items():
        for method in METHODS:
            if method in methods:
                operation = methods[method]
                yield operation["tags"][0], _row(f"{method.upper()} {path}", operation)


def _row(route: str, operation: dict[str, Any]) -> tuple[str, ...]:
    about = single_quoted(operation.get("description", operation["summary"]))
    body = _content(operation.get("requestBody", {}))
    good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    return f"`{route}`", about, body, _content(good[0]) if good else ""


def _content(part: dict[str, Any]) -> str:
    """The names of a body's schemas, or its media type if it is no JSON."""
    for media, described in part.get("content", {}).items():
        if media == "application/json":
            return _schema(described.get("schema", {}))
        return f"`{media}`"
    return ""


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return "`" + str(schema["$ref"]).rsplit("/", 1)[1].removesuffix("-Input") + "`"
    if schema.get("type") == "array":
        return "list of " + (_schema(schema.get("items", {})) or "values")
    choices = [_schema(one) for one in schema.get("anyOf", ())]
    return " or ".join(choice for choice in choices if choice) or "JSON"


if __name__ == "__main__":
    PAGE.write_text(render())
