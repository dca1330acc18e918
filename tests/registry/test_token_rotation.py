"""Test that a token gets another secret without an outage, and that its last use is written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside

from cachesvc.registry import audit
from cachesvc.registry.access import tokens
from cachesvc.schema.access import Rotation, TokenAnswer, TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unauthenticated


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def new_token(reg: Inside) -> TokenAnswer:
    return tokens.create_token(reg.registry, None, TokenRequest("ci", "write", "team"))


def accepted(reg: Inside, answer: TokenAnswer) -> bool:
    assert answer.secret is not None
    try:
        return tokens.authenticate(reg.registry, answer.secret).token == answer.token
    except Unauthenticated:
        return False


def test_both_secrets_are_valid_for_the_overlap_and_then_one(reg: Inside) -> None:
    old = new_token(reg)
    new = tokens.rotate_token(reg.registry, ROOT, old.token, Rotation(600))
    assert new.token == old.token and new.secret != old.secret and new.expires == old.expires
    assert new.previous_until == reg.clock.now + 600
    assert accepted(reg, old) and accepted(reg, new)
    reg.clock.now += 606  # what is remembered of a secret counts for 5 s
    assert not accepted(reg, old) and accepted(reg, new)


def test_no_overlap_and_a_second_rotation_end_a_secret_at_once(reg: Inside) -> None:
    first = new_token(reg)
    assert accepted(reg, first)
    second = tokens.rotate_token(reg.registry, ROOT, first.token, Rotation(0))
    assert not accepted(reg, first) and accepted(reg, second)
    third = tokens.rotate_token(reg.registry, ROOT, first.token, Rotation(600))
    fourth = tokens.rotate_token(reg.registry, ROOT, first.token, Rotation(600))
    assert [accepted(reg, answer) for answer in (second, third, fourth)] == [False, True, True]


def test_a_revocation_ends_both_secrets(reg: Inside) -> None:
    old = new_token(reg)
    new = tokens.rotate_token(reg.registry, ROOT, old.token, Rotation(600))
    assert accepted(reg, old) and accepted(reg, new)
    tokens.revoke_token(reg.registry, ROOT, old.token)
    assert not accepted(reg, old) and not accepted(reg, new)
    with pytest.raises(InvalidRequest, match="was revoked"):
        tokens.rotate_token(reg.registry, ROOT, old.token, Rotation())


def test_what_cannot_be_rotated_says_why(reg: Inside) -> None:
    with pytest.raises(NotFound):
        tokens.rotate_token(reg.registry, ROOT, "t-none", Rotation())
    with pytest.raises(InvalidRequest, match="overlap_seconds: 0 to 2592000"):
        tokens.rotate_token(reg.registry, ROOT, new_token(reg).token, Rotation(31 * 86_400))


def test_the_last_use_is_written_down_once_an_hour(reg: Inside) -> None:
    def used() -> int | None:
        return next(row.last_used for row in tokens.list_tokens(reg.registry, ROOT) if row.token == old.token)

    old = new_token(reg)
    assert used() is None
    began = int(reg.clock.now)
    assert accepted(reg, old) and used() == began
    reg.clock.now += 1800
    assert accepted(reg, old) and used() == began
    reg.clock.now += 1801
    assert accepted(reg, old) and used() == began + 3601


def test_the_audit_log_names_the_label_of_who_did_it(reg: Inside) -> None:
    by = tokens.create_token(reg.registry, None, TokenRequest("Ada's laptop", "admin", "*"))
    assert by.secret is not None
    ada = tokens.authenticate(reg.registry, by.secret)
    tokens.rotate_token(reg.registry, ada, new_token(reg).token, Rotation())
    row, *older = audit.audit_page(reg.registry, ROOT).rows
    assert (row.action, row.by, row.by_label) == ("token.rotate", by.token, "Ada's laptop")
    assert older[-1].by_label == ""  # the console has no token
