"""The pure rules, against what they promise."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc.domain.access import ANY, Action, Role, Token, alive, demand, may
from cachesvc.domain.retention import DAY, ObjectFacts, Retention, RevisionAge, collectable, expired
from cachesvc.domain.revisions import Head, advances
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, HeadConflict, Unauthenticated
from cachesvc_client.wire.names import Lane

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
def test_access(who: Token, action: Action, namespace: str, lane: Lane | None, allowed: bool) -> None:
    assert may(who, action, namespace, lane) is allowed
    if allowed:
        demand(who, action, namespace, lane)
    else:
        with pytest.raises(Forbidden, match=f"t-1.*may not {action.name}"):
            demand(who, action, namespace, lane)


def test_a_token_lives_until_it_expires_or_is_revoked() -> None:
    alive(token(Role.read), 1e12)
    alive(token(Role.read, expires=100), 99.9)
    with pytest.raises(Unauthenticated, match="expired"):
        alive(token(Role.read, expires=100), 100)
    with pytest.raises(Unauthenticated, match="revoked"):
        alive(token(Role.read, revoked=1, expires=100), 50)


digests = st.integers(0, 5).map(lambda number: Digest.of(str(number).encode()))
heads = st.none() | st.builds(Head, digests, st.integers(1, 6))


@given(head=heads, expected=st.none() | digests, revision=digests, sequence=st.integers(1, 6))
def test_a_head_moves_forward_from_where_it_was_said_to_be(head, expected, revision, sequence) -> None:
    current = head.revision if head else None
    try:
        moved = advances(head, expected=expected, revision=revision, sequence=sequence)
    except HeadConflict:
        assert revision != current
        assert current != expected or sequence <= head.sequence
        return
    assert moved == (revision != current)
    if moved:
        assert current == expected
        assert head is None or sequence > head.sequence


ages = st.builds(
    RevisionAge,
    entry=digests,
    revision=st.integers().map(lambda number: Digest.of(str(number).encode())),
    sequence=st.integers(1, 1000),
    published=st.integers(0, 100 * DAY),
    is_head=st.booleans(),
)


@given(
    rows=st.lists(ages, max_size=40, unique_by=lambda row: row.revision),
    keep=st.integers(1, 5),
    days=st.integers(0, 60),
    now=st.integers(0, 120 * DAY),
)
def test_retention_keeps_heads_the_newest_and_the_young(rows, keep, days, now) -> None:
    gone = expired(rows, Retention(keep, days), now)
    assert len(set(gone)) == len(gone)
    assert set(gone) <= set(rows)
    assert not any(row.is_head or row.published >= now - days * DAY for row in gone)
    for entry in {row.entry for row in rows}:
        of_entry = [row for row in rows if row.entry == entry]
        left = [row for row in of_entry if row not in gone]
        assert len(left) >= min(keep, len(of_entry))
        newer = sorted(of_entry, key=lambda row: -row.sequence)[:keep]
        assert not set(newer) & set(gone) or len({row.sequence for row in of_entry}) < len(of_entry)
    # What could have gone has gone: a run on the rest finds nothing more.
    assert expired([row for row in rows if row not in gone], Retention(keep, days), now) == []


def test_retention_by_default() -> None:
    rows = [RevisionAge(Digest.of(b"e"), Digest.of(b"%d" % n), n, n * DAY, n == 50) for n in range(51)]
    gone = expired(rows, Retention(), 51 * DAY)
    assert sorted(row.sequence for row in gone) == list(range(21))


def test_retention_refuses_to_keep_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1 revision"):
        Retention(0, 5)


def test_collectable() -> None:
    loose = ObjectFacts("packs/a", "live", 100, False)
    assert collectable(loose, 101)
    assert not collectable(loose, 100)
    assert not collectable(dataclasses.replace(loose, referenced=True), 101)
    assert collectable(dataclasses.replace(loose, state="deleting"), 1)
    assert not collectable(dataclasses.replace(loose, state="deleting", referenced=True), 1)
