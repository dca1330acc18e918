"""Public keys for which anybody can sign are refused: all encodings, computed from the curve."""

from __future__ import annotations

import base64
import contextlib
import sqlite3

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from registry_making import Server, make, ok, refused

from cachesvc_client.bundle.seal import PublicKey, SigningKey, TrustedKey

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
IDENTITY = (0, 1)
Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    """RFC 8032, section 5.1.4, without the projective coordinates."""
    (x1, y1), (x2, y2) = one, other
    both = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + both, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - both, -1, P)
    return x % P, y % P


def times(number: int, point: Point) -> Point:
    found = IDENTITY
    for bit in bin(number)[2:]:
        found = add(found, found)
        if bit == "1":
            found = add(found, point)
    return found


def roots(square: int) -> list[int]:
    """Square roots modulo P (RFC 8032, section 5.1.3)."""
    root = pow(square, (P + 3) // 8, P)
    if root * root % P != square % P:
        root = root * pow(2, (P - 1) // 4, P) % P
    return sorted({root, P - root if root else 0}) if root * root % P == square % P else []


def points_of_small_order() -> set[Point]:
    """Multiples by the large prime of enough points reach all eight."""
    prime = 2**252 + 27742317777372353535851937790883648493
    found: set[Point] = set()
    y = 2
    while len(found) < 8:
        for x in roots((y * y - 1) * pow(D * y * y + 1, -1, P) % P):
            found.add(times(prime, (x, y)))
        y += 1
    return found


def encoded(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


SMALL = points_of_small_order()
WEAK = sorted(
    {encoded(y, sign) for _, y in SMALL for sign in (0, 1)}
    | {encoded(y + P, sign) for _, y in SMALL if y + P < 1 << 255 for sign in (0, 1)}
)


def text_of(raw: bytes) -> str:
    return "ed25519:" + base64.b64encode(raw).decode()


def test_there_are_eight_points() -> None:
    assert all(times(8, point) == IDENTITY for point in SMALL) and len(SMALL) == 8
    assert len(WEAK) == 14


def test_signatures_that_nobody_made_verify_under_such_a_key() -> None:
    """What is at stake: OpenSSL, which `cryptography` calls, does not refuse them."""
    neutral = encoded(1, 0)
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), b"any message at all")


@pytest.mark.parametrize("raw", WEAK, ids=lambda raw: raw.hex()[:6] + raw.hex()[-6:])
def test_a_weak_key_is_no_key(raw: bytes) -> None:
    for kind, text in ((PublicKey, text_of(raw)), (TrustedKey, "team=" + text_of(raw))):
        with pytest.raises(ValueError, match="anybody can sign"):
            kind(text)


@pytest.mark.parametrize("y", [P + 2, P + 18])
def test_a_number_beyond_the_field_is_no_key(y: int) -> None:
    for sign in (0, 1):
        with pytest.raises(ValueError, match="public key"):
            PublicKey(text_of(encoded(y, sign)))


def test_every_other_key_is_one() -> None:
    for _ in range(200):
        key = SigningKey.generate().public
        assert PublicKey(str(key)) == TrustedKey(str(key)).key == key


def test_a_registry_accepts_no_such_signer(tmp_path) -> None:
    server = Server(tmp_path / "data").start()
    try:
        weak = {"namespace": "team", "key": text_of(WEAK[0])}
        refused(server.api().http.post("/v1/signers", json=weak), 422, "invalid", "anybody can sign")
        assert len(ok(server.api().http.get("/v1/signers"))) == 1
    finally:
        assert server.stop() == 0


def test_a_stored_weak_signer_is_ignored_with_a_log_line(tmp_path) -> None:
    """The row is written directly, as a version that accepted such keys left it."""
    server = Server(tmp_path / "data").start()
    weak, api = text_of(WEAK[0]), server.api()
    with contextlib.closing(sqlite3.connect(server.data / "index.sqlite3")) as index, index:
        index.execute("INSERT INTO signers VALUES ('team', ?, 'stored before', 0)", (weak,))
    ok(api.publish(make(server.key)))
    ok(api.bundle(make(server.key, target="bert/f16")))
    path = {"namespace": "*", "key": str(server.key.public)}
    ok(api.http.delete("/v1/signers", params=path))
    refused(api.bundle(make(server.key)), 403, "untrusted", "no usable signer", "signers add")
    ok(api.http.delete("/v1/signers", params={"namespace": "team", "key": weak}))
    assert any("a signer of namespace team is ignored" in line and weak in line for line in server.end())
