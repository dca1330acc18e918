"""A lane's code runs in an honest publisher's process, and the lane's key is revoked: what the publisher
signed meanwhile dies at the registry, and on each node that has it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from registry_making import Publication, Server, make, ok

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.names import Namespace
from tests.e2e.registries import client

from .test_trust_root import attach, forget_answers, log_in

WHY = "leaked in a CI log"
FACTS = {"path": "aa/c" + 24 * "a" + ".picked_kernel"}
"""What a service can install without a compiler."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "registry"
    folder.mkdir()
    with Server(folder / "data").running() as running:
        yield running


def made_with_code_of_a_lane(server: Server, key: SigningKey) -> tuple[Publication, Publication]:
    """Publish a lane's revision of a key, and what the registry's own key signed where it was installed."""
    ok(server.api().http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    facts = {**FACTS, "fingerprint": dict(detect())}
    first = make(key, name="first", lane="unproven", **facts)
    ancestors = (Ancestor(first.revision, Namespace("team"), str(key.public)),)
    made = make(server.key, name="model", content=b"made with it", ancestors=ancestors, **facts)
    for one in (first, made):
        ok(server.api().publish(one))
    return first, made


def test_what_was_compiled_beside_a_lanes_code_dies_with_the_lanes_key(
    server: Server, tmp_path: Path
) -> None:
    """On a node that has it, and names its keys itself. `test_origin` shows that a publisher names a lane's
    revision as an ancestor of what it compiles beside it."""
    key, place = SigningKey.generate(), tmp_path / "node"
    first, made = made_with_code_of_a_lane(server, key)
    trusts = {"CACHESVC_TRUSTED_KEYS": str(server.key.public), "CACHESVC_OFFLINE": "7d"}
    assert attach(server, None, place, **trusts)["installed"] == [made.revision]
    words = ("admin", "signers", "revoke", str(key.public), "-n", "team", "--why", WHY, "--apply")
    done = client(*words, CACHESVC_URL=server.url, CACHESVC_TOKEN=server.token)
    assert done.returncode == 0 and "withheld too: 1 revision made with it" in done.stdout, done
    forget_answers(place)  # they are good for 5 s
    again = attach(server, None, place, **trusts)
    reason = f"made with revision {first.revision[:19]}, which was withdrawn: its signer was revoked: {WHY}"
    assert again["installed"] == [] and reason in " ".join(again["problems"]), again


def test_a_registry_that_hides_the_line_of_a_revision_gets_it_onto_no_node_with_a_pinned_root(
    server: Server, tmp_path: Path
) -> None:
    """The node has the revision, and refuses it by the trust files that it verifies itself."""
    root, place, key = log_in(server, tmp_path / "operator"), tmp_path / "node", SigningKey.generate()
    first, made = made_with_code_of_a_lane(server, key)
    assert attach(server, root, place)["installed"] == [made.revision]

    ok(server.api().http.post("/v1/revocations", json={"key": key.public, "namespace": "team", "why": WHY}))
    forget_answers(place)
    reason = f"made with revision {first.revision[:19]}, "
    seen = attach(server, root, place)
    assert seen["installed"] == [] and f"{reason}which was withdrawn" in " ".join(seen["problems"]), seen

    with closing(sqlite3.connect(server.data / "index.sqlite3")) as index, index:
        index.execute("DELETE FROM ancestors")
    ok(server.api().publish(make(server.key, name="another")))  # ends the cached answers
    forget_answers(place)
    seen = attach(server, root, place)
    assert seen["installed"] == [], seen
    assert f"{reason}signed by key {key.public.short}, which {server.url} revoked" in seen["problems"][0]
