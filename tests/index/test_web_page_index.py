"""Test what the web page asks the index, on both databases: sessions, names, sums, and what became inert."""

from __future__ import annotations

import dataclasses

import pytest
import sqlalchemy as sa
from sqlmodel import col
from test_index import TEAM, manifest, publish

from cachesvc.domain.access import ANY, Role, Token
from cachesvc.domain.retention import DAY
from cachesvc.domain.usefulness import InertHost
from cachesvc.index.entries.search import Search
from cachesvc.index.sql import run_change
from cachesvc.index.starts import environments
from cachesvc.index.starts.usefulness import Earlier, Start
from cachesvc.index.tables import EntryRow
from cachesvc.index.unit import Index, Unit
from cachesvc.schema.entries import EntryRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Lane, Name, Namespace, ShortName

HERE, THERE, OTHER = (Digest.of(one) for one in (b"here", b"there", b"other"))


def named(
    sequence: int, name: str, namespace: Namespace = TEAM, lane: str | None = None, tag: str = "latest"
) -> Manifest:
    made = manifest(sequence, lane=lane, tag=tag, target=f"t{sequence}")
    statement = dataclasses.replace(made.statement, namespace=namespace, name=ShortName(name))
    return dataclasses.replace(made, statement=statement)


def names(
    index: Index,
    *,
    namespace: str = ANY,
    lanes: tuple[Lane | None, ...] | None = None,
    text: str = "",
    after: tuple[str, str] = ("", ""),
    limit: int = 10,
) -> list[str]:
    with index.read() as unit:
        rows = unit.listing.find_names(namespace, lanes, text, after, limit)
    return [f"{row.namespace}/{row.name}" for row in rows]


def test_names_are_found_by_a_part_in_order_and_by_pages(index: Index) -> None:
    for sequence, one in enumerate(
        (
            named(1, "b/two"),
            named(2, "a"),
            named(3, "a", tag="v2"),
            named(4, "z", namespace=Namespace("other")),
            named(5, "hidden", lane="pr-2"),
            named(6, "a_b"),
        )
    ):
        publish(index, one, now=sequence)
    assert names(index) == ["other/z", "team/a", "team/a_b", "team/b/two", "team/hidden"]
    assert names(index, limit=2) == ["other/z", "team/a"]
    assert names(index, after=("team", "a")) == ["team/a_b", "team/b/two", "team/hidden"]
    assert names(index, namespace=TEAM, after=("team", "b/two")) == ["team/hidden"]
    assert names(index, lanes=(None, Lane("pr-1"))) == ["other/z", "team/a", "team/a_b", "team/b/two"]
    assert names(index, text="am/b") == ["team/b/two"]
    assert names(index, text="_") == ["team/a_b"] and names(index, text="%") == []
    with index.read() as unit:
        [row] = unit.listing.find_names(TEAM, None, "team/a", ("", ""), 1)
        assert unit.listing.tags(TEAM, ShortName("hidden"), None) == ["latest"]
        assert unit.listing.tags(TEAM, ShortName("hidden"), (None,)) == []
    assert (row.tags, row.entries, row.bytes > 0) == (("latest", "v2"), 2, True)


def test_a_session_names_its_token_until_it_ends(index: Index) -> None:
    with index.write() as unit:
        unit.tokens.add(Token("t-1", "one", Role.read, TEAM), "h")
        unit.sessions.add("a", "t-1", 10, most=2)
        unit.sessions.add("b", "t-1", 20, most=2)
        unit.sessions.add("other", "t-2", 5, most=2)
    with index.read() as unit:
        assert [unit.sessions.token("a", now) for now in (9, 10)] == ["t-1", None]
        assert unit.sessions.token("c", 0) is None
    with index.write() as unit:
        unit.sessions.add("c", "t-1", 15, most=2)
    with index.read() as unit:
        assert [unit.sessions.token(one, 0) for one in ("a", "b", "c", "other")] == (
            [None, "t-1", "t-1", "t-2"]
        )
    with index.write() as unit:
        assert [unit.sessions.remove("b"), unit.sessions.remove("b")] == [True, False]
        assert unit.sessions.forget(15) == 2


def test_the_sums_of_all_namespaces_are_those_of_each(index: Index) -> None:
    with index.read() as unit:
        assert dataclasses.astuple(unit.namespaces.totals(ANY)) == (0, 0, 0, 0)
    for sequence, one in enumerate(
        (named(1, "a"), named(2, "b"), named(3, "z", namespace=Namespace("other")))
    ):
        publish(index, one, now=sequence)
    with index.read() as unit:
        each = [dataclasses.astuple(unit.namespaces.totals(one)) for one in (TEAM, "other", "nobody")]
        together = dataclasses.astuple(unit.namespaces.totals(ANY))
    assert each[0][:3] == (1, 2, 2) and each[2] == (0, 0, 0, 0)
    assert together == tuple(map(sum, zip(*each, strict=True)))


def test_the_coldest_are_those_unused_for_longest_whether_used_or_not(index: Index) -> None:
    made = [named(sequence, f"n{sequence}") for sequence in range(1, 5)]
    for sequence, one in enumerate(made, 1):
        publish(index, one, now=sequence * 10)
    with index.write() as unit:
        heads = {row.name: row.revision for row in _all(unit)}
        unit.entries.used([heads["n1"]], 35)
        unit.entries.used([heads["n2"]], 15)
    with index.read() as unit:
        coldest = [row.name for row in unit.sums.ranked(ANY, "coldest", 10)]
        assert coldest == ["n2", "n3", "n1", "n4"]
        assert [row.name for row in unit.sums.ranked(TEAM, "coldest", 2)] == coldest[:2]
        assert unit.sums.ranked(ANY, "coldest", 0) == []


def start(revision: Digest, state: str, now: int, earlier: Earlier | None = None) -> Start:
    return Start(revision, HERE, {"gpu": "x"}, state, 10.0, 4.0, "", now, earlier)


def test_starts_are_counted_on_their_day_and_a_later_report_takes_the_earlier_one_s_place(
    index: Index,
) -> None:
    revision, other = Digest.of(b"r"), Namespace("other")
    with index.write() as unit:
        unit.days.add(TEAM, [start(revision, "hit", 5 * DAY), start(revision, "partial", 5 * DAY)])
        unit.days.add(other, [start(revision, "miss", 5 * DAY)])
        # The next day: the partial start of the day before has become a hit.
        unit.days.add(TEAM, [start(revision, "hit", 6 * DAY, Earlier("partial", 3.0, 1.0))])
        # The same day: one more, which is said again.
        unit.days.add(TEAM, [start(revision, "partial", 6 * DAY)])
        unit.days.add(TEAM, [start(revision, "hit", 6 * DAY, Earlier("partial", 10.0, 4.0))])
        # An earlier report that nobody has counted takes nothing away.
        unit.days.add(TEAM, [start(revision, "unused", 6 * DAY, Earlier("miss", 10.0, 4.0))])
    with index.read() as unit:
        fifth, sixth = unit.days.since(TEAM, 5)
        assert [row.day for row in unit.days.since(TEAM, 6)] == [6]
        together = unit.days.since(ANY, 0)
    assert (fifth.states["hit"], fifth.states["partial"], fifth.saved, fifth.spent) == (1, 0, 17.0, 7.0)
    assert {name: n for name, n in sixth.states.items() if n} == {"hit": 2, "unused": 1}
    assert (sixth.saved, sixth.spent) == (30.0, 12.0)
    assert [row.states["miss"] for row in together] == [1, 0]
    with index.write() as unit:
        assert unit.days.forget(6) == 2
    with index.read() as unit:
        assert [row.day for row in unit.days.since(ANY, 0)] == [6]


def test_the_facts_of_environments_are_bounded_in_each_namespace(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "NAMESPACE_ENVIRONMENTS", 2)
    with index.write() as unit:
        for number in range(3):
            unit.environments.add(TEAM, Digest.of(b"%d" % number), {"gpu": f"{number}"}, 10 + number)
        unit.environments.add(Namespace("other"), HERE, {"gpu": "other"}, 1)
    with index.read() as unit:
        facts = [unit.environments.get(TEAM, Digest.of(b"%d" % number)) for number in range(3)]
        assert facts == [None, {"gpu": "1"}, {"gpu": "2"}]
        assert unit.environments.get(TEAM, HERE) is None
        assert unit.environments.get(Namespace("other"), HERE) == {"gpu": "other"}
    with index.write() as unit:
        assert unit.environments.forget(12) == 2


def test_environments_of_a_name_are_those_of_its_trunk_and_of_the_lane_asked_for(index: Index) -> None:
    for sequence, one in enumerate((named(1, "a"), named(2, "a", lane="pr-1"), named(3, "b")), 1):
        publish(index, one, now=sequence)
    with index.write() as unit:
        rows = sorted(_all(unit), key=lambda row: row.sequence)
        for row, where in zip(rows, (HERE, THERE, OTHER), strict=True):
            unit.usefulness.add(
                Start(row.revision, where, {"gpu": where[-4:]}, "hit", 1.0, 0.0, "", row.sequence)
            )
        unit.environments.add(TEAM, HERE, {"gpu": "x"}, 1)
    name, lane = Name(TEAM, ShortName("a")), Lane("pr-1")
    with index.read() as unit:
        [trunk] = unit.environments.reported(name, None, limit=5)
        both = unit.environments.reported(name, lane, limit=5)
        assert unit.environments.reported(name, lane, THERE, limit=5) == both[:1]
        assert unit.environments.reported(name, None, THERE, limit=5) == []
        assert len(unit.environments.reported(name, lane, limit=1)) == 1
    assert (trunk.environment, trunk.stored, trunk.facts) == (HERE, True, {"gpu": HERE[-4:]})
    assert [(one.environment, one.stored) for one in both] == [(THERE, False), (HERE, True)]
    assert trunk.states["hit"] == 1


@pytest.mark.parametrize("namespace", [ANY, TEAM])
def test_rankings_leave_out_revisions_that_were_replaced(index: Index, namespace: str) -> None:
    """The replaced revisions saved most, and more of them than the ranking has rows."""
    made = [named(sequence, f"n{sequence}") for sequence in range(1, 31)]
    for sequence, one in enumerate(made, 1):
        publish(index, one, now=sequence)
    with index.write() as unit:
        for row in _all(unit):
            saved = 1000.0 * row.sequence if row.sequence > 4 else float(row.sequence)
            unit.usefulness.add(Start(row.revision, HERE, {}, "hit", saved, 0.0, "", 1))
            if row.sequence > 4:
                gone = sa.update(EntryRow).where(col(EntryRow.entry) == row.entry).values(head="replaced")
                run_change(unit.inventory._session, gone)
    with index.read() as unit:
        names = [[row.name for row in unit.sums.ranked(namespace, "dearest", most)] for most in (2, 9)]
    assert names == [["n4", "n3"], ["n4", "n3", "n2", "n1"]]


def _all(unit: Unit) -> list[EntryRecord]:
    return unit.inventory.search(Search(), None, 100)[0]


@pytest.mark.parametrize("namespace", [ANY, TEAM])
def test_what_became_inert_is_listed_until_a_hit(index: Index, namespace: str) -> None:
    publish(index, named(1, "a"), now=1)
    with index.read() as unit:
        [entry] = _all(unit)
    with index.write() as unit:
        for where, times in ((HERE, (100, 90)), (THERE, (50, 100))):
            for number, seen in enumerate(times):
                unit.usefulness.add(
                    Start(entry.revision, where, {"gpu": "x"}, "inert", 0.0, 0.0, "differs", seen)
                )
                unit.usefulness.inert(entry.revision, where, InertHost("t", f"{number}" * 32), seen)
        unit.usefulness.quarantine(entry.revision, THERE, 100)
    with index.read() as unit:
        [row] = unit.usefulness.inert_since(namespace, 60, 10)
        both = unit.usefulness.inert_since(namespace, 0, 10)
        assert unit.usefulness.inert_since(namespace, 0, 1) == [row]
        assert unit.usefulness.inert_since("other", 0, 10) == []
        withheld = unit.withheld.listing(namespace, 10)
    assert (row.of.entry, row.since, row.hosts, row.why, row.withheld) == (
        entry.entry,
        90,
        2,
        "differs",
        False,
    )
    assert [(one.since, one.withheld) for one in both] == [(90, False), (50, True)]
    assert [(one.environment, one.since) for one in withheld] == [(THERE, 100)]
    with index.write() as unit:
        unit.usefulness.lift(entry.revision)
    with index.read() as unit:
        assert unit.usefulness.inert_since(namespace, 0, 10) == unit.withheld.listing(namespace, 10) == []
