"""The listing that mirrors read, over both columns of backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import make

from cachesvc.domain.access import Role, Token
from cachesvc.registry.mirror import heads_listing
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import quarantine, retention
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.mirrors import HeadRow
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def whole(reg: Inside, by: Token = ROOT) -> tuple[list[HeadRow], str, int]:
    """Return all heads, the mark, and the number of pages."""
    page = first = heads_listing.list_heads(reg.registry, by, None, None)
    heads, pages = list(page.heads), 1
    while page.next is not None:
        page = heads_listing.list_heads(reg.registry, by, page.next, None)
        heads, pages = [*heads, *page.heads], pages + 1
    return heads, first.mark, pages


def test_pages_hold_each_head_once_in_order(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_listing, "MAX_HEADS", 2)
    made = [make(reg.key, target=f"t{number}") for number in range(5)]
    for publication in made:
        reg.publish(publication)
    heads, _, pages = whole(reg)
    assert [row.entry for row in heads] == sorted(one.manifest.entry for one in made)
    assert {row.revision for row in heads} == {one.revision for one in made}
    assert {row.sequence for row in heads} == {one.manifest.statement.sequence for one in made}
    assert pages == 3


def test_the_mark_changes_with_what_a_mirror_has_to_know(reg: Inside) -> None:
    marks: list[str] = []

    def changed() -> bool:
        marks.append(whole(reg)[1])
        assert heads_listing.list_heads(reg.registry, ROOT, None, marks[-1]).unchanged
        return len(set(marks)) == len(marks)

    first, other = make(reg.key), make(reg.key, target="other")
    assert changed()
    reg.publish(first)
    assert changed()
    reg.publish(other)
    assert changed()
    reg.publish(second := make(reg.key, content=b"second"), first.revision)
    assert changed()
    quarantine.withdraw(reg.registry, ROOT, second.revision, "wrong")
    assert changed()
    quarantine.withdraw(reg.registry, ROOT, other.revision, "wrong too")
    assert changed()
    retention.delete_entry(reg.registry, ROOT, other.manifest.entry, None)
    assert changed()
    signers.add_signer(reg.registry, None, SignerRecord("team", SigningKey.generate().public))
    assert changed()


def test_a_withheld_head_is_listed_with_its_reason(reg: Inside) -> None:
    key = SigningKey.generate()
    signers.add_signer(reg.registry, None, SignerRecord("team", key.public))
    made, other = make(reg.key), make(key, target="other", content=b"other")
    for publication in (made, other):
        reg.publish(publication)
    assert {row.withheld for row in whole(reg)[0]} == {None}
    quarantine.withdraw(reg.registry, ROOT, made.revision, "wrong numbers")
    signers.remove_signer(reg.registry, ROOT, "team", key.public)
    why = {row.revision: row.withheld for row in whole(reg)[0]}
    assert why[made.revision] == "wrong numbers"
    assert "its signer was removed" in (why[other.revision] or "")


def test_a_token_lists_what_it_may_read(reg: Inside) -> None:
    trunk, lane, other_lane, other = (
        make(reg.key),
        make(reg.key, lane="pr-1"),
        make(reg.key, lane="pr-2"),
        make(reg.key, namespace="other"),
    )
    for publication in (trunk, lane, other_lane, other):
        reg.publish(publication)

    def listed(namespace: str, of_lane: str | None = None) -> set[Digest]:
        by = Token("t", "t", Role.read, namespace, Lane(of_lane) if of_lane else None)
        return {row.revision for row in whole(reg, by)[0]}

    assert listed("*") == {one.revision for one in (trunk, lane, other_lane, other)}
    assert listed("team") == {one.revision for one in (trunk, lane, other_lane)}
    assert listed("team", "pr-1") == {trunk.revision, lane.revision}
    assert listed("elsewhere") == set()


def test_a_head_whose_statement_has_expired_is_not_listed(reg: Inside) -> None:
    made = make(reg.key, expires=int(reg.clock.now) + 100)
    reg.publish(made)
    assert [row.revision for row in whole(reg)[0]] == [made.revision]
    reg.clock.now += 200
    assert whole(reg)[0] == []
