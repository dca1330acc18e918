"""Test what the web page asks the index, on both databases: sessions, names, sums, and what became inert."""

from __future__ import annotations

import dataclasses

import pytest
from test_index import TEAM, manifest, publish

from cachesvc.domain.access import ANY, Role, Token
from cachesvc.domain.usefulness import InertHost
from cachesvc.index.inventory import Search
from cachesvc.index.unit import Index, Unit
from cachesvc.index.usefulness import Start
from cachesvc_client.wire.admin import EntryRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.records import Manifest

HERE, THERE = Digest.of(b"here"), Digest.of(b"there")


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
        rows = unit.entries.find_names(namespace, lanes, text, after, limit)
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
        [row] = unit.entries.find_names(TEAM, None, "team/a", ("", ""), 1)
        assert unit.entries.tags(TEAM, ShortName("hidden"), None) == ["latest"]
        assert unit.entries.tags(TEAM, ShortName("hidden"), (None,)) == []
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
        coldest = [row.name for row in unit.inventory.ranked(ANY, "coldest", 10)]
        assert coldest == ["n2", "n3", "n1", "n4"]
        assert [row.name for row in unit.inventory.ranked(TEAM, "coldest", 2)] == coldest[:2]
        assert unit.inventory.ranked(ANY, "coldest", 0) == []


def _all(unit: Unit) -> list[EntryRecord]:
    return unit.inventory.search(Search(), None, 100)


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
        withheld = unit.inventory.withheld(namespace, 10)
    assert (row.entry, row.since, row.hosts, row.why, row.withheld) == (entry.entry, 90, 2, "differs", False)
    assert [(one.since, one.withheld) for one in both] == [(90, False), (50, True)]
    assert [(one.environment, one.since) for one in withheld] == [(THERE, 100)]
    with index.write() as unit:
        unit.usefulness.lift(entry.revision)
    with index.read() as unit:
        assert unit.usefulness.inert_since(namespace, 0, 10) == unit.inventory.withheld(namespace, 10) == []
