"""Test what takes time: leases, expiry, retention, collection. The registry runs in this process, with a
clock of the test's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, make

from cachesvc.domain.access import Life, Role, Token
from cachesvc.registry import answers, download, publish
from cachesvc.registry.access import tokens
from cachesvc.registry.upkeep import gc
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    Forbidden,
    HeadConflict,
    LeaseLost,
    NotFound,
    RangeInvalid,
    Unauthenticated,
)
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import ResolveRequest

DAY = 86_400


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def new_publication(reg: Inside, number: int = 1, **more):
    return make(reg.key, sequence=(START + number) * 1000, content=b"%d" % number, **more)


def test_an_expired_lease_loses_the_upload(reg: Inside) -> None:
    one = new_publication(reg)
    upload = reg.begin(one)
    reg.clock.now += 101
    with pytest.raises(LeaseLost, match="begin the upload again"):
        reg.put(upload, one.pack)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    reg.clock.now += 101
    with pytest.raises(LeaseLost):
        reg.commit(upload, one)
    with pytest.raises(NotFound):
        reg.resolve()
    gc.collect(reg.registry)
    assert reg.blobs() == set()
    with pytest.raises(NotFound):
        reg.commit(upload, one)
    assert reg.publish(one).created


def test_bytes_that_arrive_extend_the_lease(reg: Inside) -> None:
    one = make(reg.key, sequence=START * 1000, content=os.urandom(200))
    upload = reg.begin(one)

    def slowly() -> Iterator[bytes]:
        for start in range(0, len(one.pack), 20):
            reg.clock.now += 60
            gc.collect(reg.registry)
            yield one.pack[start : start + 20]

    assert publish.receive(reg.registry, ROOT, upload, slowly()).size == len(one.pack)
    assert reg.clock.now > START + 200
    assert reg.commit(upload, one).created


def test_an_upload_that_is_aborted_meanwhile_stops(reg: Inside) -> None:
    one = new_publication(reg)
    upload = reg.begin(one)

    def ended() -> Iterator[bytes]:
        yield one.pack[:10]
        publish.abort(reg.registry, ROOT, upload)
        yield one.pack[10:]

    with pytest.raises(LeaseLost):
        publish.receive(reg.registry, ROOT, upload, ended())
    gc.collect(reg.registry)
    assert reg.blobs() == set()


def test_a_commit_sent_again_after_another_publish_is_a_conflict(reg: Inside) -> None:
    one, two = new_publication(reg, 1), new_publication(reg, 2)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    first = reg.commit(upload, one)
    reg.publish(two, first.revision)
    with pytest.raises(HeadConflict):
        reg.commit(upload, one)


def test_retention_deletes_old_revisions_after_the_grace(reg: Inside) -> None:
    head, revisions = None, []
    for number in range(1, 6):
        reg.clock.now = START + number
        head = reg.publish(new_publication(reg, number), head).revision
        revisions.append(head)
    reg.clock.now = START + DAY
    assert gc.collect(reg.registry).revisions == 0
    reg.clock.now = START + DAY + 100
    assert gc.collect(reg.registry).revisions == 3
    with pytest.raises(NotFound):
        reg.pack(revisions[0])
    assert len(reg.blobs()) == 5
    reg.clock.now += 999
    assert gc.collect(reg.registry).objects == 0
    reg.clock.now += 2
    assert gc.collect(reg.registry).objects == 3
    assert reg.blobs() == reg.referenced()
    assert len(reg.blobs()) == 2
    assert reg.pack(head) == new_publication(reg, 5).pack
    assert gc.collect(reg.registry) == gc.Collected(0, 0, 0)


def test_a_reader_that_began_before_collection_finishes(reg: Inside) -> None:
    one = new_publication(reg)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    [key] = reg.blobs()
    chunks = reg.registry.packs.blobs.open(key)
    reg.clock.now += 101
    assert gc.collect(reg.registry).objects == 1
    assert b"".join(chunks) == one.pack


def test_collection_continues_after_a_killed_collector(reg: Inside) -> None:
    one = new_publication(reg)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    [key] = reg.blobs()
    with reg.registry.index.write() as unit:
        assert unit.objects.mark(key, reg.registry.now + 101)
    with pytest.raises(LeaseLost, match="collected"):
        reg.commit(upload, one)
    reg.registry.packs.blobs.delete(key)
    assert gc.collect(reg.registry).objects == 1
    with reg.registry.index.read() as unit:
        assert unit.objects.loose(reg.registry.now + 10**6, 10) == []


def test_tokens_expire(reg: Inside) -> None:
    answer = tokens.create_token(reg.registry, None, TokenRequest("ci", "read", "team", None, 1))
    token = tokens.authenticate(reg.registry, answer.secret)
    assert token == Token(answer.token, "ci", Role.read, "team", life=Life(START, START + DAY))
    reg.clock.now += DAY - 1
    later = tokens.authenticate(reg.registry, answer.secret)
    assert later == dataclasses.replace(token, life=Life(START, START + DAY, last_used=START))
    reg.clock.now += 1
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.authenticate(reg.registry, answer.secret)


def test_a_revocation_on_another_replica_takes_effect_within_five_seconds(reg: Inside) -> None:
    answer = tokens.create_token(reg.registry, None, TokenRequest("ci", "read", "*"))
    tokens.authenticate(reg.registry, answer.secret)
    elsewhere = dataclasses.replace(reg.registry, hot=type(reg.registry.hot)(clock=reg.clock))
    tokens.revoke_token(elsewhere, ROOT, answer.token)
    reg.clock.now += 5
    with pytest.raises(Unauthenticated, match="revoked"):
        tokens.authenticate(reg.registry, answer.secret)


def test_answers_are_remembered_for_five_seconds_and_forgotten_at_a_publish(reg: Inside) -> None:
    request = ResolveRequest(Namespace("team"), ShortName("bert"), FINGERPRINT)

    def answer(registry=reg.registry) -> bytes:
        return reg.answer(request, registry=registry)

    one = new_publication(reg, 1)
    head = reg.publish(one).revision
    assert one.revision.encode() in answer()
    two = new_publication(reg, 2)
    head = reg.publish(two, head).revision
    assert two.revision.encode() in answer()
    elsewhere = dataclasses.replace(reg.registry, hot=type(reg.registry.hot)(clock=reg.clock))
    assert answer(elsewhere) == answer()
    three = new_publication(reg, 3)
    reg.publish(three, head)
    assert three.revision.encode() in answer()
    assert three.revision.encode() not in answer(elsewhere)
    reg.clock.now += 5
    assert three.revision.encode() in answer(elsewhere)


def test_a_remembered_answer_is_returned_without_waiting(reg: Inside) -> None:
    """Only askers with the right to read it get the answer, as long as it is valid."""
    request = ResolveRequest(Namespace("team"), ShortName("bert"), FINGERPRINT, lane=Lane("pr-1"))
    body = codec.canonical(request)
    head = reg.publish(new_publication(reg, 1)).revision
    assert answers.cached_answer(reg.registry, ROOT, body) is None
    answer = reg.answer(request, body)
    assert answers.cached_answer(reg.registry, ROOT, body) == answers.AgedAnswer(answer)
    reg.clock.now += 2.1
    assert answers.cached_answer(reg.registry, ROOT, body) == answers.AgedAnswer(answer, age=3)
    assert answers.cached_answer(reg.registry, ROOT, body.replace(b"team", b"meat")) is None
    for stranger in (
        Token("t-1", "other team", Role.admin, "other"),
        Token("t-2", "other lane", Role.read, "team", Lane("pr-2")),
    ):
        with pytest.raises(Forbidden):
            answers.cached_answer(reg.registry, stranger, body)
    reg.publish(new_publication(reg, 2), head)
    assert answers.cached_answer(reg.registry, ROOT, body) is None
    reg.answer(request, body)
    reg.clock.now += 5
    assert answers.cached_answer(reg.registry, ROOT, body) is None


def test_questions_that_come_together_each_have_their_answer(reg: Inside) -> None:
    """Some are answered with an error, some are answered already, and some are alike."""
    first, other = (
        new_publication(reg, 1),
        new_publication(reg, 2, name="bart", fingerprint={**FINGERPRINT, "torch": "1.0"}),
    )
    for one in (first, other):
        reg.publish(one)

    def question(name: str, **more) -> answers.Question:
        request = ResolveRequest(Namespace("team"), ShortName(name), FINGERPRINT, **more)
        return answers.Question(ROOT, request, codec.canonical(request))

    known = answers.answer_each(reg.registry, [question("bert")])[0]
    by_key = question("bert", entries=(first.manifest.entry,))
    later = question("bert", tags=(Tag("v9"), Tag("latest")))
    questions = [question("none"), question("bert"), by_key, question("bart"), later, question("bart")]
    none, bert, keyed, bart, fallen, again = answers.answer_each(reg.registry, questions)
    assert isinstance(none, NotFound)
    assert bert == known == fallen and first.revision.encode() in known.body
    assert first.revision.encode() in keyed.body and keyed != bert
    assert bart == again and b'"factor":"torch"' in bart.body and not answers.offers_revision(bart.body)
    with pytest.raises(Forbidden):
        answers.Question(Token("t-1", "other", Role.admin, "other"), questions[0].request)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"{}", b'{"namespace":[]}', b'{"namespace":null}', b"\xff", b"[" * 100_000],
    ids=lambda body: repr(body[:20]),
)
def test_no_request_body_breaks_the_search_for_its_answer(reg: Inside, body: bytes) -> None:
    assert answers.cached_answer(reg.registry, ROOT, body) is None


def test_a_pack_that_the_store_cut_short_is_named_with_what_repairs_it(reg: Inside) -> None:
    one = new_publication(reg)
    answer = reg.publish(one)
    pack = download.find_pack(reg.registry, ROOT, answer.revision)
    reg.registry.packs.blobs.delete(pack.key)
    reg.registry.packs.blobs.put(pack.key, [one.pack[:100]])
    with pytest.raises(RangeInvalid, match=f"less of the pack .* than its {pack.size} bytes") as caught:
        list(download.read_pack(reg.registry, pack, 100, pack.size - 100))
    assert "admin fsck" in caught.value.hint


def test_a_signer_removed_before_the_commit_does_not_count(reg: Inside) -> None:
    """The transaction checks the signer again, since the first check comes before it."""
    one = new_publication(reg)
    upload = reg.begin(one)
    reg.put(upload, one.pack)
    other = SigningKey.generate()
    signed = dataclasses.replace(one, envelope=other.sign(one.manifest))
    with reg.registry.index.read() as unit:
        row = unit.uploads.get(upload)
        verified = check_envelope(signed.envelope, trusted=[other.public], expected=None, now=reg.clock())
        with pytest.raises(Exception, match="may no longer sign"):
            publish._record(reg.registry, unit, ROOT, row, verified, (), None, repeats=False)
    assert Digest.of(one.pack) == one.manifest.pack.digest
