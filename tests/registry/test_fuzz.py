"""Fuzz every route of the OpenAPI document with allowed and forbidden input, by schemathesis.

The requests are the same in each run. To search further, set ``CACHESVC_FUZZ=200``: that many new examples of
each are generated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from registry_inside import production
from registry_making import Publication, Server, make, ok
from schemathesis import checks
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cachesvc_client.wire.errors import ALL

CHECKS = [
    checks.not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
WORST = ["a\x00b", "\ud800", 1 << 63, None]
SPOILT = [
    *(
        "",
        "\x00",
        "a\x00b",
        "\ud800",
        "\U0010ffff",
        "%00",
        "../..",
        "x" * 5000,
        "1" * 5000,
        "sha256:" + "0" * 64,
    ),
    *(
        -1,
        0,
        1 << 31,
        (1 << 53) + 1,
        1 << 63,
        1 << 200,
        -(1 << 63) - 1,
        1e308,
        None,
        True,
        [],
        {},
        [[]],
        {"": None},
    ),
]
"""Values that break databases, clocks and file systems; ``\\ud800`` has no UTF-8."""
SEARCH = int(os.environ.get("CACHESVC_FUZZ", "0"))


@dataclass
class World:
    """Holds a server and its contents: generated names and digests would never match real ones."""

    server: Server
    publication: Publication
    tokens: dict[str, str]
    session: requests.Session

    def meet(self, case: Any) -> None:
        known = {
            "namespace": "team",
            "entry": self.publication.manifest.entry,
            "beginning": self.publication.revision.hex[:6],
        }
        known |= {"revision": self.publication.revision, "other": self.publication.revision}
        for name in case.path_parameters or {}:
            case.path_parameters[name] = known.get(name, case.path_parameters[name])

    def headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("production", marks=[pytest.mark.services, pytest.mark.long])],
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    server = Server(tmp_path_factory.mktemp("fuzz") / "data")
    if request.param == "production":
        server.env = production(request)
    server.start()
    api, publication = server.api(), make(server.key)
    ok(api.publish(publication))
    tokens = {}
    for role in ("admin", "write", "report", "read"):
        body = {"label": "fuzz", "role": role, "namespace": "*" if role == "admin" else "team"}
        tokens[role] = ok(api.http.post("/v1/tokens", json=body))["secret"]
    with requests.Session() as session:
        session.trust_env = False
        # A refusal before the body is read ends the connection, which cannot be used again.
        session.headers["Connection"] = "close"
        yield World(server, publication, tokens, session)
    # The server goes on as before, and its contents are complete.
    assert ok(api.http.get("/readyz"))["ready"]
    assert api.pack(publication.revision).content == publication.pack
    assert ok(api.http.post("/v1/fsck?deep=true"))["findings"] == []
    assert server.stop() == 0


def each(world: World, mode: GenerationMode, examples: int, ask: Callable[[Any, Any], None]) -> None:
    """Run a check over every operation, and report all failures together."""
    schema = schemathesis.openapi.from_url(world.server.url + "/openapi.json")
    bounded = settings(
        max_examples=SEARCH or examples,
        derandomize=not SEARCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    failures, operations = [], 0
    for operation_result in schema.get_all_operations():
        operation = operation_result.ok()
        cases = operation.as_strategy(generation_mode=mode)
        try:
            bounded(given(cases, st.data())(ask))()
            operations += 1
        except Unsatisfiable:  # A route without any input that could be wrong.
            assert mode is GenerationMode.NEGATIVE
        except (Exception, FailureGroup) as error:  # noqa: BLE001
            failures.append(f"{operation.label}: {error}")
    assert failures == [], "\n\n".join(failures)
    assert operations > 35


NO_HTTP = b"Invalid HTTP request received."
"""The answer of the server program below the application, with status 400, to bytes that are no HTTP, such as
a header without a valid name: no route sees them."""


@pytest.mark.parametrize(
    ("role", "mode", "examples"),
    [
        ("admin", GenerationMode.POSITIVE, 8),
        ("admin", GenerationMode.NEGATIVE, 8),
        ("write", GenerationMode.POSITIVE, 3),
        ("read", GenerationMode.POSITIVE, 3),
        ("nobody", GenerationMode.NEGATIVE, 2),
    ],
)
def test_every_answer_is_one_that_the_document_names(
    world: World, role: str, mode: GenerationMode, examples: int
) -> None:
    def ask(case: Any, data: st.DataObject) -> None:
        if case.method != "DELETE" and data.draw(st.booleans()):
            world.meet(case)
        headers = world.headers(role)
        answer = case.call(session=world.session, headers=headers)
        if answer.content != NO_HTTP:
            case.validate_response(answer, headers=headers, checks=CHECKS)

    each(world, mode, examples, ask)


def test_one_invalid_value_is_refused_in_the_form_of_all_errors(world: World) -> None:
    """Each place of an otherwise valid request gets an invalid value: the worst values in all places, the
    others in some."""

    def ask(case: Any, data: st.DataObject) -> None:
        if case.method != "DELETE":
            world.meet(case)
        for where, name in list(_places(case)):
            good = where[name]
            for value in (*WORST, data.draw(st.sampled_from(SPOILT))):
                where[name] = value
                _judge(value, case.method, send_as_generated(world, case))
            where[name] = good

    each(world, GenerationMode.POSITIVE, 2, ask)


def _judge(value: Any, method: str, answer: requests.Response) -> None:
    assert answer.status_code < 500, (value, answer.status_code, answer.text)
    if answer.status_code >= 400 and method != "HEAD":
        error = answer.json()["error"]
        assert answer.status_code in (ALL[error["code"]].status, 405), (value, error)
        assert "\n" not in error["message"], (value, error)


def _places(case: Any) -> Iterator[tuple[Any, Any]]:
    for parameters in (case.path_parameters, case.query):
        yield from ((parameters, name) for name in parameters or ())
    yield from _inside(case.body)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (dict, list)):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield value, name
            yield from _inside(value[name])


def send_as_generated(world: World, case: Any) -> requests.Response:
    """Send the request as it was generated, without the corrections of an HTTP library."""
    path = case.operation.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace(
            "{" + name + "}", quote(_text(value).encode(errors="surrogatepass"), safe="") or "-"
        )
    query = "&".join(
        f"{name}={quote(_text(value).encode(errors='surrogatepass'))}"
        for name, value in (case.query or {}).items()
    )
    body = case.body if isinstance(case.body, bytes) else None
    headers = world.headers("admin")
    if isinstance(case.body, (dict, list)):
        body, headers["Content-Type"] = json.dumps(case.body, default=_text).encode(), "application/json"
    url = f"{world.server.url}{path}?{query}"
    return world.session.request(case.method, url, data=body, headers=headers)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
