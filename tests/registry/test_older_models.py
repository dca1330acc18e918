"""Test what a registry does with the entries of a target's former models, in this process with a clock of the
test's: a start is not offered them, it finds them by their keys, and they go when no start has used them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_inside import LIMITS, ROOT, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.domain.retention import Retention
from cachesvc.registry import inventory, reports
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import gc, quarantine
from cachesvc.registry.upkeep import retention as changes
from cachesvc.schema.access import SignerRecord
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.requests.protocol import FEW_RESOLVED
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

DAY = 86_400
KEYS = {name: name.ljust(51, "x") for name in ("old", "new")}


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        limits = dataclasses.replace(LIMITS, retention=Retention(older_model_days=14))
        registry.registry = dataclasses.replace(registry.registry, limits=limits)
        yield registry


def publish(reg: Inside, model: str, **more: Any) -> Publication:
    """Publish an entry of a model a minute after the one before."""
    reg.clock.now += 60
    path = f"fxgraph/xx/{KEYS[model]}/{'a' * 52}"
    values = {"path": path, "content": model.encode(), "model": model.encode(), **more}
    one = make(reg.key, sequence=int(reg.clock.now * 1000), **values)
    reg.publish(one)
    return one


def offered(reg: Inside, **more: Any) -> list[Digest]:
    """Return the revisions that a start restores at once."""
    return [row.revision for row in reg.resolve(**{"most": FEW_RESOLVED, **more}).revisions]


def report(reg: Inside, one: Publication, state: str) -> None:
    rows = (RevisionReport(one.revision, state, files=1, used=int(state == "hit")),)
    assert reports.report(reg.registry, ROOT, ReportRequest("0" * 32, FINGERPRINT, rows)).counted == 1


def removals(reg: Inside) -> list[Digest]:
    return [row.revision for row in gc.plan(reg.registry, ROOT).removals]


def last_used(reg: Inside, one: Publication) -> int | None:
    return inventory.get_revision(reg.registry, ROOT, one.revision).last_used


def test_a_start_is_offered_the_newest_model_and_finds_the_others_by_key(reg: Inside) -> None:
    old, new = publish(reg, "old"), publish(reg, "new")
    answer = reg.resolve(most=FEW_RESOLVED)
    assert [row.revision for row in answer.revisions] == [new.revision]
    assert (answer.more, answer.older) == (None, 1)
    # A service that was rolled back: by what its compiler looks up, by what it used, and by its model.
    assert offered(reg, keys=(KEYS["old"],)) == [old.revision]
    assert offered(reg, entries=(old.manifest.entry,)) == [old.revision]
    assert offered(reg, model=old.manifest.workload.model) == [old.revision, new.revision]
    # The ranks of a job, which ask for no key, and a question that says no number.
    assert offered(reg, most=None) == [new.revision, old.revision]


def test_what_no_key_finds_is_offered_whatever_its_model(reg: Inside) -> None:
    """A library's files are searched for before any graph is compiled."""
    old = publish(reg, "old", path="kernels/old.so")
    new = publish(reg, "new")
    assert offered(reg) == [new.revision, old.revision]
    assert reg.resolve(most=FEW_RESOLVED).older is None


def test_another_target_lane_or_environment_makes_no_entry_old(reg: Inside) -> None:
    old = publish(reg, "old")
    other = publish(reg, "new", target="other")
    publish(reg, "new", fingerprint={**FINGERPRINT, "torch": "2.14.0"})
    lane = publish(reg, "new", lane="trial")
    assert offered(reg) == [other.revision, old.revision]
    assert offered(reg, lane=Lane("trial")) == [lane.revision, other.revision, old.revision]
    reg.clock.now += 20 * DAY
    assert removals(reg) == []


def test_a_model_of_which_the_newer_one_is_withheld_is_not_old(reg: Inside) -> None:
    old, new = publish(reg, "old"), publish(reg, "new")
    quarantine.withdraw(reg.registry, ROOT, new.revision, "wrong numbers")
    assert offered(reg) == [old.revision]
    reg.clock.now += 20 * DAY
    assert removals(reg) == []


def test_an_older_model_goes_after_two_weeks_without_a_start_that_used_it(reg: Inside) -> None:
    old, new = publish(reg, "old"), publish(reg, "new")
    reg.clock.now += 13 * DAY
    assert removals(reg) == []
    report(reg, old, "hit")
    report(reg, old, "unused")
    for _ in range(13):
        reg.clock.now += DAY
        offered(reg)
        offered(reg, most=None)
        report(reg, old, "unused")  # installed, and no file of it was used
        report(reg, new, "hit")
    assert removals(reg) == []
    reg.clock.now += DAY + 1
    plan = gc.plan(reg.registry, ROOT)
    assert [(row.revision, row.whole, row.why) for row in plan.removals] == [
        (old.revision, True, "a newer model replaced it, and no start used it for 14 days")
    ]
    assert gc.collect(reg.registry).entries == 1
    assert offered(reg, most=None) == [new.revision]
    reg.clock.now += 100 * DAY
    assert removals(reg) == []  # the newest model of a target stays


@pytest.mark.parametrize("asks", [{"keys": (KEYS["old"],)}, {"model": Digest.of(b"old")}])
def test_an_older_model_that_is_asked_for_stays(reg: Inside, asks: dict[str, Any]) -> None:
    """By a service without the role *report* as well."""
    old = publish(reg, "old")
    publish(reg, "new")
    for _ in range(4):
        reg.clock.now += 10 * DAY
        assert old.revision in offered(reg, **asks)
        assert last_used(reg, old) == reg.registry.now
        assert removals(reg) == []


def test_two_weeks_begin_when_the_newer_model_came(reg: Inside) -> None:
    """A service that runs for a month without a start may be rolled back the day after."""
    old = publish(reg, "old")
    reg.clock.now += 30 * DAY
    first = publish(reg, "new")
    assert removals(reg) == []
    reg.clock.now += 10 * DAY
    again = make(
        reg.key, sequence=int(reg.clock.now * 1000), model=b"new", content=b"again", path="fxgraph/yy"
    )
    reg.publish(again, first.revision)  # of the same model: it does not begin again
    reg.clock.now += 4 * DAY + 1
    assert removals(reg) == [old.revision]


def test_a_pin_keeps_an_older_model(reg: Inside) -> None:
    old = publish(reg, "old")
    publish(reg, "new")
    changes.pin(reg.registry, ROOT, old.revision)
    reg.clock.now += 20 * DAY
    assert removals(reg) == []


def test_a_signer_that_was_removed_makes_no_model_old(reg: Inside) -> None:
    old = publish(reg, "old")
    other = SigningKey.generate()
    signers.add_signer(reg.registry, ROOT, SignerRecord(old.manifest.statement.namespace, other.public))
    reg.clock.now += 60
    new = make(other, sequence=int(reg.clock.now * 1000), model=b"new", content=b"new", path="fxgraph/zz")
    reg.publish(new)
    signers.remove_signer(reg.registry, ROOT, old.manifest.statement.namespace, other.public)
    reg.clock.now += 20 * DAY
    assert removals(reg) == []
