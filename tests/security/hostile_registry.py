"""A registry that answers every route with a record of the declared form, whose texts are hostile."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import threading
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args, get_origin

from fastapi import APIRouter
from fastapi.routing import APIRoute

import cachesvc.api
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from cachesvc_client.wire.requests.protocol import API_HEADER, API_VERSION

CURSORS = ("next",)
"""Fields that make a client ask for more: a hostile registry would only make it ask for ever."""
VALID = {
    Digest: str(Digest.of(b"hostile")),
    Namespace: "team",
    ShortName: "bert",
    Tag: "latest",
    Target: "bert/f32",
    Lane: "pr-1",
    PublicKey: SigningKey.generate().public,
}
"""A text that each type with a pattern accepts: a client refuses any other before it shows anything."""


VALID_FIELDS = {
    "builder": "https://ci.example/job",
    "issuer": "https://ci.example",
    "problem": "missing",
    "service": "cachesvc",
    "source": "git+https://ci.example/app@refs/heads/main",
}
"""Texts of fields that a client holds to a form of their own, for the same reason."""


def record_with(hint: Any, text: str) -> Any:
    """Returns plain JSON of the form ``hint`` whose texts are ``text``, wherever a client accepts it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return record_with(next(one for one in arguments if one is not type(None)), text)
    if origin in (list, tuple):
        return [record_with(arguments[0], text)]
    if origin is dict:
        return {text: record_with(arguments[1], text)}
    if origin is typing.Literal:
        return arguments[0]
    if dataclasses.is_dataclass(hint):
        return _fields_with(hint, text)
    if hint in VALID:
        return VALID[hint]
    return {int: 1, float: 1.0, bool: True}.get(hint, text)


def _fields_with(record: Any, text: str) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    fields = {
        field.name: _valid_text(field.name, hints[field.name]) or record_with(hints[field.name], text)
        for field in dataclasses.fields(record)
        if field.name not in CURSORS
    }
    for name, value in fields.items():
        if value in (text, [text], {text: text}) and not _accepts(record, fields):
            fields[name] = {str: "x", list: ["x"], dict: {"x": "x"}}[type(value)]
    return fields


def _valid_text(name: str, hint: Any) -> str | None:
    return VALID_FIELDS.get(name) if hint in (str, str | None) else None


def _accepts(record: Any, fields: dict[str, Any]) -> bool:
    try:
        codec.build(record, fields)
    except ValueError:
        return False
    return True


@dataclasses.dataclass
class HostileRegistry:
    """``text``: what every free text of an answer is. ``answered``: the routes that were asked."""

    url: str = ""
    text: str = "x"
    answered: set[str] = dataclasses.field(default_factory=set)


def every_route() -> Iterator[APIRoute]:
    """Yields the routes of a registry."""
    for module in pkgutil.iter_modules(cachesvc.api.__path__):
        for value in vars(importlib.import_module(f"cachesvc.api.{module.name}")).values():
            if isinstance(value, APIRouter):
                yield from (route for route in value.routes if isinstance(route, APIRoute))


@contextmanager
def hostile_registry() -> Iterator[HostileRegistry]:
    """Serves the routes of a registry on loopback, with hostile records as their answers."""
    registry = HostileRegistry()
    routes = list(every_route())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            [route, *_] = [
                one for one in routes if self.command in one.methods and one.path_regex.fullmatch(path)
            ]
            registry.answered.add(f"{self.command} {route.path}")
            status = 204 if route.status_code == 204 else 200
            record = record_with(route.response_model, registry.text)
            body = b"" if status == 204 else json.dumps(record).encode()
            self.send_response(status)
            self.send_header(API_HEADER, str(API_VERSION))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            return

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=front.serve_forever)
    thread.start()
    registry.url = f"http://127.0.0.1:{front.server_address[1]}"
    try:
        yield registry
    finally:
        front.shutdown()
        thread.join()
        front.server_close()
