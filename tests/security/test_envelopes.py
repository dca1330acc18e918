"""Whoever sends an envelope that no trusted key signed as it is: forged, altered, or read in two ways."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from registry_making import make

from cachesvc_client.bundle.check import ExpectedStatement, check_envelope
from cachesvc_client.bundle.seal import PublicKey, SigningKey, pae
from cachesvc_client.wire.errors import Corrupt, Untrusted
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE
from cachesvc_client.wire.names import Namespace, ShortName

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of edwards25519's base point (RFC 8032, section 5.1)."""
KEY, STRANGER = SigningKey.generate(), SigningKey.generate()
MADE = make(KEY)
EXPECTED = ExpectedStatement(Namespace("team"), ShortName("bert"))


def check(envelope: bytes) -> Any:
    """Check an envelope as a service does that trusts ``KEY`` alone."""
    return check_envelope(envelope, trusted=[KEY.public], expected=EXPECTED, now=0.0)


def encoded(payload: bytes, *signatures: tuple[str, bytes], payload_type: str = PAYLOAD_TYPE) -> bytes:
    rows = [{"keyid": keyid, "sig": base64.b64encode(sig).decode()} for keyid, sig in signatures]
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": rows,
    }
    return json.dumps(envelope).encode()


def signature_of(envelope: bytes) -> bytes:
    return base64.b64decode(json.loads(envelope)["signatures"][0]["sig"])


def signed(payload: bytes, key: SigningKey = KEY) -> bytes:
    return key.sign_bytes(payload, PAYLOAD_TYPE)


PAYLOAD = MADE.manifest.encode()
SIGNATURE = signature_of(MADE.envelope)


def test_the_envelope_without_an_attack_is_accepted() -> None:
    assert check(encoded(PAYLOAD, (KEY.public.keyid, SIGNATURE))).signer == KEY.public


def test_a_changed_signature_that_means_the_same_number_is_refused() -> None:
    """Ed25519 is malleable unless S is below the order: R, S and R, S + L satisfy one equation."""
    for times in range(1, 8):
        number = int.from_bytes(SIGNATURE[32:], "little") + times * ORDER
        if number < 1 << 256:
            other = SIGNATURE[:32] + number.to_bytes(32, "little")
            with pytest.raises(Untrusted, match="does not match"):
                check(encoded(PAYLOAD, (KEY.public.keyid, other)))


def test_a_stranger_signs_under_the_key_id_of_a_trusted_key() -> None:
    theirs = signature_of(signed(PAYLOAD, STRANGER))
    with pytest.raises(Untrusted, match="does not match"):
        check(encoded(PAYLOAD, (KEY.public.keyid, theirs)))


def test_a_key_id_that_two_trusted_keys_share_gives_neither_the_others_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 hex digits can be made to collide; the id is a hint, and the signature decides."""
    monkeypatch.setattr(PublicKey, "keyid", property(lambda _key: "0" * 16))
    other = replace(MADE.manifest, statement=replace(MADE.manifest.statement, namespace=Namespace("other")))
    envelope = STRANGER.sign(other)
    trusted = [KEY.public, STRANGER.public]
    assert check_envelope(envelope, trusted=trusted, expected=None, now=0.0).signer == STRANGER.public
    with pytest.raises(Untrusted, match="does not match"):
        check_envelope(envelope, trusted=[KEY.public], expected=None, now=0.0)


def test_a_forged_signature_is_not_covered_by_a_good_one_of_other_bytes() -> None:
    """Two signatures: a trusted key's of another manifest, and a stranger's of this one."""
    hostile = make(STRANGER, content=b"hostile").manifest.encode()
    theirs = signature_of(signed(hostile, STRANGER))
    for pair in (
        [(KEY.public.keyid, SIGNATURE), (STRANGER.public.keyid, theirs)],
        [(STRANGER.public.keyid, theirs), (KEY.public.keyid, SIGNATURE)],
    ):
        with pytest.raises(Untrusted):
            check(encoded(hostile, *pair))


def test_a_stranger_who_signs_too_is_not_taken_for_the_signer() -> None:
    theirs = signature_of(signed(PAYLOAD, STRANGER))
    envelope = encoded(PAYLOAD, (STRANGER.public.keyid, theirs), (KEY.public.keyid, SIGNATURE))
    assert check(envelope).signer == KEY.public


def test_a_thousand_signatures_are_not_tried() -> None:
    rows = [(KEY.public.keyid, bytes(64))] * 5
    with pytest.raises(Corrupt, match="signatures"):
        check(encoded(PAYLOAD, *rows))
    with pytest.raises(Corrupt, match="more parts"):
        check(encoded(PAYLOAD, *rows * 200))


def test_signed_bytes_of_another_type_are_no_manifest() -> None:
    """The type is part of what is signed: it cannot be changed, and another one is not read."""
    envelope = KEY.sign_bytes(PAYLOAD, "application/vnd.in-toto+json")
    with pytest.raises(Corrupt, match="payload type"):
        check(envelope)
    with pytest.raises(Untrusted, match="does not match"):
        check(encoded(PAYLOAD, (KEY.public.keyid, signature_of(envelope))))


def test_the_border_between_type_and_payload_does_not_move() -> None:
    """Without lengths, one signature would serve for another division of the same bytes."""
    assert pae("a", b"b c") != pae("a b", b"c")
    moved = PAYLOAD_TYPE + " " + str(len(PAYLOAD))
    envelope = encoded(PAYLOAD[1:], (KEY.public.keyid, SIGNATURE), payload_type=moved)
    with pytest.raises(Corrupt, match="payload type"):
        check(envelope)


def test_a_key_that_stands_twice_is_not_read_in_two_ways() -> None:
    """Some parsers take the first of two equal keys, some the last."""
    text = PAYLOAD.replace(b'"name":"bert"', b'"name":"other","name":"bert"', 1)
    assert text != PAYLOAD
    with pytest.raises(Corrupt, match="twice"):
        check(signed(text))
    envelope = MADE.envelope.replace(b'"payloadType"', b'"payload":"e30=","payloadType"', 1)
    with pytest.raises(Corrupt, match="twice"):
        check(envelope)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" * 5000])
def test_a_number_that_is_none_or_too_large_is_refused(number: str) -> None:
    text = PAYLOAD.replace(b'"compile":1.5', b'"compile":' + number.encode(), 1)
    assert text != PAYLOAD
    with pytest.raises(Corrupt) as raised:
        check(signed(text))
    assert len(str(raised.value)) < 500 and str(raised.value).isprintable()


@pytest.mark.parametrize("sequence", ["-0", "-1", "0", "1e3", "9007199254740992", "true", '"1"'])
def test_a_sequence_that_is_no_count_is_refused(sequence: str) -> None:
    """A sequence that compares as the highest, or as no number, would end every comparison after it."""
    number = str(MADE.manifest.statement.sequence).encode()
    text = PAYLOAD.replace(b'"sequence":' + number, b'"sequence":' + sequence.encode(), 1)
    assert text != PAYLOAD
    with pytest.raises(Corrupt):
        check(signed(text))


def test_base64_with_more_than_its_letters_is_refused() -> None:
    """Decoders that pass over what is no letter give one payload many texts."""
    value = json.loads(MADE.envelope)
    text = value["payload"]
    for other in (
        text + "\n",
        " " + text,
        text[:8] + "\u0000" + text[8:],
        text[:8] + "-" + text[8:],
        text + "==",
    ):
        with pytest.raises((Corrupt, Untrusted)):
            check(json.dumps({**value, "payload": other}).encode())


@pytest.mark.parametrize("coding", ["utf-16", "utf-32", "utf-8-sig", "utf-7"])
def test_an_envelope_in_another_coding_grants_nothing(coding: str) -> None:
    """It is refused, or read as what was signed."""
    hostile = encoded(make(STRANGER).manifest.encode(), (KEY.public.keyid, SIGNATURE)).decode()
    with pytest.raises((Corrupt, Untrusted)):
        check(hostile.encode(coding))
