"""Test kill -9 at every step of publish and collection: a second run ends in the same state, and nothing
dangles.

The child process dies at its n-th step, for n from 1 until it lives through: before and after every
transaction and every call of the blob store, and between the chunks of a put. Over real services, `make test`
takes every fifth step, and `make test-all` all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_inside import EMBEDDED, ROOT, START, Clock, Column, Inside, inside
from registry_making import Publication, make

from cachesvc.registry import audit, inventory, startup
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Packs
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import fsck, gc, retention
from cachesvc.schema.namespaces import Policy
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.protocol import CommitAnswer
from tests.killed import was_killed

KEY = SigningKey.generate()


@dataclasses.dataclass(frozen=True)
class Crashes:
    """Stands for the backends, and for the steps at which the child dies: each, or one of so many."""

    column: Column
    every: int

    def steps(self, end: int) -> range:
        return range(1, end, self.every)


OVER_SERVICES = [
    pytest.param(5, id="production", marks=pytest.mark.services),
    pytest.param(1, id="production-each-step", marks=[pytest.mark.services, pytest.mark.long]),
]


@pytest.fixture(params=["embedded", *OVER_SERVICES])
def crashes(request: pytest.FixtureRequest) -> Crashes:
    if request.param == "embedded":
        return Crashes(EMBEDDED, 1)
    return Crashes(request.getfixturevalue("services"), request.param)


class Fuse:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingIndex:
    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse
        self.read = inner.read

    def write(self) -> contextlib.AbstractContextManager[Any]:
        return self._dying(self._inner.write)

    def write_once(self) -> contextlib.AbstractContextManager[Any]:
        return self._dying(self._inner.write_once)

    @contextlib.contextmanager
    def _dying(self, write: Callable[[], Any]) -> Iterator[Any]:
        self._fuse.step()
        with write() as unit:
            yield unit
            self._fuse.step()
        self._fuse.step()


class DyingBlobs:
    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse
        self.list, self.open, self.size = inner.list, inner.open, inner.size

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        def stepping() -> Iterator[bytes]:
            for chunk in chunks:
                self._fuse.step()
                yield chunk
            self._fuse.step()

        size = self._inner.put(key, stepping())
        self._fuse.step()
        return size

    def delete(self, key: str) -> None:
        self._fuse.step()
        self._inner.delete(key)
        self._fuse.step()


def dies_at(
    steps: int, folder: Path, clock: Clock, act: Callable[[Inside], object], column: Column = EMBEDDED
) -> bool:
    """Run ``act`` in a child that dies at the step. Return whether it died."""

    def dying() -> None:
        with inside(folder, KEY, clock, column=column) as reg:
            fuse = Fuse(steps)
            registry = reg.registry
            index, blobs = DyingIndex(registry.index, fuse), DyingBlobs(registry.packs.blobs, fuse)
            act(Inside(dataclasses.replace(registry, index=index, packs=Packs(blobs)), KEY, clock))

    return was_killed(dying)


def new_publication(number: int) -> Publication:
    return make(KEY, sequence=(START + number) * 1000, content=b"%d" % number * 100)


def assert_nothing_dangles(reg: Inside) -> None:
    referenced = reg.referenced()
    assert referenced <= reg.blobs()
    with reg.registry.index.read() as unit:
        for revision, _, key, _, size in unit.inventory.packs("", 10_000):
            content = unit.objects.content(key)
            assert content is not None
            assert len(reg.pack(revision)) == size


def assert_everything_is_collected(reg: Inside) -> None:
    reg.clock.now += 10_000
    gc.collect(reg.registry)
    assert reg.blobs() == reg.referenced()
    with reg.registry.index.read() as unit:
        assert unit.objects.loose(reg.registry.now + 10**9, 10) == []


@pytest.mark.parametrize("before", [0, 1], ids=["first", "over-a-head"])
@pytest.mark.parametrize("way", ["upload", "bundle"])
def test_publish_killed_at_each_step(tmp_path: Path, crashes: Crashes, before: int, way: str) -> None:
    old, new = new_publication(1), new_publication(2)

    def publish(reg: Inside, head: Digest | None) -> CommitAnswer:
        return reg.publish(new, head) if way == "upload" else reg.bundle(new, head)

    for steps in crashes.steps(100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        head = None
        if before:
            with inside(folder, KEY, clock, column=crashes.column) as reg:
                head = reg.publish(old).revision
        died = dies_at(steps, folder, clock, lambda reg, head=head: publish(reg, head), crashes.column)
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            assert_nothing_dangles(reg)
            answer = publish(reg, head)
            assert answer.revision == new.revision
            assert [row.revision for row in reg.resolve().revisions] == [new.revision]
            assert reg.pack(new.revision) == new.pack
            assert_everything_is_collected(reg)
            assert_nothing_dangles(reg)
            assert len(reg.blobs()) == 1 + before
        if not died:
            break
    assert (15 if way == "upload" else 8) < steps < 99


def test_collection_killed_at_each_step(tmp_path: Path, crashes: Crashes) -> None:
    for steps in crashes.steps(100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            head = None
            for number in range(1, 5):
                head = reg.publish(new_publication(number), head).revision
            upload = reg.begin(new_publication(9))
            reg.put(upload, new_publication(9).pack)
            clock.now += 2 * 86_400
            gc.collect(reg.registry)
            clock.now += 1001
        died = dies_at(steps, folder, clock, lambda reg: gc.collect(reg.registry), crashes.column)
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            assert_nothing_dangles(reg)
            gc.collect(reg.registry)
            assert reg.blobs() == reg.referenced()
            assert len(reg.blobs()) == 2
            assert reg.pack(head) == new_publication(4).pack
            assert gc.collect(reg.registry) == gc.Collected(0, 0, 0)
        if not died:
            break
    assert 10 < steps < 99


def test_retention_and_eviction_killed_at_each_step(tmp_path: Path, crashes: Crashes) -> None:
    """Whole entries go away, by disuse and by bytes. At every moment an entry is there with a head, or is not
    there."""
    for steps in crashes.steps(100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            for number in range(1, 4):
                head = reg.publish(line(number, 1)).revision
                reg.publish(line(number, 2), head)
            retention.pin(reg.registry, ROOT, line(3, 1).revision)
            clock.now += 3 * 86_400
            reg.publish(line(4, 1))
            clock.now += 7200
            policy = Policy(keep_revisions=9, unused_days=2, keep_bytes=1)
            retention.set_policy(reg.registry, ROOT, Namespace("team"), policy)
        died = dies_at(steps, folder, clock, lambda reg: gc.collect(reg.registry), crashes.column)
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            assert_nothing_dangles(reg)
            # A resolve would make the revision fresh, and fresh revisions stay.
            for number in range(1, 5):
                with contextlib.suppress(NotFound):
                    revisions = inventory.list_revisions(reg.registry, ROOT, line(number, 1).manifest.entry)
                    assert [row.head for row in revisions][:1] == [True]
                    assert len(revisions) == 2 or number in (1, 2, 4)
            gc.collect(reg.registry)
            assert [row.revision for row in reg.resolve().revisions] == [line(3, 2).revision]
            assert_everything_is_collected(reg)
            assert len(reg.blobs()) == 2
        if not died:
            break
    assert 9 < steps < 99


@pytest.mark.parametrize("action", ["repair", "delete"])
def test_deletion_and_repair_killed_at_each_step(tmp_path: Path, crashes: Crashes, action: str) -> None:
    """Either a revision loses its bytes and nobody has another copy, or an operator deletes the entry."""
    good, bad = line(1, 1), line(2, 1)

    def repair(reg: Inside) -> None:
        cursor = None
        while True:
            page = fsck.check(reg.registry, ROOT, cursor, True)
            for finding in page.findings:
                fsck.repair(reg.registry, ROOT, finding)
            cursor = page.next
            if cursor is None:
                return

    def delete(reg: Inside) -> None:
        with contextlib.suppress(NotFound):
            retention.delete_entry(reg.registry, ROOT, bad.manifest.entry, bad.revision)

    act = repair if action == "repair" else delete
    for steps in crashes.steps(100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            reg.publish(good)
            [blob] = reg.blobs()
            reg.publish(bad)
            if action == "repair":
                for key in reg.blobs() - {blob}:
                    reg.registry.packs.blobs.delete(key)
                reg.registry.packs.blobs.put("packs/u-lost", [b"nobody knows"])
        died = dies_at(steps, folder, clock, act, crashes.column)
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            act(reg)
            assert_nothing_dangles(reg)
            assert [row.revision for row in reg.resolve().revisions] == [good.revision]
            assert_everything_is_collected(reg)
            assert reg.blobs() == {blob}
            actions = [row.action for row in audit.audit_page(reg.registry, ROOT).rows]
            assert actions.count("entry.delete" if action == "delete" else "fsck.repair") >= 1
        if not died:
            break
    assert (3 if action == "delete" else 6) < steps < 99


def test_a_first_start_killed_at_each_step(tmp_path: Path, crashes: Crashes) -> None:
    """The start makes one admin token and one key, and lets the key sign. A lost token is replaced with
    ``--new-token``."""
    for steps in crashes.steps(20):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        key = folder / "signing.key"
        died = dies_at(
            steps,
            folder,
            clock,
            lambda reg, key=key: startup.prepare_credentials(reg.registry, key),
            crashes.column,
        )
        with inside(folder, KEY, clock, column=crashes.column) as reg:
            with reg.registry.index.read() as unit:
                result = unit.tokens.any_admin()
            welcome = startup.prepare_credentials(reg.registry, key)
            assert (welcome.secret is None) == result
            assert len(tokens.list_tokens(reg.registry, ROOT)) == 1
            assert welcome.trust in {row.key for row in signers.list_signers(reg.registry, ROOT)}
        if not died:
            break
    assert 3 < steps < 19


def line(number: int, place: int) -> Publication:
    """Return the ``place``-th revision of the ``number``-th entry."""
    sequence = (START + place) * 1000
    return make(KEY, target=f"t{number}", sequence=sequence, content=b"%d.%d" % (number, place) * 50)
