"""A trusted key signs a sequence of the far future, or an old revision comes back: what a node has seen of
each signer decides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from registry_making import Publication, Server, make, ok, refused

from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.store import NodeStore
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.trust_root.registry_metadata import refresh_policy
from cachesvc_client.wire.errors import Untrusted

from .test_trust_root import attach, forget_answers

FAR = 2**53 - 1
"""The highest sequence that a manifest can have."""
HOUR = 3_600_000
HONEST, OTHER = SigningKey.generate(), SigningKey.generate()


def test_a_trusted_key_that_signs_the_highest_sequence_keeps_no_honest_signer_out(tmp_path: Path) -> None:
    """The registry refuses it, a bundle file or a registry that was taken over does not. A node refuses it
    too, whose clock says when it is; one that took it under another clock takes the honest signer's next."""
    with Server(tmp_path / "data").running() as server:
        api, place = server.api(), tmp_path / "node"
        ok(api.http.post("/v1/signers", json={"namespace": "team", "key": OTHER.public}))
        facts: dict[str, Any] = {"name": "model", "path": "aa/c" + 24 * "a" + ".picked_kernel"}
        facts["fingerprint"] = dict(detect())
        hostile = make(OTHER, sequence=FAR, **facts)
        refused(api.publish(hostile), 422, "invalid", "in the future")
        place.mkdir()
        store = NodeStore(place / "home/.cache/cachesvc")
        assert not accepts(store, hostile, server.key, OTHER)
        assert store.marks.sequences(hostile.manifest.entry) == {}
        remember(store, hostile, OTHER)
        trusts = {"CACHESVC_TRUSTED_KEYS": f"{server.key.public},{OTHER.public}"}
        honest = make(server.key, content=b"honest", **facts)
        ok(api.publish(honest))
        seen = attach(server, None, place, **trusts)
        assert seen["installed"] == [honest.revision], seen
        assert set(store.marks.sequences(honest.manifest.entry)) == {server.key.public, OTHER.public}


def accepts(store: NodeStore, made: Publication, *keys: SigningKey, policy: Any = None) -> bool:
    """Have a node that trusts the keys look at a revision, and remember it."""
    acceptance = Acceptance([TrustedKey(key.public) for key in keys], policy)
    try:
        accepted = acceptance.accept(made.envelope, None, store.marks)
    except Untrusted as error:
        assert any(words in str(error) for words in ("is older than", "after this machine's time")), error
        return False
    manifest = accepted.manifest
    store.marks.record_sequence(manifest.entry, manifest.statement.sequence, accepted.signer)
    return True


def remember(store: NodeStore, made: Publication, key: SigningKey) -> None:
    """Have a node remember a revision of the future, as one does whose clock was ahead then."""
    store.marks.record_sequence(made.manifest.entry, made.manifest.statement.sequence, key.public)


def at(key: SigningKey, sequence: int) -> Publication:
    return make(key, sequence=sequence, content=str(sequence).encode())


def test_an_older_revision_of_any_signer_that_counts_still_is_refused(tmp_path: Path) -> None:
    now, store = int(time.time() * 1000), NodeStore(tmp_path)
    both = (HONEST, OTHER)
    assert accepts(store, at(HONEST, now - 10), *both)
    assert accepts(store, at(OTHER, now), *both)
    assert not accepts(store, at(HONEST, now - 5), *both)
    assert not accepts(store, at(OTHER, now - 1), *both)
    # A key that counts no more keeps nobody out; what its signer saw of itself stays.
    assert accepts(store, at(HONEST, now - 5), HONEST)
    assert not accepts(store, at(HONEST, now - 6), HONEST)
    assert not accepts(store, at(HONEST, now - 4), *both)


def test_a_sequence_of_the_future_counts_for_its_own_signer_alone(tmp_path: Path) -> None:
    now, store = int(time.time() * 1000), NodeStore(tmp_path)
    both = (HONEST, OTHER)
    for sequence in (now + 2 * 86_400_000, FAR):
        assert not accepts(store, at(OTHER, sequence), *both)
        remember(store, at(OTHER, sequence), OTHER)
        assert not accepts(store, at(OTHER, now), *both)
        assert accepts(store, at(HONEST, now), *both)
    assert not accepts(store, at(HONEST, now - 1), *both)


DAMAGED = {
    "empty": "",
    "a word": "x",
    "no key": "ed25519:zzz 9\n",
    "no number": f"{OTHER.public} nan\n",
    "too long": "9" * 5000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_what_a_node_wrote_of_sequences_and_is_damaged_stops_nothing(tmp_path: Path, text: str) -> None:
    store, made = NodeStore(tmp_path), at(HONEST, int(time.time() * 1000))
    assert accepts(store, made, HONEST)
    (tmp_path / "v1/seen" / made.manifest.entry.hex).write_text(text)
    assert accepts(store, made, HONEST)


@pytest.mark.parametrize("ahead", [20 * HOUR, FAR], ids=["within-a-day", "highest"])
def test_a_key_that_the_pinned_root_revokes_keeps_no_honest_signer_out(tmp_path: Path, ahead: int) -> None:
    """What it signed stood on the node before its revocation. The root names who counts, and the node forgets
    the sequence of the others; the revoked key's own revision stays refused."""
    with Server(tmp_path / "data").running() as server:
        api, place, root = server.api(), tmp_path / "node", server.pin_root(tmp_path)
        ok(api.http.post("/v1/signers", json={"namespace": "team", "key": OTHER.public}))
        facts: dict[str, Any] = {"name": "model", "path": "aa/c" + 24 * "a" + ".picked_kernel"}
        facts["fingerprint"] = dict(detect())
        hostile = make(OTHER, sequence=min(FAR, int(time.time() * 1000) + ahead), **facts)
        place.mkdir()
        store = NodeStore(place / "home/.cache/cachesvc")
        remember(store, hostile, OTHER)
        honest = make(server.key, content=b"honest", **facts)
        ok(api.publish(honest))
        seen = attach(server, root, place)
        assert (seen["installed"] == []) == (ahead < FAR), "within a day's clock it counts while its key does"
        done = {"key": OTHER.public, "namespace": "team", "why": "it signs the future"}
        ok(api.http.post("/v1/revocations", json=done))
        forget_answers(place)
        seen = attach(server, root, place)
        assert seen["installed"] == [honest.revision], seen
        with Remote(server.url, server.token) as remote:
            policy, _ = refresh_policy(root, store.trust_folder, remote)
        with pytest.raises(Untrusted, match=r"revoked on|after this machine's time"):
            Acceptance((), policy).accept(hostile.envelope, None, store.marks)
