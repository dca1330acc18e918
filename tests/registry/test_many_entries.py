"""Test resolves under a name with many entries: a start gets few, and asks for others by the keys of
graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_inside import Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.registry.upkeep import gc
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Tag
from cachesvc_client.wire.requests.protocol import FEW_RESOLVED, ResolveAnswer, ResolveRequest

MANY = 40
OTHER = {**FINGERPRINT, "torch": "2.12.0"}


def key_of(number: int) -> str:
    """Return the key of the graph of an entry."""
    return f"a{number:040d}"


def entry(key: SigningKey, number: int, **more: object) -> Publication:
    """Make an entry with a graph of its own, and a model that it shares with nine others."""
    more = {"model": f"model {number // 10}".encode(), **more}
    path = f"aotautograd/{key_of(number)}/b{number:040d}"
    return make(key, target=f"t{number}/f32", content=b"graph %d" % number, path=path, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def many(tmp_path: Path, key: SigningKey, column: Column) -> Iterator[Inside]:
    """A registry whose name has ``MANY`` entries, one second apart, and three of another environment."""
    clock = Clock()
    with inside(tmp_path, key, clock, column=column) as registry:
        for number in range(MANY):
            clock.now += 1
            registry.publish(entry(key, number))
        for number in range(MANY, MANY + 3):
            registry.publish(entry(key, number, fingerprint=OTHER))
        yield registry


def targets(answer: ResolveAnswer, key: SigningKey) -> list[str]:
    from cachesvc_client.bundle.check import check_envelope

    envelopes = [revision.envelope_bytes for revision in answer.revisions]
    checked = [check_envelope(one, trusted=[key.public], expected=None, now=0) for one in envelopes]
    return sorted(str(one.manifest.statement.target) for one in checked)


def test_many_entries_fit_and_a_start_gets_none_but_their_number(many: Inside) -> None:
    answer = many.resolve(most=FEW_RESOLVED)
    assert (answer.revisions, answer.more, answer.tag) == ((), MANY, "latest")
    assert [row.differences[0].factor for row in answer.rejected] == ["torch"], "one for each partition"
    assert len(codec.canonical(answer)) < 2000


def test_the_entries_of_the_model_come_if_they_are_few(many: Inside, key: SigningKey) -> None:
    answer = many.resolve(most=FEW_RESOLVED, model=Digest.of(b"model 1"))
    assert targets(answer, key) == sorted(f"t{number}/f32" for number in range(10, 20))
    assert answer.more == MANY - 10
    answer = many.resolve(most=5, model=Digest.of(b"model 1"))
    assert (answer.revisions, answer.more) == ((), MANY)


def test_the_few_that_fit_come_though_the_name_has_many(many: Inside, key: SigningKey) -> None:
    body = {"namespace": "team", "name": "bert", "fingerprint": OTHER, "most": FEW_RESOLVED}
    raw = many.answer(codec.build(ResolveRequest, body))
    answer = codec.build(ResolveAnswer, codec.parse_json(raw, limit=len(raw), what="the answer"))
    assert targets(answer, key) == [f"t{number}/f32" for number in range(MANY, MANY + 3)]
    assert answer.more is None and b'"more"' not in raw


def test_a_graph_is_answered_by_its_key_alone(many: Inside, key: SigningKey) -> None:
    """The oldest too; and nothing of another environment."""
    answer = many.resolve(keys=(key_of(0), key_of(33), key_of(MANY + 1)))
    assert targets(answer, key) == ["t0/f32", "t33/f32"]
    assert [row.target for row in answer.rejected] == [f"t{MANY + 1}/f32"]


def test_a_key_that_nobody_has_is_no_error(many: Inside) -> None:
    assert many.resolve(keys=(key_of(999),)) == ResolveAnswer((), (), Tag("latest"))
    assert many.resolve("unknown", keys=(key_of(0),)) == ResolveAnswer(())


def test_a_client_that_does_not_say_most_gets_all(many: Inside) -> None:
    answer = many.resolve()
    assert len(answer.revisions) == MANY and answer.more is None


def test_a_replaced_head_is_found_by_its_new_key_alone(many: Inside, key: SigningKey) -> None:
    old = many.resolve(keys=(key_of(7),)).revisions[0]
    new = make(
        key, target="t7/f32", content=b"new", path=f"aotautograd/{key_of(700)}/b{0:040d}", model=b"model 0"
    )
    many.publish(new, head=old.revision)
    assert many.resolve(keys=(key_of(7),)).revisions == ()
    assert targets(many.resolve(keys=(key_of(700),)), key) == ["t7/f32"]


def test_a_name_with_an_entry_that_no_graph_asks_for_is_answered_whole(many: Inside, key: SigningKey) -> None:
    """Such as an extension, which is built when it is imported."""
    many.publish(make(key, target="extension", path="x/x.so"))
    answer = many.resolve(most=FEW_RESOLVED)
    assert len(answer.revisions) == MANY + 1 and answer.more is None
    assert gc.collect(many.registry) and len(many.resolve(most=FEW_RESOLVED).revisions) == MANY + 1


def test_a_lane_gets_its_own_entries_and_all_of_the_trunk(many: Inside, key: SigningKey) -> None:
    many.publish(entry(key, 5, lane="pr-1"))
    answer = many.resolve(most=FEW_RESOLVED, lane="pr-1")
    assert len(answer.revisions) == MANY and answer.more is None


def test_a_withheld_graph_is_not_answered(many: Inside) -> None:
    from registry_inside import ROOT

    from cachesvc.registry.upkeep import quarantine

    revision = many.resolve(keys=(key_of(4),)).revisions[0].revision
    quarantine.withdraw(many.registry, ROOT, revision, "wrong numbers")
    answer = many.resolve(keys=(key_of(4),))
    assert answer.revisions == () and answer.rejected[0].withheld


@pytest.mark.parametrize(
    "wrong", [{"most": 0}, {"most": 257}, {"keys": ("UPPER" * 8,)}, {"keys": (key_of(1),) * 17}]
)
def test_a_request_out_of_bounds_is_refused(wrong: dict[str, object]) -> None:
    request = ResolveRequest("team", "bert", FINGERPRINT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"most|keys"):
        dataclasses.replace(request, **wrong)
