"""What an operator signs is what the operator typed, whatever the registry answers.

A proxy of the tests stands before a real registry and changes some of its answers: a registry that lies.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from registry_making import Publication, Server, make, ok

from cachesvc_client.bundle.check import ExpectedStatement, check_envelope
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.store import NodeStore
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire.errors import Untrusted

REPOSITORY = Path(__file__).parents[2]
FAR = 2**53 - 2

Lie = Callable[[str, Any], Any]
"""(path of a GET without its query, true answer) -> what the client gets."""


@dataclass
class Liar:
    """A registry whose JSON answers to GET pass through ``lie``; its other answers are true."""

    server: Server
    place: Path
    lie: Lie = lambda _path, answer: answer
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def publish(self, made: Publication, head: Publication | None = None) -> Publication:
        ok(self.server.api().publish(made, head.revision if head else None))
        return made

    def admin(self, *words: object, **more: str) -> tuple[int, str]:
        """``cachesvc admin`` of an operator of this registry, in a fresh process: (exit status, output)."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
        done = subprocess.run(
            [sys.executable, "-m", "cachesvc", "admin", *map(str, words)],
            env={
                **kept,
                "HOME": str(self.place),
                "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}",
                "CACHESVC_URL": self.url,
                "CACHESVC_TOKEN": self.server.token,
                "CACHESVC_SIGNING_KEY": self.server.ready["signing_key"],
                "CACHESVC_TRUSTED_KEYS": self.server.ready["trust"],
                "CACHESVC_STORE": str(self.place / "store"),
                **more,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    def sent(self) -> list[str]:
        """What the registry was asked to change: every upload and every commit."""
        return [line for line in self.requests if not line.startswith("GET")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


@pytest.fixture
def liar(server: Server, tmp_path: Path) -> Iterator[Liar]:
    made = Liar(server, tmp_path)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            made.requests.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if "chunked" in self.headers.get("transfer-encoding", ""):
                body = b"".join(iter(self._chunk, b""))
            kept = ("authorization", "content-type", "range")
            headers = {name: self.headers[name] for name in kept if name in self.headers}
            true = httpx.request(
                self.command, server.url + self.path, headers=headers, content=body, trust_env=False
            )
            content = true.content
            if self.command == "GET" and "json" in true.headers.get("content-type", ""):
                answer = json.loads(content)
                told = made.lie(urlsplit(self.path).path, answer)
                content = content if told is answer else told if isinstance(told, bytes) else _json(told)
            self.send_response(true.status_code)
            for name, value in true.headers.items():
                if name not in ("connection", "content-length", "transfer-encoding", "content-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _chunk(self) -> bytes:
            size = int(self.rfile.readline(), 16)
            data = self.rfile.read(size)
            self.rfile.readline()
            return data

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on

        def log_message(self, *_: object) -> None:
            return

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{front.server_address[1]}"
    yield made
    front.shutdown()
    thread.join()
    front.server_close()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture
def team() -> str:
    return "n" + os.urandom(6).hex()


def listed(server: Server, made: Publication) -> dict[str, Any]:
    """The row of a listing of entries that shows this revision's entry."""
    rows = ok(server.api().http.get("/v1/entries", params={"namespace": made.manifest.statement.namespace}))
    [row] = [row for row in rows["rows"] if row["entry"] == made.manifest.entry]
    return row


def only(row: dict[str, Any], *rows: dict[str, Any]) -> Lie:
    """Whatever is searched for, these rows are found."""
    return lambda path, answer: {"rows": [row, *rows]} if path == "/v1/entries" else answer


def tags(server: Server, namespace: str) -> set[tuple[str, str]]:
    rows = ok(server.api().http.get("/v1/entries", params={"namespace": namespace}))["rows"]
    return {(row["name"], row["tag"]) for row in rows}


def test_without_a_lie_both_commands_sign(liar: Liar, team: str) -> None:
    old = liar.publish(make(liar.server.key, namespace=team, name="good"))
    new = liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), old)
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
    assert status == 0, said
    status, said = liar.admin("revisions", "rollback", old.revision.hex[:12], "--apply")
    assert status == 0, said
    assert tags(liar.server, team) == {("good", "latest"), ("good", "prod")}
    head = listed(liar.server, new)
    assert head["pack_size"] == old.manifest.pack.size and head["revision"] != old.revision


def test_tag_signs_no_other_name(liar: Liar, team: str) -> None:
    liar.publish(make(liar.server.key, namespace=team, name="good"))
    evil = liar.publish(make(liar.server.key, namespace=team, name="evil", content=b"old"))
    row = listed(liar.server, evil)
    for shown in (row, {**row, "name": "good"}):
        liar.lie = only(shown)
        status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
        assert status == 7 and f"{team}/evil:latest" in said and f"wanted: {team}/good" in said, said
    assert liar.sent() == []
    assert tags(liar.server, team) == {("good", "latest"), ("evil", "latest")}


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"namespace": "elsewhere"}, "elsewhere/good:latest"),
        ({"tag": "old"}, "good:old"),
        ({"lane": "pr-1"}, "lane pr-1"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_tag_signs_nothing_from_elsewhere(liar: Liar, team: str, other: dict[str, str], part: str) -> None:
    changed = {**other, **({"namespace": f"{team}-elsewhere"} if "namespace" in other else {})}
    made = liar.publish(make(liar.server.key, **{"namespace": team, "name": "good", **changed}))
    liar.lie = only(listed(liar.server, made))
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
    assert status == 7 and part in said, said
    assert liar.sent() == []


def test_tag_signs_nothing_of_a_signer_that_the_operator_does_not_trust(liar: Liar, team: str) -> None:
    stranger = SigningKey.generate()
    ok(liar.server.api().http.post("/v1/signers", json={"namespace": team, "key": stranger.public}))
    liar.publish(make(stranger, namespace=team, name="good"))
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
    assert status == 7 and "not trusted" in said, said
    assert liar.sent() == []


def test_tag_signs_one_revision_of_each_entry(liar: Liar, team: str) -> None:
    old = liar.publish(make(liar.server.key, namespace=team, name="good"))
    new = liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), old)
    row = listed(liar.server, new)
    liar.lie = only(row, {**row, "revision": old.revision})
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
    assert status == 7 and "twice" in said, said
    assert liar.sent() == []


def test_tag_signs_nothing_older_than_what_this_machine_has_seen(liar: Liar, team: str) -> None:
    signed = int((time.time() - 30 * 86_400) * 1000)
    old = liar.publish(make(liar.server.key, namespace=team, name="good", sequence=signed))
    new = liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), old)
    liar.lie = only({**listed(liar.server, new), "revision": old.revision})
    status, said = liar.admin("tag", f"{team}/good", "prod")
    assert status == 0 and re.search(r" 30\.0 d ago ", said), said  # the plan says how old it is
    NodeStore(liar.place / "store").marks.record_sequence(
        new.manifest.entry, new.manifest.statement.sequence, liar.server.key.public
    )
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply")
    assert status == 7 and "is older than" in said, said
    assert liar.sent() == []


def test_tag_makes_nothing_young_that_is_too_old_for_services(liar: Liar, team: str) -> None:
    """A registry shows an old head to a machine that saw no newer one: a new signature would be of today."""
    signed = int((time.time() - 400 * 86_400) * 1000)
    liar.publish(make(liar.server.key, namespace=team, name="good", sequence=signed))
    for words in ((), ("--apply",)):
        status, said = liar.admin("tag", f"{team}/good", "prod", *words)
        assert status == 7 and "signed 400.0 d ago" in said and "CACHESVC_MAX_AGE" in said, said
    assert liar.sent() == []
    status, said = liar.admin("tag", f"{team}/good", "prod", "--apply", CACHESVC_MAX_AGE="500d")
    assert status == 0, said


def test_rollback_signs_what_begins_as_it_was_typed(liar: Liar, team: str) -> None:
    good = liar.publish(make(liar.server.key, namespace=team, name="good"))
    liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), good)
    evil = liar.publish(make(liar.server.key, namespace=team, name="evil", content=b"old"))
    liar.publish(make(liar.server.key, namespace=team, name="evil", content=b"fixed"), evil)

    def completes_to_evil(path: str, answer: Any) -> Any:
        return {"digest": evil.revision} if path.startswith("/v1/digests/") else answer

    liar.lie = completes_to_evil
    status, said = liar.admin("revisions", "rollback", good.revision.hex[:12], "--apply")
    assert status == 7 and evil.revision in said and good.revision.hex[:12] in said, said
    liar.lie = lambda _path, answer: answer
    status, said = liar.admin("revisions", "rollback", good.revision.hex[:6], "--apply")
    assert status == 2 and "12 or more" in said, said
    assert liar.sent() == []


def test_rollback_signs_what_has_the_digest(liar: Liar, team: str) -> None:
    good = liar.publish(make(liar.server.key, namespace=team, name="good"))
    liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), good)
    evil = liar.publish(make(liar.server.key, namespace=team, name="evil", content=b"old"))
    liar.lie = lambda path, answer: evil.envelope if path.endswith("/envelope") else answer
    status, said = liar.admin("revisions", "rollback", good.revision, "--apply")
    assert status == 7 and f"the registry sent the envelope of {evil.revision}" in said, said
    assert liar.sent() == []


def test_rollback_stays_under_the_tag_that_was_signed(liar: Liar, team: str) -> None:
    """The registry says that the revision was one of ``prod``, where services look."""
    good = liar.publish(make(liar.server.key, namespace=team, name="good", tag="trial"))
    liar.publish(make(liar.server.key, namespace=team, name="good", tag="trial", content=b"new"), good)

    def of_prod(path: str, answer: Any) -> Any:
        return {**answer, "tag": "prod"} if path == f"/v1/revisions/{good.revision}" else answer

    liar.lie = of_prod
    status, said = liar.admin("revisions", "rollback", good.revision, "--apply")
    assert status == 0, said
    assert tags(liar.server, team) == {("good", "trial")}


def far_ahead(path: str, answer: Any) -> Any:
    """Every head says that its sequence is the highest but one."""
    if path.startswith("/v1/entries/"):
        if path.endswith("/revisions"):
            return [{**row, "sequence": FAR} for row in answer]
        return {**answer, "sequence": FAR}
    return answer


def test_nothing_is_signed_over_a_head_of_the_far_future(liar: Liar, team: str) -> None:
    old = liar.publish(make(liar.server.key, namespace=team, name="good"))
    new = liar.publish(make(liar.server.key, namespace=team, name="good", content=b"new"), old)
    liar.publish(make(liar.server.key, namespace=team, name="good", tag="prod", content=b"prod"))
    liar.lie = far_ahead
    for words in (("tag", f"{team}/good", "prod"), ("revisions", "rollback", old.revision)):
        for more in ((), ("--apply",)):
            status, said = liar.admin(*words, *more)
            assert status == 7 and str(FAR) in said and "days ahead of this machine's clock" in said, said
    assert listed(liar.server, new)["revision"] == new.revision


def test_a_builder_signs_nothing_over_a_head_of_the_far_future(liar: Liar, team: str) -> None:
    """Where the next revision would be the last one that nodes accept."""
    head = liar.publish(make(liar.server.key, namespace=team, name="good"))
    mine = make(liar.server.key, namespace=team, name="good", content=b"mine")
    (liar.place / "pack").write_bytes(mine.pack)
    path = liar.place / "mine.cachesvc"
    write_bundle(path, mine.envelope, liar.place / "pack")
    liar.lie = far_ahead
    with Remote(liar.url, liar.server.token) as remote:
        with pytest.raises(Untrusted, match="days ahead"):
            publish_bundle(remote, path, liar.server.key)
        liar.lie = lambda _path, answer: answer
        assert publish_bundle(remote, path, liar.server.key).created
    [found] = ok(liar.server.api().resolve(team, "good"))["revisions"]
    envelope, statement = found["envelope"].encode(), mine.manifest.statement
    wanted = ExpectedStatement(statement.namespace, statement.name)
    verified = check_envelope(envelope, trusted=[liar.server.key.public], expected=wanted, now=0)
    assert verified.manifest.statement.sequence < FAR
    assert verified.revision != head.revision
