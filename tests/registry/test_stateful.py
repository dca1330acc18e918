"""Test publishing, resolving, time and collection in any order, against a dict as the model."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from registry_inside import ROOT, Clock, inside
from registry_making import Publication, make

from cachesvc.index.engine import open_sqlite
from cachesvc.registry import publish
from cachesvc.registry.upkeep import gc
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Corrupt, HeadConflict, InvalidRequest, LeaseLost, NotFound

KEY = SigningKey.generate()
TARGETS = ("a", "b")


@functools.cache
def _migrated() -> Path:
    """Return an empty index, made once: otherwise migrations would take most of the time."""
    folder = Path(tempfile.mkdtemp(prefix="cachesvc-stateful-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_sqlite(folder / "index.sqlite3").close()
    return folder / "index.sqlite3"


class Lifecycle(RuleBasedStateMachine):
    """Models the registry: the line of revisions and their times for each target, and the contents of each
    upload."""

    uploads = Bundle("uploads")

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.copyfile(_migrated(), folder / "index.sqlite3")
        self.clock = Clock()
        self.reg = self.stack.enter_context(inside(folder, KEY, self.clock))
        self.lines: dict[str, list[tuple[Publication, int]]] = {target: [] for target in TARGETS}
        self.aborted: set[str] = set()
        self.count = 0

    def teardown(self) -> None:
        self.stack.close()

    def new(self, target: str) -> Publication:
        self.count += 1
        # Sequences rise with the clock, and never repeat.
        sequence = int(self.clock.now * 1000) + self.count
        return make(KEY, target=target, sequence=sequence, content=b"%d" % self.count * 30)

    def head(self, target: str) -> Publication | None:
        return self.lines[target][-1][0] if self.lines[target] else None

    @rule(target=uploads, to=st.sampled_from(TARGETS), put=st.booleans())
    def begin(self, to: str, put: bool) -> tuple[str, Publication, str, float, bool]:
        publication = self.new(to)
        upload = self.reg.begin(publication)
        if put:
            self.reg.put(upload, publication.pack)
        return upload, publication, to, self.clock.now, put

    @rule(pending=uploads, right=st.booleans())
    def commit(self, pending: tuple[str, Publication, str, float, bool], right: bool) -> None:
        upload, publication, to, began, put = pending
        head = self.head(to)
        named = head.revision if head and right else None
        try:
            answer = self.reg.commit(upload, publication, named)
        except HeadConflict:
            stale = (
                head is not None
                and publication.manifest.statement.sequence <= head.manifest.statement.sequence
            )
            assert stale or (head is not None and not right)
        except (LeaseLost, NotFound):
            assert upload in self.aborted or self.clock.now - began >= 100
        except InvalidRequest:
            assert not put
        else:
            assert answer.created == (head is None or head.revision != publication.revision)
            if answer.created:
                assert put
                self.lines[to].append((publication, self.reg.registry.now))

    @rule(to=st.sampled_from(TARGETS), right=st.booleans(), whole=st.booleans())
    def publish_whole(self, to: str, right: bool, whole: bool) -> None:
        publication, head = self.new(to), self.head(to)
        sent = publication if whole else dataclasses.replace(publication, pack=publication.pack[:-1] + b"?")
        try:
            answer = self.reg.bundle(sent, head.revision if head and right else None)
        except HeadConflict:
            assert head is not None and not right
        except Corrupt:
            assert not whole
        else:
            assert answer.created and whole
            self.lines[to].append((publication, self.reg.registry.now))

    @rule(pending=uploads)
    def abort(self, pending: tuple[str, Publication, str, float, bool]) -> None:
        with contextlib.suppress(NotFound):
            publish.abort(self.reg.registry, ROOT, pending[0])
        self.aborted.add(pending[0])

    @rule(seconds=st.sampled_from([1, 50, 101, 1001, 90_000]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def collect(self) -> None:
        gc.collect(self.reg.registry)
        for line in self.lines.values():
            old = self.reg.registry.clock() - 86_400
            line[:] = [row for place, row in enumerate(line) if place >= len(line) - 2 or row[1] >= old]

    @rule()
    def collect_everything(self) -> None:
        self.clock.now += 200
        self.collect()
        self.clock.now += 2000
        self.collect()
        assert self.reg.blobs() == self.reg.referenced()

    @invariant()
    def heads_are_resolved(self) -> None:
        expected = {line[-1][0].revision for line in self.lines.values() if line}
        if not expected:
            with pytest.raises(NotFound):
                self.reg.resolve()
            return
        assert {row.revision for row in self.reg.resolve().revisions} == expected

    @invariant()
    def no_revision_names_an_absent_byte(self) -> None:
        for line in self.lines.values():
            for publication, _ in line:
                assert self.reg.pack(publication.revision) == publication.pack
        assert self.reg.referenced() <= self.reg.blobs()


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
