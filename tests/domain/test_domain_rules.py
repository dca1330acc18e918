"""Test that the pure rules hold what they promise."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc.domain.access import ANY, Action, Life, Role, Token, alive, demand, may
from cachesvc.domain.claims import Claim, demand_current, standing
from cachesvc.domain.difference import facets
from cachesvc.domain.retention import (
    DAY,
    ObjectFacts,
    Retention,
    RevisionAge,
    collectable,
    evicted,
    expired,
    unused,
)
from cachesvc.domain.revisions import Head, advances
from cachesvc.schema.namespaces import Policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost, Forbidden, HeadConflict, Unauthenticated
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRef

PR = Lane("pr-1")


def token(role: Role, namespace: str = "team", lane: Lane | None = None, **more: int) -> Token:
    return Token("t-1", "label", role, namespace, lane, **more)


ALLOWED = [
    (token(Role.read), Action.read, "team", None, True),
    (token(Role.read), Action.read, "team", PR, True),
    (token(Role.read), Action.read, "other", None, False),
    (token(Role.read), Action.write, "team", None, False),
    (token(Role.read, ANY), Action.read, "other", None, True),
    (token(Role.write), Action.read, "team", None, True),
    (token(Role.write), Action.write, "team", None, True),
    (token(Role.write), Action.write, "team", PR, True),
    (token(Role.write), Action.write, "other", None, False),
    (token(Role.write), Action.admin, "team", None, False),
    (token(Role.write, "team", PR), Action.write, "team", PR, True),
    (token(Role.write, "team", PR), Action.write, "team", None, False),
    (token(Role.write, "team", PR), Action.write, "team", Lane("pr-2"), False),
    (token(Role.write, "team", PR), Action.read, "team", None, True),
    (token(Role.read), Action.report, "team", None, False),
    (token(Role.report), Action.read, "team", None, True),
    (token(Role.report), Action.report, "team", None, True),
    (token(Role.report), Action.report, "other", None, False),
    (token(Role.report), Action.write, "team", None, False),
    (token(Role.write), Action.report, "team", None, True),
    (token(Role.report, "team", PR), Action.report, "team", PR, True),
    (token(Role.report, "team", PR), Action.report, "team", None, False),
    (token(Role.write, "team", PR), Action.read, "team", PR, True),
    (token(Role.write, "team", PR), Action.read, "team", Lane("pr-2"), False),
    (token(Role.admin, "team", PR), Action.admin, "team", PR, False),
    (token(Role.admin), Action.admin, "team", None, True),
    (token(Role.admin), Action.admin, ANY, None, False),
    (token(Role.admin), Action.admin, "other", None, False),
    (token(Role.admin, ANY), Action.admin, ANY, None, True),
    (token(Role.admin, ANY), Action.write, "other", PR, True),
]


@pytest.mark.parametrize(("who", "action", "namespace", "lane", "allowed"), ALLOWED)
def test_each_role_may_do_the_allowed_actions_only(
    who: Token, action: Action, namespace: str, lane: Lane | None, allowed: bool
) -> None:
    assert may(who, action, namespace, lane) is allowed
    if allowed:
        demand(who, action, namespace, lane)
    else:
        with pytest.raises(Forbidden, match=f"t-1.*may not {action.name}"):
            demand(who, action, namespace, lane)


def test_a_token_lives_until_it_expires_or_is_revoked() -> None:
    alive(token(Role.read), 1e12)
    alive(token(Role.read, life=Life(expires=100)), 99.9)
    with pytest.raises(Unauthenticated, match="expired"):
        alive(token(Role.read, life=Life(expires=100)), 100)
    with pytest.raises(Unauthenticated, match="revoked"):
        alive(token(Role.read, life=Life(expires=100, revoked=1)), 50)


digests = st.integers(0, 5).map(lambda number: Digest.of(str(number).encode()))
heads = st.none() | st.builds(Head, digests, st.integers(1, 6))


@given(head=heads, expected=st.none() | digests, revision=digests, sequence=st.integers(1, 6))
def test_a_head_moves_forward_from_its_expected_value(head, expected, revision, sequence) -> None:
    current = head.revision if head else None
    try:
        advance = advances(head, expected=expected, revision=revision, sequence=sequence)
    except HeadConflict:
        assert revision != current
        assert current != expected or sequence <= head.sequence
        return
    assert advance == (revision != current)
    if advance:
        assert current == expected
        assert head is None or sequence > head.sequence


ages = st.builds(
    RevisionAge,
    entry=digests,
    revision=st.integers().map(lambda number: Digest.of(str(number).encode())),
    published=st.integers(0, 100 * DAY),
    is_head=st.booleans(),
)


def ranked(rows: list[RevisionAge]) -> list[RevisionAge]:
    """Return the rows, the newest first, each with the number of newer revisions of its entry."""
    return [
        dataclasses.replace(row, newer=sum(other.entry == row.entry for other in rows[:place]))
        for place, row in enumerate(rows)
    ]


@given(
    rows=st.lists(ages, max_size=40, unique_by=lambda row: row.revision),
    keep=st.integers(1, 5),
    days=st.integers(0, 60),
    now=st.integers(0, 120 * DAY),
)
def test_retention_keeps_heads_and_the_newest_and_young_revisions(rows, keep, days, now) -> None:
    rows = ranked(rows)
    expired_rows = expired(rows, Retention(keep, days), now)
    assert len(set(expired_rows)) == len(expired_rows)
    assert set(expired_rows) <= set(rows)
    assert not any(row.is_head or row.published >= now - days * DAY for row in expired_rows)
    for entry in {row.entry for row in rows}:
        of_entry = [row for row in rows if row.entry == entry]
        remaining = [row for row in of_entry if row not in expired_rows]
        assert len(remaining) >= min(keep, len(of_entry))
        assert not set(of_entry[:keep]) & set(expired_rows)
    # One run deletes everything that may go: a second run on the remaining rows finds nothing.
    remaining = ranked([row for row in rows if row not in expired_rows])
    assert expired(remaining, Retention(keep, days), now) == []


def test_retention_by_default_expires_revisions_after_thirty_days() -> None:
    rows = [row(f"{n}", entry="e", published=n * DAY, is_head=n == 50) for n in reversed(range(51))]
    expired_rows = expired(ranked(rows), Retention(), 51 * DAY)
    assert sorted(row.published // DAY for row in expired_rows) == list(range(21))


def row(name: str, **more) -> RevisionAge:
    facts = {"published": 0, "is_head": True, "size": 100, **more}
    return RevisionAge(Digest.of(facts.pop("entry", name).encode()), Digest.of(name.encode()), **facts)


def test_a_pinned_revision_outlives_its_retention() -> None:
    rows = [row(f"{n}", entry="e", is_head=n == 9, pinned=n == 3) for n in reversed(range(10))]
    kept = {row.revision for row in rows} - {
        one.revision for one in expired(ranked(rows), Retention(2, 0), DAY)
    }
    assert kept == {Digest.of(b"%d" % n) for n in (3, 8, 9)}


def test_an_entry_that_nobody_is_offered_goes_whole() -> None:
    policy, now = Retention(unused_days=30), 100 * DAY
    rows = [
        row("idle"),
        row("offered", last_used=80 * DAY),
        row("new", published=80 * DAY),
        row("held"),
        row("old", entry="held", is_head=False, pinned=True),
        row("line", entry="idle", is_head=False),
    ]
    assert unused(rows, policy, now) == [rows[0]]
    assert unused(rows, Retention(), now) == []


def test_eviction_takes_cheap_and_idle_entries_first() -> None:
    now = 100 * DAY
    dear = row("dear", compile_seconds=3600.0)
    cheap = row("cheap", compile_seconds=15.0)
    used = row("used", compile_seconds=15.0, last_used=99 * DAY)
    superseded = row("superseded", entry="dear", is_head=False, compile_seconds=9999.0, last_used=99 * DAY)
    fresh = row("fresh", published=now - 60)
    pinned = row("pinned", pinned=True)
    rows = [dear, cheap, used, superseded, fresh, pinned]

    def rows_after(keep: int | None) -> list[RevisionAge]:
        return evicted(rows, Retention(keep_bytes=keep), now)

    assert rows_after(None) == rows_after(600) == []
    assert rows_after(599) == rows_after(500) == [superseded]
    assert rows_after(400) == [superseded, cheap]
    assert rows_after(300) == [superseded, cheap, used]
    # A hundred days of one hour of compilation weigh less than one day of fifteen seconds would in a year.
    assert rows_after(0) == [superseded, cheap, used, dear]


@given(
    rows=st.lists(
        st.builds(
            RevisionAge,
            entry=digests,
            revision=st.integers().map(lambda number: Digest.of(str(number).encode())),
            published=st.integers(0, 100 * DAY),
            is_head=st.booleans(),
            last_used=st.none() | st.integers(0, 100 * DAY),
            pinned=st.booleans(),
            size=st.integers(0, 1000),
            compile_seconds=st.floats(0, 1e5),
        ),
        max_size=30,
        unique_by=lambda row: row.revision,
    ),
    keep=st.integers(0, 20_000),
)
def test_eviction_keeps_what_the_policy_must_keep(rows, keep) -> None:
    now, policy = 100 * DAY, Retention(keep_bytes=keep)
    evicted_rows = evicted(rows, policy, now)
    rest = [row for row in rows if row not in evicted_rows]
    assert len(set(evicted_rows)) == len(evicted_rows) and set(evicted_rows) <= set(rows)
    assert not any(row.pinned or row.touched >= now - 3600 for row in evicted_rows)
    for head in (row for row in evicted_rows if row.is_head):
        assert not any(row.entry == head.entry and not row.is_head for row in rest)
    if evicted_rows:  # Eviction never takes more than necessary.
        assert sum(row.size for row in rest) + evicted_rows[-1].size > keep
    assert evicted(rest, policy, now) == []


def test_a_namespace_overrides_the_fields_that_it_sets() -> None:
    base = Retention(5, 10, None, 1000)
    assert base.of(Policy()) == base
    assert base.of(Policy(keep_days=0, unused_days=3)) == Retention(5, 0, 3, 1000)
    for wrong in ({"keep_revisions": 0}, {"keep_days": -1}, {"unused_days": 0}, {"quota_bytes": 1 << 61}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Policy(**wrong)


def test_entries_are_found_by_the_tensors_of_their_inputs() -> None:
    inputs = {
        "small": {"args": [{"dtype": "int64", "shape": [8, 128]}, 3], "kwargs": {"mask": None}},
        "nested": {"args": [], "kwargs": {"x": {"a": [{"dtype": "bfloat16", "shape": []}]}}},
        "odd": {"args": [{"dtype": "a b", "shape": "x"}], "kwargs": {}},
    }
    assert facets(Workload(inputs=inputs, dtype="bf16")) == (
        ("bf16", "bfloat16", "int64"),
        ("8x128", "scalar"),
    )
    assert facets(Workload()) == ((), ())


def test_retention_refuses_to_keep_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1 revision"):
        Retention(0, 5)


def test_only_loose_objects_are_collectable() -> None:
    loose = ObjectFacts("packs/a", "live", 100, False)
    assert collectable(loose, 101)
    assert not collectable(loose, 100)
    assert not collectable(dataclasses.replace(loose, referenced=True), 101)
    assert collectable(dataclasses.replace(loose, state="deleting"), 1)
    assert not collectable(dataclasses.replace(loose, state="deleting", referenced=True), 1)


HOLDERS = st.sampled_from(["", "a" * 32, "b" * 32])
CLAIMS = st.builds(
    lambda holder, fence, expires, completed: Claim(
        Digest.of(b"k"), Namespace("team"), ShortName("m"), None, holder, fence, 0, expires, completed
    ),
    HOLDERS,
    st.integers(0, 3),
    st.integers(0, 20),
    st.booleans(),
)


@given(claim=CLAIMS, now=st.integers(0, 40), last_fence=st.integers(0, 3))
def test_a_client_waits_for_a_claim_only_while_it_has_a_holder(
    claim: Claim, now: int, last_fence: int
) -> None:
    alive = bool(claim.holder) and claim.expires > now
    state = standing(claim, now, last_fence)
    assert (state == "held") <= alive and (state == "free") <= (not alive)
    if state == "published":
        assert claim.done and claim.fence != last_fence
    elif claim.done:
        assert claim.fence == last_fence or (not alive and now >= claim.expires + 10)
    assert standing(claim, 40, claim.fence) == "free" and standing(None, now) == "free"


@given(claim=CLAIMS, holder=st.sampled_from(["a" * 32, "b" * 32]), fence=st.integers(0, 3))
def test_a_claim_belongs_to_its_last_holder_alone(claim: Claim, holder: str, fence: int) -> None:
    """An expired claim still belongs to its last holder, as long as no other client took it."""
    ref = ClaimRef(claim.key, holder, fence)
    if (claim.holder, claim.fence) == (holder, fence):
        demand_current(claim, ref)
    else:
        with pytest.raises(ClaimLost):
            demand_current(claim, ref)
    with pytest.raises(ClaimLost):
        demand_current(None, ref)
