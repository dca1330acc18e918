"""Fuzzes what a registry is sent: resolves, reports, claims, uploads, publications."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packing import KEY
from registry_inside import START, Clock, Inside, inside
from registry_making import FINGERPRINT, make

from cachesvc.registry.access import tokens
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ALL
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE
from cachesvc_client.wire.names import Lane

from ..in_process import Answer, Application
from .choices import json_bytes, mutate, mutate_bytes
from .parsers import Check, Parser

HOLDER = "a" * 32
WRITERS = ("write", "admin", "lane")


class Fuzzed:
    """A registry with one entry, and the requests that it would accept."""

    def __init__(self, reg: Inside, application: Application) -> None:
        self.reg, self.application = reg, application
        self.made = make(KEY, sequence=START * 1000)
        reg.publish(self.made)
        registry = reg.registry
        self.secrets = {
            role: tokens.create_token(registry, None, TokenRequest(role, role, "team", never=True)).secret
            for role in ("read", "report", "write", "admin")
        }
        lane = TokenRequest("lane", "write", "team", Lane("pr-1"), never=True)
        self.secrets["lane"] = tokens.create_token(registry, None, lane).secret
        self.value = json.loads(self.made.manifest.encode())

    def bodies(self) -> dict[str, tuple[str, Any]]:
        """Returns good requests: by path, the method and the body."""
        place = {"namespace": "team", "name": "bert", "lane": "pr-1"}
        claim = {"key": Digest.of(b"claim"), "holder": HOLDER, "fence": 1}
        outcome = {"revision": self.made.revision, "state": "inert", "files": 3, "used": 1, "saved": 1.5}
        kinds = {"inductor": {"compilations": 1, "tuning_runs": 0, "seconds": 2.0}}
        revision, node = f"/v1/revisions/{self.made.revision}", {"node": HOLDER, "fingerprint": FINGERPRINT}
        return {
            "/v1/resolve": ("POST", {**place, "fingerprint": FINGERPRINT, "tags": ["v2", "latest"]}),
            "/v1/reports": (
                "POST",
                {**node, "revisions": [outcome], "kinds": kinds, "replaces": {"revisions": [outcome]}},
            ),
            "/v1/claims": (
                "POST",
                {
                    "subject": {**place, "environment": Digest.of(b"e")},
                    "holder": HOLDER,
                    "wait": 0,
                    "seen": 0,
                },
            ),
            "/v1/claims/renew": ("POST", claim),
            "/v1/claims/release": ("POST", {"claim": claim, "done": True}),
            "/v1/uploads": ("POST", {**place, "size": 100}),
            "/v1/tokens": ("POST", {"label": "x", "role": "read", "namespace": "team", "days": 1}),
            "/v1/signers": ("POST", {"namespace": "team", "key": KEY.public, "label": "x"}),
            "/v1/namespaces/team/policy": ("PUT", {"keep_revisions": 3, "quota_bytes": 1 << 30}),
            f"{revision}/pin": ("PUT", {"why": "x"}),
        }

    def send(self, choose: random.Random, method: str, path: str, query: str, body: bytes) -> Answer:
        """Sends a request with one of the tokens, and asserts that the answer has the documented form."""
        secret = self.secrets[choose.choice(sorted(self.secrets))]
        headers = [(b"authorization", b"Bearer " + secret.encode()), (b"content-type", b"application/json")]
        if choose.randint(0, 30) == 0:
            headers[1] = (b"content-type", b"text/plain")
        self.reg.clock.now += 1  # no rate limit, and no cached answer
        answer = self.application.send(method, path, query, headers, body)
        # 507 is the documented answer of a full quota, which a changed policy may have made small.
        accepted = answer.status < 500 or answer.status == 507
        assert accepted, (method, path, query, body[:500], answer.status, answer.body[:300])
        if answer.status >= 400:
            error = answer.json["error"]
            assert set(error) == {"code", "message", "hint"} and error["code"] in ALL, error
            assert error["message"].isprintable(), error
        return answer


@contextmanager
def _fuzzed(folder: Path) -> Iterator[Fuzzed]:
    with inside(folder, KEY, Clock()) as reg:
        application = Application(reg.registry)
        with application.running():
            yield Fuzzed(reg, application)


@contextmanager
def open_requests(folder: Path) -> Iterator[Check]:
    """Yields the check of JSON requests."""
    with _fuzzed(folder) as fuzzed:
        bodies = fuzzed.bodies()

        def one(choose: random.Random) -> str:
            path = choose.choice(sorted(bodies))
            method, value = bodies[path]
            changed = mutate(choose, value)
            if isinstance(changed, dict) and changed.get("wait") != 0:
                wait = changed.get("wait")
                if isinstance(wait, (int, float)) and 0 < wait <= 30:
                    changed["wait"] = 0  # the check would wait as long as it says
            answer = fuzzed.send(choose, method, path, "", json_bytes(choose, changed))
            return _outcome(path.replace(str(fuzzed.made.revision), "_"), answer)

        yield one


@contextmanager
def open_publish(folder: Path) -> Iterator[Check]:
    """Yields the check of publications: what is accepted is stored under the name that was signed."""
    with _fuzzed(folder) as fuzzed:

        def one(choose: random.Random) -> str:
            value = _hostile_publication(choose, fuzzed)
            payload = json_bytes(choose, value)
            envelope = KEY.sign_bytes(payload, PAYLOAD_TYPE)
            pack = fuzzed.made.pack if choose.randint(0, 7) else mutate_bytes(choose, fuzzed.made.pack)
            query = {"namespace": "team", "name": "bert"}
            if choose.randint(0, 1):
                query["lane"] = choose.choice(("pr-1", "pr-2"))
            if choose.randint(0, 3) == 0:
                query.update(
                    mutate(choose, {**query, "claim": Digest.of(b"c"), "holder": HOLDER, "fence": 1})
                )
            text = "&".join(f"{_text(name)}={_text(item)}" for name, item in query.items())
            bundle = bundle_head(envelope) + pack
            answer = fuzzed.send(choose, "POST", "/v1/bundles", text, bundle)
            if answer.status == 200:
                _judge_publication(json.loads(payload), query, pack)
            return _outcome("publish", answer)

        yield one


def _hostile_publication(choose: random.Random, fuzzed: Fuzzed) -> dict[str, Any]:
    value = json.loads(json.dumps(fuzzed.value))
    said = value["statement"]
    said["sequence"] = int(fuzzed.reg.clock.now * 1000)
    said["target"] = f"t/{choose.randint(0, 3)}"
    lane = choose.choice((None, "pr-1", "pr-2"))
    if lane:
        said["lane"] = lane
    kind = choose.randint(0, 4)
    if kind == 0:
        said.update([choose.choice((("namespace", "other"), ("name", "gpt"), ("tag", "v9"), ("expires", 1)))])
    elif kind == 1:
        part = choose.choice(sorted(value))
        value[part] = mutate(choose, {"": value[part]}).get("", None)
    return value


def _judge_publication(value: dict[str, Any], query: dict[str, Any], pack: bytes) -> None:
    said = value["statement"]
    assert said["namespace"] == query["namespace"] and said["name"] == query["name"], "another name"
    assert (said.get("lane") or None) == (query.get("lane") or None), "another lane"
    assert value["pack"]["size"] == len(pack), "another size"
    assert value["pack"]["digest"] == Digest.of(pack), "another pack"


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return quote(text.encode(errors="surrogatepass"), safe="")


def _outcome(what: str, answer: Answer) -> str:
    code = answer.json["error"]["code"] if answer.status >= 400 else ""
    return f"{what} {answer.status} {code}"


PARSERS = (Parser("requests", open_requests, 5), Parser("publish", open_publish, 3))
