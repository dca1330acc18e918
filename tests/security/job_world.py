"""A registry with an issuer of CI tokens, for the tests of what a CI job may do.

The registry is the real application in this process, with a clock that the test moves. The issuer is a real
HTTP server with real keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient
from registry_inside import Clock, inside
from registry_making import make

from cachesvc.api.app import create_app
from cachesvc.domain.access import ANY
from cachesvc.oidc.issuers import Issuers
from cachesvc.outside import Destinations
from cachesvc.registry.access import tokens
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey

from .issuer import Issuer, running_issuer

AUDIENCE = "https://registry.example"
MAIN = {"repository": "org/app", "ref": "refs/heads/main"}
PULL = {"ref": "refs/pull/7/merge", "event_name": "pull_request", "sub": "repo:org/app:pull_request"}
LINE = 700
"""Characters of an error that still is one line for people."""


@dataclass
class World:
    """A running registry, its issuer, its clock, a signer's key, and an admin's token."""

    http: TestClient
    issuer: Issuer
    clock: Clock
    key: SigningKey
    admin: str

    def call(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.http.request(method, path, headers=headers, **more)

    def add(self, **changed: Any) -> httpx.Response:
        rule = {
            "issuer": self.issuer.url,
            "audience": AUDIENCE,
            "claims": MAIN,
            "namespace": "team",
            **changed,
        }
        return self.call("POST", "/v1/publishers", self.admin, json=rule)

    def rule(self, **changed: Any) -> str:
        answer = self.add(**changed)
        assert answer.status_code == 201, answer.text
        return answer.json()["publisher"]

    def claims(self, **changed: Any) -> dict[str, Any]:
        return self.issuer.claims(self.clock(), **changed)

    def exchange(self, token: str, **more: Any) -> httpx.Response:
        return self.call("POST", "/v1/oidc/token", json={"token": token, **more})

    def issued(self, **changed: Any) -> dict[str, Any]:
        """The answer to a job with these claims, which gets a token."""
        answer = self.exchange(self.issuer.sign(self.claims(**changed)))
        assert answer.status_code == 201, answer.text
        return answer.json()

    def refused(self, token: str, status: int, *words: str, **more: Any) -> None:
        """Checks that a job gets no token, one line that says why, and that none exists afterwards."""
        before = self.tokens()
        answer = self.exchange(token, **more)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        line = f"{error['message']} ({error['hint']})"
        assert all(word in line for word in words) and line.isprintable() and len(line) < LINE, line
        assert self.tokens() == before

    def tokens(self) -> set[str]:
        return {row["token"] for row in self.call("GET", "/v1/tokens?revoked=true", self.admin).json()}

    def publish(self, secret: str, lane: str | None = None) -> httpx.Response:
        made = make(self.key, name=f"n{time.time_ns()}", lane=lane)
        statement = made.manifest.statement
        query = {"namespace": statement.namespace, "name": statement.name} | ({"lane": lane} if lane else {})
        return self.call(
            "POST", "/v1/bundles", secret, params=query, content=bundle_head(made.envelope) + made.pack
        )


@contextmanager
def job_world(folder: Path, key: SigningKey) -> Iterator[World]:
    """Run a registry that accepts ``key`` as a signer, and an issuer that no rule names yet."""
    clock = Clock()
    clock.now = time.time()
    with running_issuer() as issuer, inside(folder, key, clock) as registry:
        # The time between two looks for keys passes with the same clock.
        object.__setattr__(
            registry.registry.outside, "issuers", Issuers(Destinations(private=True), clock=clock)
        )
        secret = tokens.create_token(registry.registry, None, TokenRequest("admin", "admin", ANY)).secret
        with TestClient(create_app(registry.registry), raise_server_exceptions=False) as http:
            yield World(http, issuer, clock, key, secret or "")
