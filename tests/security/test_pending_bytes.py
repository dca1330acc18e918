"""What a publisher has under way counts against its own share of a quota, and against nobody else's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from registry_inside import LIMITS, ROOT, Clock, Inside, inside
from registry_making import Publication, make

from cachesvc.domain.access import Role, Token
from cachesvc.registry import publish
from cachesvc.registry.upkeep import retention
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import InvalidRequest, StorageFull
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.requests.protocol import BundleRequest

TRUNK = Token("t-trunk", "ci", Role.write, "team")
OTHER = Token("t-other", "ci", Role.write, "team")
FIRST_JOB = Token("t-job-1", "pr", Role.write, "team", Lane("pr-1"))
SECOND_JOB = Token("t-job-2", "pr", Role.write, "team", Lane("pr-1"))
SIZE = 2000
"""Bytes of content of each pack; it does not shrink."""


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def reg(tmp_path: Path, key: SigningKey) -> Iterator[Inside]:
    """A registry whose namespaces have room for two packs, and for a few bytes more."""
    size = len(_made(key, 0).pack)
    with inside(tmp_path, key, Clock(), replace(LIMITS, quota_bytes=2 * size + 100)) as registry:
        yield registry


def _made(key: SigningKey, number: int, lane: str | None = None) -> Publication:
    return make(key, target=f"t{number}", content=os.urandom(SIZE), lane=lane)


def _received(reg: Inside, made: Publication, token: Token) -> str:
    upload = reg.begin(made, token)
    reg.put(upload, made.pack, token)
    return upload


def _stored(reg: Inside) -> int:
    return sum(facts.size for facts in reg.registry.packs.blobs.list())


@pytest.mark.parametrize("second", [TRUNK, OTHER], ids=["one-token", "two-tokens"])
def test_two_publishers_at_once_succeed_where_both_fit(reg: Inside, second: Token) -> None:
    """Both have begun and sent all bytes before either commits; a third that does not fit is refused."""
    packs = [_made(reg.key, 1), _made(reg.key, 2)]
    uploads = [_received(reg, made, token) for made, token in zip(packs, (TRUNK, second), strict=True)]
    for upload, made, token in zip(uploads, packs, (TRUNK, second), strict=True):
        assert reg.commit(upload, made, token=token).created
    with pytest.raises(StorageFull, match="of its quota"):
        reg.begin(_made(reg.key, 3), TRUNK)


def test_publishers_of_bundles_in_threads_succeed_where_both_fit(reg: Inside) -> None:
    packs = [_made(reg.key, 1), _made(reg.key, 2)]
    created: list[bool] = []
    threads = [
        threading.Thread(target=lambda made=made: created.append(reg.bundle(made, token=TRUNK).created))
        for made in packs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == [True, True]


def test_a_lane_with_uploads_under_way_takes_no_room_from_the_trunk(reg: Inside) -> None:
    for number in range(2):
        _received(reg, _made(reg.key, number, "pr-1"), FIRST_JOB)
    for number in (3, 4):
        made = _made(reg.key, number)
        assert reg.commit(_received(reg, made, TRUNK), made, token=TRUNK).created


def test_a_token_with_uploads_under_way_takes_no_room_from_another(reg: Inside) -> None:
    for number in range(2):
        _received(reg, _made(reg.key, number), OTHER)
    for number in (3, 4):
        assert reg.bundle(_made(reg.key, number), token=TRUNK).created


@pytest.mark.parametrize("second", [FIRST_JOB, SECOND_JOB], ids=["one-job", "a-job-with-a-token-of-its-own"])
def test_a_lane_stores_no_more_than_the_quota_leaves_without_a_commit(reg: Inside, second: Token) -> None:
    """Its uploads and its bundles count together, however many tokens its jobs have."""
    for number in range(2):
        _received(reg, _made(reg.key, number, "pr-1"), FIRST_JOB)
    with pytest.raises(StorageFull, match=r"lane pr-1 has \d+ bytes under way in namespace team"):
        _received(reg, _made(reg.key, 2, "pr-1"), second)
    with pytest.raises(StorageFull, match="under way"):
        reg.bundle(_made(reg.key, 3, "pr-1"), token=second)
    assert _stored(reg) <= reg.registry.limits.quota_bytes


def test_a_token_stores_no_more_than_what_was_committed_leaves(reg: Inside) -> None:
    assert reg.bundle(_made(reg.key, 1), token=OTHER).created
    _received(reg, _made(reg.key, 2), TRUNK)
    with pytest.raises(StorageFull, match="token t-trunk has"):
        _received(reg, _made(reg.key, 3), TRUNK)
    assert _stored(reg) <= reg.registry.limits.quota_bytes


def test_uploads_that_are_ended_again_and_again_store_no_more_than_the_quota_leaves(reg: Inside) -> None:
    """What was ended lies in the store until collection, which the next upload does not wait for."""
    for number in range(6):
        made = _made(reg.key, number)
        publish.abort(reg.registry, TRUNK, _received(reg, made, TRUNK))
        assert _stored(reg) <= reg.registry.limits.quota_bytes
    assert reg.bundle(_made(reg.key, 7), token=TRUNK).created


def test_a_transfer_that_is_sent_again_and_again_stores_one_pack_more_at_most(reg: Inside) -> None:
    made = _made(reg.key, 1)
    assert reg.bundle(_made(reg.key, 2), token=TRUNK).created
    upload = _received(reg, made, TRUNK)
    for _ in range(4):
        reg.put(upload, made.pack, TRUNK)
        assert _stored(reg) <= reg.registry.limits.quota_bytes + len(made.pack)
    assert reg.commit(upload, made, token=TRUNK).created


def test_a_publisher_whose_bundle_was_cut_off_sends_it_again(reg: Inside) -> None:
    assert reg.bundle(_made(reg.key, 1), token=TRUNK).created
    made = _made(reg.key, 2)
    statement = made.manifest.statement
    request = BundleRequest(statement.namespace, statement.name, statement.lane)
    data = bundle_head(made.envelope) + made.pack
    with pytest.raises(InvalidRequest):
        publish.bundle(reg.registry, TRUNK, request, iter([data[:-10]]))
    assert reg.bundle(made, token=TRUNK).created


def test_what_is_left_behind_counts_until_its_lease_is_over(reg: Inside) -> None:
    for number in range(2):
        _received(reg, _made(reg.key, number), TRUNK)
    reg.clock.now += reg.registry.limits.lease_seconds + 1
    assert reg.bundle(_made(reg.key, 3), token=TRUNK).created
    assert _stored(reg) <= reg.registry.limits.quota_bytes


def test_a_deleted_entry_makes_room_although_its_bytes_stay_for_the_grace(reg: Inside) -> None:
    packs = [_made(reg.key, 1), _made(reg.key, 2)]
    for made in packs:
        assert reg.commit(_received(reg, made, TRUNK), made, token=TRUNK).created
    retention.delete_entry(reg.registry, ROOT, packs[0].manifest.entry, None)
    made = _made(reg.key, 3)
    assert reg.commit(_received(reg, made, TRUNK), made, token=TRUNK).created
