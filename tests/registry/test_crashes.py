"""kill -9 at every step of publish and collection, then again: the same end state, and nothing dangles.

The child process dies at its n-th step, for n from 1 until it lives through: before and after every
transaction and every call of the blob store, and between the chunks of a put.
"""

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
from registry_making import Made, make

from cachesvc.registry import audit, fsck, gc, inventory, signers, startup, tokens, upkeep
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.admin import Policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.protocol import CommitAnswer
from tests.killed import was_killed

KEY = SigningKey.generate()


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
    """Runs ``act`` in a child that dies at the step; whether it did."""

    def dying() -> None:
        with inside(folder, KEY, clock, column=column) as reg:
            fuse = Fuse(steps)
            registry = reg.registry
            index, blobs = DyingIndex(registry.index, fuse), DyingBlobs(registry.blobs, fuse)
            act(Inside(dataclasses.replace(registry, index=index, blobs=blobs), KEY, clock))

    return was_killed(dying)


def made(number: int) -> Made:
    return make(KEY, sequence=(START + number) * 1000, content=b"%d" % number * 100)


def nothing_dangles(reg: Inside) -> None:
    referenced = reg.referenced()
    assert referenced <= reg.blobs()
    with reg.registry.index.read() as unit:
        for revision, _, key, _, size in unit.inventory.packs("", 10_000):
            content = unit.objects.content(key)
            assert content is not None
            assert len(reg.pack(revision)) == size


def everything_is_collected(reg: Inside) -> None:
    reg.clock.now += 10_000
    gc.collect(reg.registry)
    assert reg.blobs() == reg.referenced()
    with reg.registry.index.read() as unit:
        assert unit.objects.loose(reg.registry.now + 10**9, 10) == []


@pytest.mark.parametrize("before", [0, 1], ids=["first", "over-a-head"])
@pytest.mark.parametrize("way", ["upload", "bundle"])
def test_publish_killed_at_each_step(tmp_path: Path, column: Column, before: int, way: str) -> None:
    old, new = made(1), made(2)

    def publish(reg: Inside, head: Digest | None) -> CommitAnswer:
        return reg.publish(new, head) if way == "upload" else reg.bundle(new, head)

    for steps in range(1, 100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        head = None
        if before:
            with inside(folder, KEY, clock, column=column) as reg:
                head = reg.publish(old).revision
        died = dies_at(steps, folder, clock, lambda reg, head=head: publish(reg, head), column)
        with inside(folder, KEY, clock, column=column) as reg:
            nothing_dangles(reg)
            answer = publish(reg, head)
            assert answer.revision == new.revision
            assert [row.revision for row in reg.resolve().revisions] == [new.revision]
            assert reg.pack(new.revision) == new.pack
            everything_is_collected(reg)
            nothing_dangles(reg)
            assert len(reg.blobs()) == 1 + before
        if not died:
            break
    assert (15 if way == "upload" else 8) < steps < 99


def test_collection_killed_at_each_step(tmp_path: Path, column: Column) -> None:
    for steps in range(1, 100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=column) as reg:
            head = None
            for number in range(1, 5):
                head = reg.publish(made(number), head).revision
            upload = reg.begin(made(9))
            reg.put(upload, made(9).pack)
            clock.now += 2 * 86_400
            gc.collect(reg.registry)
            clock.now += 1001
        died = dies_at(steps, folder, clock, lambda reg: gc.collect(reg.registry), column)
        with inside(folder, KEY, clock, column=column) as reg:
            nothing_dangles(reg)
            gc.collect(reg.registry)
            assert reg.blobs() == reg.referenced()
            assert len(reg.blobs()) == 2
            assert reg.pack(head) == made(4).pack
            assert gc.collect(reg.registry) == gc.Collected(0, 0, 0)
        if not died:
            break
    assert 10 < steps < 99


def test_retention_and_eviction_killed_at_each_step(tmp_path: Path, column: Column) -> None:
    """Whole entries go, by disuse and by bytes; at every moment an entry is there with a head, or is not."""
    for steps in range(1, 100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=column) as reg:
            for number in range(1, 4):
                head = reg.publish(line(number, 1)).revision
                reg.publish(line(number, 2), head)
            upkeep.pin(reg.registry, ROOT, line(3, 1).revision)
            clock.now += 3 * 86_400
            reg.publish(line(4, 1))
            clock.now += 7200
            policy = Policy(keep_revisions=9, unused_days=2, keep_bytes=1)
            upkeep.set_policy(reg.registry, ROOT, Namespace("team"), policy)
        died = dies_at(steps, folder, clock, lambda reg: gc.collect(reg.registry), column)
        with inside(folder, KEY, clock, column=column) as reg:
            nothing_dangles(reg)
            # Not by a resolve: what is offered is fresh, and stays.
            for number in range(1, 5):
                with contextlib.suppress(NotFound):
                    held = inventory.list_revisions(reg.registry, ROOT, line(number, 1).manifest.entry)
                    assert [row.head for row in held][:1] == [True]
                    assert len(held) == 2 or number in (1, 2, 4)
            gc.collect(reg.registry)
            assert [row.revision for row in reg.resolve().revisions] == [line(3, 2).revision]
            everything_is_collected(reg)
            assert len(reg.blobs()) == 2
        if not died:
            break
    assert 9 < steps < 99


@pytest.mark.parametrize("deed", ["repair", "delete"])
def test_deletion_and_repair_killed_at_each_step(tmp_path: Path, column: Column, deed: str) -> None:
    """A revision's bytes are lost and nobody knows another object; or an operator deletes the entry."""
    good, bad = line(1, 1), line(2, 1)

    def mend(reg: Inside) -> None:
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
            upkeep.delete_entry(reg.registry, ROOT, bad.manifest.entry, bad.revision)

    act = mend if deed == "repair" else delete
    for steps in range(1, 100):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        with inside(folder, KEY, clock, column=column) as reg:
            reg.publish(good)
            [kept] = reg.blobs()
            reg.publish(bad)
            if deed == "repair":
                for key in reg.blobs() - {kept}:
                    reg.registry.blobs.delete(key)
                reg.registry.blobs.put("packs/u-lost", [b"nobody knows"])
        died = dies_at(steps, folder, clock, act, column)
        with inside(folder, KEY, clock, column=column) as reg:
            act(reg)
            nothing_dangles(reg)
            assert [row.revision for row in reg.resolve().revisions] == [good.revision]
            everything_is_collected(reg)
            assert reg.blobs() == {kept}
            told = [row.action for row in audit.audit_page(reg.registry, ROOT).rows]
            assert told.count("entry.delete" if deed == "delete" else "fsck.repair") >= 1
        if not died:
            break
    assert (3 if deed == "delete" else 6) < steps < 99


def test_a_first_start_killed_at_each_step(tmp_path: Path, column: Column) -> None:
    """One admin's token, one key, and it may sign. (A token that was made and not told: ``--new-token``.)"""
    for steps in range(1, 20):
        folder, clock = tmp_path / str(steps), Clock()
        folder.mkdir()
        key = folder / "signing.key"
        died = dies_at(
            steps, folder, clock, lambda reg, key=key: startup.prepare_credentials(reg.registry, key), column
        )
        with inside(folder, KEY, clock, column=column) as reg:
            with reg.registry.index.read() as unit:
                done = unit.tokens.any_admin()
            welcome = startup.prepare_credentials(reg.registry, key)
            assert (welcome.secret is None) == done
            assert len(tokens.list_tokens(reg.registry, ROOT)) == 1
            assert welcome.trust in {row.key for row in signers.list_signers(reg.registry, ROOT)}
        if not died:
            break
    assert 3 < steps < 19


def line(number: int, place: int) -> Made:
    """The ``place``-th revision of the ``number``-th entry."""
    sequence = (START + place) * 1000
    return make(KEY, target=f"t{number}", sequence=sequence, content=b"%d.%d" % (number, place) * 50)
