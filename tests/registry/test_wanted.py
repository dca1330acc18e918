"""Test what the registry says services wanted: cold starts, each counted once, judged by what is offered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, make

from cachesvc.api.metrics import Metrics
from cachesvc.domain.access import Role, Token
from cachesvc.domain.retention import DAY
from cachesvc.domain.usefulness import COLD_MODELS, KEPT_DAYS, NAMESPACE_COLD
from cachesvc.registry import inventory, misses, reports, wanted
from cachesvc.registry.upkeep import gc
from cachesvc.schema.wanted import MISSES, MissesAnswer, WantedAnswer
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, NotFound
from cachesvc_client.wire.names import Lane, Name, Namespace
from cachesvc_client.wire.partitions import known_partition
from cachesvc_client.wire.requests.reports import (
    ColdName,
    ColdStart,
    EarlierReport,
    KindWork,
    ReportRequest,
    RevisionReport,
)

NAME = Name.parse("team/bert")
NEW_TORCH = {**FINGERPRINT, "torch": "2.15.0"}
MODEL = Digest.of(b"model")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def start(
    reg: Inside,
    *names: str,
    by: Token = ROOT,
    lane: str | None = None,
    models: tuple[Digest, ...] = (),
    fingerprint: dict[str, Any] = NEW_TORCH,
    seconds: float = 30.0,
    replaces: float | None = None,
) -> ReportRequest:
    """Report a start that was offered nothing under ``names`` and compiled for ``seconds``."""
    parsed = [Name.parse(name) for name in names or ("team/bert",)]
    cold = ColdStart(
        tuple(ColdName(one.namespace, one.name, one.tag, Lane(lane) if lane else None) for one in parsed),
        models,
    )
    work = {"inductor": KindWork(3, 0, seconds)}
    before = None if replaces is None else EarlierReport((), {"inductor": KindWork(1, 0, replaces)})
    request = ReportRequest("0" * 32, fingerprint, (), work, replaces=before, cold=cold)
    assert reports.report(reg.registry, by, request).counted == len(parsed)
    return request


def rows(reg: Inside, **more: Any) -> list[tuple[str | None, str, int, float]]:
    """Return target, torch, starts and seconds of each row."""
    answer = wanted.list_wanted(reg.registry, ROOT, NAME, **more)
    assert codec.build(WantedAnswer, codec.plain(answer)) == answer, "a client reads what the route writes"
    return [(row.target, row.facts["torch"], row.starts, row.spent) for row in answer.rows]


def test_a_cold_start_is_wanted_until_an_entry_fits_it(reg: Inside) -> None:
    reg.publish(make(reg.key))
    assert rows(reg) == []
    start(reg)
    start(reg, seconds=12.0)
    assert rows(reg) == [(None, "2.15.0", 2, 42.0)]
    reg.publish(make(reg.key, fingerprint=NEW_TORCH, content=b"new"))
    assert rows(reg) == []


def test_the_model_of_a_start_names_the_targets_of_other_environments(reg: Inside) -> None:
    reg.publish(make(reg.key, target="bert/f32"))
    reg.publish(make(reg.key, target="bert/bf16", content=b"bf16"))
    reg.publish(make(reg.key, target="vit", model=b"other", content=b"vit"))
    start(reg, models=(MODEL,), seconds=20.0)
    assert rows(reg) == [("bert/bf16", "2.15.0", 1, 10.0), ("bert/f32", "2.15.0", 1, 10.0)]
    reg.publish(make(reg.key, target="vit", model=b"other", content=b"v2", fingerprint=NEW_TORCH))
    assert len(rows(reg)) == 2, "an entry of another model is no help"
    reg.publish(make(reg.key, target="bert/f32", content=b"b2", fingerprint=NEW_TORCH))
    assert rows(reg) == [("bert/bf16", "2.15.0", 1, 10.0)]


def test_a_second_report_of_a_start_counts_it_once(reg: Inside) -> None:
    reg.publish(make(reg.key))
    start(reg, seconds=5.0)
    reg.clock.now += 60
    start(reg, seconds=40.0, replaces=5.0)
    assert rows(reg) == [(None, "2.15.0", 1, 40.0)]
    start(reg, seconds=1.0, replaces=10_000.0)
    assert rows(reg) == [(None, "2.15.0", 1, 0.0)], "no sum falls below zero"
    [day] = inventory.starts_by_day(reg.registry, ROOT, 1)
    assert day.states["miss"] == 1


def test_what_compiled_although_an_entry_fits_is_listed_with_its_entry(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    revision = RevisionReport(publication.revision, "inert", files=1)
    work = {"inductor": KindWork(2, 0, 9.0)}
    reports.report(
        reg.registry, ROOT, ReportRequest("1" * 32, FINGERPRINT, (revision,), work, why=("grad mode",))
    )
    [row] = wanted.list_wanted(reg.registry, ROOT, NAME).rows
    assert (row.target, row.starts, row.spent, row.why) == ("bert/f32", 1, 9.0, "grad mode")
    assert row.entry is not None and row.fingerprint == FINGERPRINT


def test_the_dearest_comes_first_and_old_starts_are_left_out(reg: Inside) -> None:
    reg.publish(make(reg.key))
    start(reg, seconds=5.0)
    start(reg, seconds=50.0, fingerprint={**FINGERPRINT, "torch": "2.16.0"})
    assert [row[1] for row in rows(reg)] == ["2.16.0", "2.15.0"]
    reg.clock.now += 3 * DAY
    start(reg, seconds=1.0)
    assert [row[1] for row in rows(reg, days=2)] == ["2.15.0"]
    reg.clock.now += (KEPT_DAYS + 1) * DAY
    gc.collect(reg.registry)
    with reg.registry.index.read() as unit:
        assert unit.cold_starts.under(NAME, None, 0, 10) == []


def test_misses_of_all_names_have_a_reason_and_what_to_do(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    start(reg, "team/bret", seconds=50.0)
    start(reg, "team/bert:prod", seconds=40.0)
    start(reg, seconds=30.0)
    start(reg, "team/unlike", seconds=20.0)
    revision = RevisionReport(publication.revision, "inert", files=1)
    work = {"inductor": KindWork(2, 0, 9.0)}
    reports.report(
        reg.registry, ROOT, ReportRequest("1" * 32, FINGERPRINT, (revision,), work, why=("grad mode",))
    )
    answer = misses.list_misses(reg.registry, ROOT, Namespace("team"))
    assert codec.build(MissesAnswer, codec.plain(answer)) == answer, "a client reads what the route writes"
    assert {one.reason for one in answer.rows} == set(MISSES)
    assert [(one.wanted.name, one.wanted.tag, one.reason, one.fix, one.nearest) for one in answer.rows] == [
        ("bret", "latest", "no-such-name", "CACHESVC_NAME=team/bert", "team/bert"),
        ("bert", "prod", "no-such-tag", "CACHESVC_NAME=team/bert:latest", "team/bert:latest"),
        ("bert", "latest", "no-entry", "cachesvc warm SPEC --missing", None),
        ("unlike", "latest", "no-such-name", "cachesvc warm SPEC", None),
        ("bert", "latest", "compiled-anyway", "cachesvc explain team/bert:latest", None),
    ]
    shown = Metrics(reg.registry, lambda: 0, metrics_namespaces=True).render().decode()
    assert 'cachesvc_miss_starts{reason="no-such-name"} 2.0' in shown
    assert 'cachesvc_miss_seconds{reason="no-such-tag"} 40.0' in shown
    assert 'cachesvc_name_miss_starts{name="team/bret:latest",reason="no-such-name"} 1.0' in shown
    assert 'cachesvc_name_starts{name="team/bert:latest",state="inert"}' in shown
    assert "bert" not in Metrics(reg.registry, lambda: 0).render().decode()
    assert "bret" not in Metrics(reg.registry, lambda: 0).render().decode()
    assert [one.wanted.spent for one in answer.rows] == [50.0, 40.0, 30.0, 20.0, 9.0]
    reg.publish(make(reg.key, fingerprint=NEW_TORCH, content=b"new"))
    assert "no-entry" not in {one.reason for one in misses.list_misses(reg.registry, ROOT).rows}
    reg.clock.now += 3 * DAY
    assert misses.list_misses(reg.registry, ROOT, days=2).rows == ()


def test_who_reads_misses_reads_that_namespace_and_lane(reg: Inside) -> None:
    reg.publish(make(reg.key))
    start(reg, "team/secret", lane="pr-1")
    start(reg, "team/bret")
    other = Token("t", "other", Role.read, "other")
    with pytest.raises(Forbidden):
        misses.list_misses(reg.registry, other, Namespace("team"))
    assert misses.list_misses(reg.registry, other).rows == ()
    trunk = Token("t", "trunk", Role.read, "team")
    lane = Token("t", "lane", Role.read, "team", Lane("pr-1"))
    assert {one.wanted.name for one in misses.list_misses(reg.registry, trunk).rows} == {"bret"}
    assert {one.wanted.name for one in misses.list_misses(reg.registry, lane).rows} == {"bret", "secret"}


def test_a_lane_is_wanted_by_its_own_services_only(reg: Inside) -> None:
    reg.publish(make(reg.key))
    start(reg, lane="pr-1")
    assert rows(reg) == [] and rows(reg, lane=Lane("pr-1")) == [(None, "2.15.0", 1, 30.0)]
    in_lane = Token("t-lane", "lane", Role.report, Namespace("team"), Lane("pr-1"))
    with pytest.raises(Forbidden):
        start(reg, by=in_lane, lane="pr-2")


def test_who_may_report_a_cold_start_and_who_may_read_of_it(reg: Inside) -> None:
    reg.publish(make(reg.key))
    for role, namespace in ((Role.read, "team"), (Role.report, "other")):
        with pytest.raises(Forbidden):
            start(reg, by=Token("t", "test", role, Namespace(namespace)))
    with pytest.raises(Forbidden):
        wanted.list_wanted(reg.registry, Token("t", "test", Role.read, Namespace("other")), NAME)
    with pytest.raises(Forbidden):
        wanted.list_seen(reg.registry, Token("t", "test", Role.read, Namespace("other")), NAME)
    assert rows(reg) == []


def test_starts_in_a_misspelt_namespace_are_misses_with_the_nearest(
    reg: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a service compiles for ever; its token is for all namespaces, or was made for the wrong one."""
    monkeypatch.setattr("cachesvc.registry.reports.UNKNOWN_NAMESPACES", 2)
    reg.publish(make(reg.key))
    start(reg, "taem/bert")
    start(reg, "nobody/x")
    found = {str(row.wanted.namespace): row for row in misses.list_misses(reg.registry, ROOT).rows}
    assert set(found) == {"taem", "nobody"}
    one = found["taem"]
    assert (one.reason, one.nearest, one.fix) == ("no-such-name", "team/bert", "CACHESVC_NAME=team/bert")
    assert found["nobody"].nearest is None and found["nobody"].fix == "cachesvc warm SPEC"
    start(reg, "taem/bert")  # it is counted already
    with pytest.raises(NotFound, match="namespace other does not exist"):
        start(reg, "other/x")
    # Who reads another namespace learns nothing of either.
    reader = Token("t", "test", Role.read, Namespace("team"))
    assert misses.list_misses(reg.registry, reader).rows == ()
    wrong = Token("t", "test", Role.read, Namespace("taem"))
    [row] = misses.list_misses(reg.registry, wrong).rows
    assert row.nearest is None, "the token may not read team"


def test_no_token_fills_the_index(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachesvc.index.starts.cold_starts.NAMESPACE_COLD", 5)
    assert NAMESPACE_COLD >= 5
    reg.publish(make(reg.key))
    for number in range(9):
        reg.clock.now += 1
        start(reg, f"team/n{number}", models=tuple(Digest.of(b"%d" % one) for one in range(8)))
        start(reg, f"team/n{number}", models=tuple(Digest.of(b"x%d" % one) for one in range(8)))
    with reg.registry.index.read() as unit:
        kept = [unit.cold_starts.under(Name.parse(f"team/n{one}"), None, 0, 9) for one in range(9)]
    assert [len(rows) for rows in kept] == [0] * 4 + [1] * 5, "those seen longest ago are gone"
    assert {len(row.models) for rows in kept for row in rows} == {COLD_MODELS}


def test_the_environments_that_started_are_listed_with_their_facts(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    hit = RevisionReport(publication.revision, "hit", files=1, used=1)
    reports.report(reg.registry, ROOT, ReportRequest("1" * 32, FINGERPRINT, (hit,)))
    reg.clock.now += 10
    start(reg)
    start(reg, lane="pr-1", fingerprint={**FINGERPRINT, "torch": "2.16.0"})
    seen = wanted.list_seen(reg.registry, ROOT, NAME)
    assert [(one.fingerprint["torch"], one.starts, one.cold, one.last_seen - START) for one in seen] == [
        ("2.15.0", 1, 1, 10),
        ("2.13.0", 1, 0, 0),
    ]
    assert seen[0].environment == known_partition(NEW_TORCH)
    assert len(wanted.list_seen(reg.registry, ROOT, NAME, Lane("pr-1"))) == 3


def test_a_report_is_of_revisions_or_of_a_cold_start() -> None:
    cold = ColdStart((ColdName(NAME.namespace, NAME.name),))
    revision = RevisionReport(Digest.of(b"r"), "hit")
    for changed in ({"revisions": (revision,)}, {"cold": None}):
        with pytest.raises(ValueError, match="revisions"):
            dataclasses.replace(ReportRequest("0" * 32, {}, (), cold=cold), **changed)
    for names, models in (((), ()), (cold.names * 2, ()), (cold.names, (Digest.of(b"m"),) * 9)):
        with pytest.raises(ValueError, match=r"names|models"):
            ColdStart(names, models)
