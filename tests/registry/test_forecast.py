"""Test the forecast of a collection: which environments' starts of the last days it would make cold."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_command import Admin
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make, next_sequence

from benchmarks.serving import serving
from cachesvc.domain.retention import DAY
from cachesvc.registry import reports
from cachesvc.registry.access import tokens
from cachesvc.registry.upkeep import gc, retention
from cachesvc.schema.access import TokenRequest
from cachesvc.schema.namespaces import Policy
from cachesvc.schema.upkeep import FORECAST_DAYS
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

ELSEWHERE = {**FINGERPRINT, "cpu_flags": ["avx", "avx2", "avx512f", "fma"]}
TEAM = Namespace("team")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def start(reg: Inside, publication: Publication, state: str = "hit", **more: object) -> None:
    row = RevisionReport(publication.revision, state, files=1, used=1)
    fingerprint = more.pop("fingerprint", FINGERPRINT)
    reports.report(reg.registry, ROOT, ReportRequest("1" * 32, fingerprint, (row,)))


def forecast(reg: Inside) -> list[tuple[str, int]]:
    """Return target and starts of each environment that would go cold."""
    plan = gc.plan(reg.registry, ROOT)
    assert plan.going_cold == len(plan.cold) and plan.cold_days == FORECAST_DAYS
    return [(row.target, row.starts) for row in plan.cold]


def test_an_entry_that_goes_makes_cold_whoever_used_it_lately(
    reg: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    dear = make(reg.key, target="dear", measured={"compile": 900.0})
    cheap = make(reg.key, target="cheap", content=b"cheap")
    never = make(reg.key, target="never", content=b"never")
    for publication in (dear, cheap, never):
        reg.publish(publication)
    reg.clock.now += 5 * DAY
    reg.resolve()  # the starts below were offered their entries
    start(reg, dear)
    start(reg, dear, fingerprint=ELSEWHERE)
    start(reg, cheap)
    start(reg, cheap, "partial")
    start(reg, never, "inert")
    assert forecast(reg) == [], "nothing is removed"
    reg.clock.now += 3 * DAY
    retention.set_policy(reg.registry, ROOT, TEAM, Policy(unused_days=2))
    assert gc.plan(reg.registry, ROOT).revisions == 3
    assert forecast(reg) == [("dear", 1), ("dear", 1), ("cheap", 2)], "the dearest first"
    [first, *_] = gc.plan(reg.registry, ROOT).cold
    assert (first.namespace, first.name, first.compile_seconds) == ("team", "bert", 900.0)
    assert first.facts["torch"] == FINGERPRINT["torch"] and "not used for 2 days" in first.why
    with caplog.at_level(logging.WARNING, "cachesvc.gc"):
        assert gc.collect(reg.registry).entries == 3
    [line] = [row.getMessage() for row in caplog.records if row.levelno == logging.WARNING]
    assert line.startswith("collecting makes the starts of 3 environments cold that used team/bert:latest")
    assert forecast(reg) == []


def test_an_old_start_and_an_old_revision_make_nothing_cold(reg: Inside) -> None:
    old = make(reg.key, sequence=next_sequence())
    head = reg.publish(old).revision
    start(reg, old)
    for number in range(3):
        reg.clock.now += 1
        head = reg.publish(make(reg.key, sequence=next_sequence(), content=b"%d" % number), head).revision
    reg.clock.now += 2 * DAY
    assert gc.plan(reg.registry, ROOT).revisions == 2, "old revisions of an entry that stays"
    assert forecast(reg) == []
    reg.clock.now += (FORECAST_DAYS + 1) * DAY
    retention.set_policy(reg.registry, ROOT, TEAM, Policy(unused_days=1))
    assert forecast(reg) == [], "nobody has started there for a month"


def test_the_command_warns_and_refuses_where_it_is_asked_to(
    reg: Inside, command: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg.clock.now = time.time() - 20 * DAY
    sequence = int(reg.clock.now * 1000)
    publication = make(reg.key, target="served", sequence=sequence, measured={"compile": 90.0})
    reg.publish(publication)
    reg.resolve()
    start(reg, publication)
    request = TokenRequest("operator", "admin", "*", days=60)
    secret = tokens.create_token(reg.registry, None, request).secret
    reg.clock.now = time.time()
    with serving(reg.registry) as url:
        monkeypatch.setenv("CACHESVC_URL", url)
        monkeypatch.setenv("CACHESVC_TOKEN", str(secret))
        assert "warning" not in command("admin", "gc").err
        retention.set_policy(reg.registry, ROOT, TEAM, Policy(unused_days=9))
        plan = command("admin", "gc", "--json")
        assert plan.status == 0 and plan.json["going_cold"] == 1
        assert [row["target"] for row in plan.json["cold"]] == ["served"]
        says = "warning: 1 environment would lose the entry that their starts used in the last 30 days:"
        assert says in plan.err and "team/bert:latest served" in plan.err
        refused = command("admin", "gc", "--apply", "--unless-cold")
        assert refused.status == 9 and "nothing was removed" in refused.err
        assert gc.plan(reg.registry, ROOT).revisions == 1
        done = command("admin", "gc", "--apply", "--json")
        assert done.status == 0 and done.json["collected"]["entries"] == 1 and "warning" in done.err
        assert command("admin", "gc", "--apply", "--unless-cold").status == 0
