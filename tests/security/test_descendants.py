"""A lane's code runs in an honest publisher's process, and the lane's key is revoked: what the publisher
signed meanwhile dies at the registry, and on each node that has it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from registry_making import Server, make, ok

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.ancestors import Ancestor
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace
from tests.e2e.registries import Served, client, prepare, serve

from .attacker import Made
from .test_origin import LANE, PUBLISHES, lane_signer, published, push, service
from .test_trust_root import attach, forget_answers, log_in

NAME = "team-b/descendant"
WHY = "leaked in a CI log"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Served]:
    prepare(tmp_path, SigningKey.generate().text)
    with serve(tmp_path) as served:
        yield served


@pytest.mark.compiles
def test_what_was_compiled_beside_a_lanes_code_dies_with_the_lanes_key(
    honest: Made, registry: Served, tmp_path: Path
) -> None:
    key, attacker = lane_signer(registry, tmp_path / "attacker")
    lane = honest.signed(NAME, tmp_path / "lane.cachesvc", key, lane=LANE)
    push(lane.bundle, **attacker)
    victim = {**registry.publisher, **PUBLISHES, "CACHESVC_LANE": LANE, "CACHESVC_PUBLISH_AFTER": "60"}
    victim["CACHESVC_TRUSTED_KEYS"] = f"{registry.trust},{key.public}"
    said = service(tmp_path / "victim", NAME, "compile:0", "compile:1", "publish", **victim)
    assert said["revisions"], said
    [made] = [one for one in published(registry, NAME, honest.manifest, LANE) if one.ancestors]
    lane_revision = Ancestor(Digest.of(lane.manifest.encode()), Namespace("team-b"), str(key.public))
    assert made.ancestors == (lane_revision,)

    node = {**registry.variables, "CACHESVC_LANE": LANE, "CACHESVC_LOG": "info", "CACHESVC_OFFLINE": "7d"}
    place = tmp_path / "node"
    first = service(place, NAME, "compile:1", **node)
    assert first["compilations"] == 0, first
    words = ("admin", "signers", "revoke", str(key.public), "--why", WHY, "--apply")
    done = client(*words, **registry.variables)
    assert done.returncode == 0 and "withheld too: 1 revision made with it" in done.stdout, done
    forget_answers(place)  # they are good for 5 s
    again = service(place, NAME, "compile:1", **node)
    assert again["compilations"] > 0, again
    reason = f"made with revision {lane_revision.revision[:19]}, which was withdrawn"
    assert f"{reason}: its signer was revoked: {WHY}" in (place / "log").read_text().replace("\n", " ")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "registry"
    folder.mkdir()
    with Server(folder / "data").running() as running:
        yield running


def test_a_registry_that_hides_the_line_of_a_revision_gets_it_onto_no_node_with_a_pinned_root(
    server: Server, tmp_path: Path
) -> None:
    """The node has the revision, and refuses it by the trust files that it verifies itself."""
    root, place, key = log_in(server, tmp_path / "operator"), tmp_path / "node", SigningKey.generate()
    http = server.api().http
    ok(http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    facts = {"path": "aa/c" + 24 * "a" + ".picked_kernel", "fingerprint": dict(detect())}
    first = make(key, name="first", lane="unproven", **facts)
    ancestors = (Ancestor(first.revision, Namespace("team"), str(key.public)),)
    made = make(server.key, name="model", content=b"made with it", ancestors=ancestors, **facts)
    for one in (first, made):
        ok(server.api().publish(one))
    assert attach(server, root, place)["installed"] == [made.revision]

    ok(http.post("/v1/revocations", json={"key": key.public, "namespace": "team", "why": WHY}))
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
