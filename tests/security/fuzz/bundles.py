"""Fuzzes envelopes, manifests, packs and bundle files, re-digested and signed again by a trusted key."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from packing import KEY, RULES, make_pack

from cachesvc_client.bundle import check, file
from cachesvc_client.bundle.check import ExpectedStatement
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.node.install import install
from cachesvc_client.wire.errors import Corrupt, NotFound, StorageFull, Untrusted
from cachesvc_client.wire.manifest.records import FRAME_BYTES, MAX_ENVELOPE_BYTES, PAYLOAD_TYPE, Manifest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag

from .choices import json_bytes, mutate, mutate_bytes
from .parsers import Check, Parser, described

NOW = 1_700_000_100
STRANGER = SigningKey.from_text("ed25519-private:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=")
EXPECTED = (
    None,
    ExpectedStatement(Namespace("team"), ShortName("bert")),
    ExpectedStatement(Namespace("team"), ShortName("bert"), (Tag("latest"), Tag("v2"))),
    ExpectedStatement(Namespace("team"), ShortName("bert"), None, Lane("pr-1")),
    ExpectedStatement(Namespace("other"), ShortName("bert")),
)
TRUSTED = (
    (KEY.public,),
    (TrustedKey(f"team={KEY.public}"),),
    (TrustedKey(f"other={KEY.public}"), TrustedKey(f"team={KEY.public}")),
    (TrustedKey(f"other={KEY.public}"),),
)
DOCUMENTED = (Untrusted, Corrupt, NotFound, StorageFull)


def base_value(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns a good pack and the JSON of its manifest."""
    path, manifest = make_pack(folder, expires=NOW + 1000)
    return path.read_bytes(), json.loads(manifest.encode())


# The envelope.


@contextmanager
def open_envelope(folder: Path) -> Iterator[Check]:
    """Yields the check of envelopes."""
    _, value = base_value(folder)

    def one(choose: random.Random) -> str:
        envelope = hostile_envelope(choose, value)
        trusted, expected = choose.choice(TRUSTED), choose.choice(EXPECTED)
        try:
            verified = check.check_envelope(envelope, trusted=trusted, expected=expected, now=NOW)
        except (Untrusted, Corrupt) as error:
            return described(error)
        judge_envelope(envelope, trusted, expected)
        assert verified.envelope == envelope
        return "accepted"

    yield one


def hostile_envelope(choose: random.Random, value: dict[str, Any]) -> bytes:
    """Returns an envelope in which signer, statement, payload, type or form is not what it should be."""
    value = json.loads(json.dumps(value))
    changes = (
        ("lane", "pr-1"),
        ("lane", "pr-2"),
        ("tag", "v2"),
        ("namespace", "other"),
        ("expires", NOW - 400),
    )
    if choose.randint(0, 1):
        value["statement"].update([choose.choice(changes)])
    kind = choose.choice((PAYLOAD_TYPE, PAYLOAD_TYPE, PAYLOAD_TYPE, "application/json", ""))
    key = choose.choice((KEY, KEY, KEY, STRANGER))
    payload = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    envelope = json.loads(key.sign_bytes(payload, kind))
    for _ in range(choose.randint(0, 2)):
        change = choose.randint(0, 6)
        if change == 0:
            envelope["payload"] = _base64(json_bytes(choose, mutate(choose, value)))
        elif change == 1:
            envelope["payload"] = _base64(json.dumps(value, indent=1).encode())
        elif change == 2:
            envelope["payloadType"] = choose.choice((PAYLOAD_TYPE, "application/json"))
        elif change == 3 and envelope["signatures"]:
            envelope["signatures"][0]["keyid"] = choose.choice((KEY, STRANGER)).public.keyid
        elif change == 4:
            other = json.loads(choose.choice((KEY, STRANGER)).sign_bytes(payload, kind))
            envelope["signatures"].extend(other["signatures"] * choose.choice((1, 3, 5)))
        elif change == 5:
            envelope = mutate(choose, envelope)
            return json_bytes(choose, envelope)
        elif envelope["signatures"]:
            envelope["signatures"][0]["sig"] = _base64(bytes(choose.choice((0, 32, 64, 65))))
    return json_bytes(choose, envelope)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def judge_envelope(envelope: bytes, trusted: Any, expected: ExpectedStatement | None) -> None:
    """Asserts by rules of its own that an accepted envelope had to be accepted."""
    value = json.loads(envelope)
    payload = base64.b64decode(value["payload"], validate=True)
    assert value["payloadType"] == PAYLOAD_TYPE, "another payload type was accepted"
    kind = PAYLOAD_TYPE.encode()
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    public = Ed25519PublicKey.from_public_bytes(KEY.public.raw)
    assert any(_is_by(public, base64.b64decode(row["sig"]), message) for row in value["signatures"]), (
        "no trusted key signed these bytes"
    )
    said = json.loads(payload)["statement"]
    spaces = {key.namespace if isinstance(key, TrustedKey) else None for key in trusted}
    assert spaces & {None, "*", said["namespace"]}, "the key is not trusted for this namespace"
    assert said.get("expires") is None or said["expires"] + 300 >= NOW, "it has expired"
    if expected is not None:
        assert (said["namespace"], said["name"]) == (expected.namespace, expected.name), "another name"
        assert expected.tags is None or said.get("tag", "latest") in expected.tags, "another tag"
        assert said.get("lane") in (None, expected.lane), "another lane"


def _is_by(public: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        public.verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# The manifest.


@contextmanager
def open_manifest(folder: Path) -> Iterator[Check]:
    """Yields the check of manifests that a trusted key signed, whatever they say."""
    _, value = base_value(folder)

    def one(choose: random.Random) -> str:
        changed = hostile_manifest(choose, value)
        envelope = KEY.sign_bytes(json_bytes(choose, changed), PAYLOAD_TYPE)
        try:
            verified = check.check_envelope(envelope, trusted=(KEY.public,), expected=None, now=NOW)
        except (Untrusted, Corrupt) as error:
            return described(error)
        judge_manifest(verified.manifest)
        return "accepted"

    yield one


def hostile_manifest(choose: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest that was changed anywhere; mostly frames and files. Half of them have sound
    arithmetic again, so that they reach the checks behind it."""
    changed = json.loads(json.dumps(value))
    part = choose.choice(("files", "files", "frames", "pack", "statement", ""))
    if choose.randint(0, 31) == 31:  # as a bomb of zeros has them: small frames that unpack to a lot
        raw = choose.choice((FRAME_BYTES, FRAME_BYTES - 1, 1))
        bomb = {**changed["frames"][0], "size": 200, "raw": raw}
        changed["frames"] = [dict(bomb) for _ in range(choose.choice((66, 200, 64, 63, 2)))]
        _repair(changed)
        return changed
    if part:
        changed[part] = mutate(choose, {"": changed[part]}).get("", None)
    else:
        changed = mutate(choose, changed)
    if choose.randint(0, 1):
        _repair(changed)
    return changed


def _repair(value: dict[str, Any]) -> None:
    """Puts the frames back to back, and the pack's size to their end."""
    offset, frames = 16, value.get("frames")
    if not isinstance(frames, list) or not isinstance(value.get("pack"), dict):
        return
    for frame in frames:
        if isinstance(frame, dict) and isinstance(frame.get("size"), int):
            frame["offset"] = offset
            offset += frame["size"]
    value["pack"]["size"] = offset


def judge_manifest(manifest: Manifest) -> None:
    """Asserts that nothing in an accepted manifest leads out of its folder, its pack or its bounds."""
    offset, raw = 16, 0
    starts = []
    for frame in manifest.frames:
        assert frame.offset == offset and frame.size > 0 and 0 < frame.raw <= FRAME_BYTES, "frames"
        starts.append(raw)
        offset, raw = offset + frame.size, raw + frame.raw
    assert offset == manifest.pack.size, "the frames are not the pack"
    most = (256 << 20) + 256 * manifest.pack.size
    assert raw <= most and sum(one.size for one in manifest.files) <= most, "a bomb"
    seen: set[str] = set()
    for one in manifest.files:
        path = f"{one.kind}/{one.path}"
        assert all(part and part[0] != "." for part in path.split("/")), f"path {path!r}"
        assert path.isascii() and path.isprintable() and "\\" not in path, f"path {path!r}"
        assert path not in seen, "a path stands twice"
        seen.add(path)
        assert one.mode in (0o644, 0o755), "mode"
        if one.size:
            assert one.frame < len(starts) and starts[one.frame] + one.offset + one.size <= raw, "outside"
    assert not any(f"{name.rpartition('/')[0]}" in seen for name in seen), "a file is a folder too"
    assert 0 < manifest.statement.sequence < 1 << 53, "sequence"
    manifest.encode(), manifest.entry, manifest.partition


# The pack.


@contextmanager
def open_pack(folder: Path) -> Iterator[Check]:
    """Yields the check of packs: what is read and installed was signed, and lies where it may."""
    data, value = base_value(folder)
    place = folder / "fuzzed.pack"

    def one(choose: random.Random) -> str:
        pack, changed = hostile_pack(choose, data, value)
        envelope = KEY.sign_bytes(json.dumps(changed).encode(), PAYLOAD_TYPE)
        place.write_bytes(pack)
        try:
            manifest = check.check_envelope(envelope, trusted=(KEY.public,), expected=None, now=NOW).manifest
            if choose.randint(0, 1):
                check.check_pack(io.BytesIO(pack), manifest)
                assert hashlib.sha256(pack).hexdigest() == manifest.pack.digest.hex, "another pack"
            with PackReader(place, manifest) as reader:
                _judge_frames(reader, pack)
                reader.verify()
                for record in manifest.files:
                    digest = hashlib.sha256(reader.read(record)).hexdigest()
                    assert digest == record.digest.hex, "a file does not have its digest"
                _install(choose, reader, folder / "node")
        except DOCUMENTED as error:
            return described(error)
        return "accepted"

    yield one


def hostile_pack(choose: random.Random, data: bytes, value: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Returns a pack and its manifest. Either the pack is altered under an honest manifest, or frames are
    made anew and the manifest names their digests, or the manifest is altered over an honest pack."""
    kind = choose.randint(0, 5)
    changed = json.loads(json.dumps(value))
    if kind == 0:
        return mutate_bytes(choose, data), changed
    if kind == 1:
        return data, changed
    if kind == 2:
        return data, hostile_manifest(choose, value)
    frames, pieces = changed["frames"], [data[one["offset"] :][: one["size"]] for one in changed["frames"]]
    at = choose.randint(0, len(pieces) - 1)
    pieces[at] = _hostile_frame(choose, pieces[at])
    if choose.randint(0, 3) == 0:
        frames[at]["raw"] = choose.choice((1, frames[at]["raw"] + 1, FRAME_BYTES))
    pack = data[:16] + b"".join(pieces)
    for frame, piece in zip(frames, pieces, strict=True):
        frame["size"], frame["digest"] = len(piece), "sha256:" + hashlib.sha256(piece).hexdigest()
    _repair(changed)
    changed["pack"]["digest"] = "sha256:" + hashlib.sha256(pack).hexdigest()
    return pack, changed


def _hostile_frame(choose: random.Random, piece: bytes) -> bytes:
    """Returns a frame of zstd that is damaged, larger or smaller than it is said to be, or has no size."""
    kind = choose.randint(0, 4)
    if kind == 0:
        return mutate_bytes(choose, piece) or b"\0"
    raw = bytearray(zstandard.ZstdDecompressor().decompress(piece))
    if kind == 1:
        raw[choose.randint(0, len(raw) - 1)] ^= 1
    elif kind == 2:
        raw += bytes(choose.choice((1, 1000, FRAME_BYTES, 4 * FRAME_BYTES)))
    elif kind == 3:
        del raw[choose.randint(0, len(raw) - 1) :]
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=bool(choose.randint(0, 2)))
    return compressor.compress(bytes(raw)) + (piece if choose.randint(0, 7) == 0 else b"")


def _judge_frames(reader: PackReader, pack: bytes) -> None:
    for index, frame in enumerate(reader.manifest.frames):
        raw = reader.frame(index)
        stored = pack[frame.offset : frame.offset + frame.size]
        assert hashlib.sha256(stored).hexdigest() == frame.digest.hex, "a frame that nobody signed"
        assert len(raw) == frame.raw <= FRAME_BYTES, "a frame of another size"


def _install(choose: random.Random, reader: PackReader, node: Path) -> None:
    """Installs into folders of which one may be a link to the outside; asserts that nothing is written
    there."""
    if choose.randint(0, 3):
        return
    number = sum(1 for _ in node.iterdir()) if node.exists() else 0
    outside, roots = node / f"{number}-outside", {kind: node / f"{number}-{kind}" for kind in RULES}
    outside.mkdir(parents=True)
    link = choose.choice(("inductor/ab", "inductor/cd", "triton/K1", ""))
    if link:
        kind, _, name = link.partition("/")
        roots[kind].mkdir()
        os.symlink(outside, roots[kind] / name)
    try:
        install(reader, RULES, roots, threads=1)
    finally:
        assert list(outside.iterdir()) == [], "something was written outside of the folder"
        for kind, root in roots.items():
            allowed = {one.path for one in reader.manifest.files if one.kind == kind}
            for path in root.rglob("*"):
                name = path.relative_to(root).as_posix()
                assert path.is_dir() or name in allowed or name.startswith(".cachesvc/"), (
                    f"{name} was written"
                )


# The bundle file.


@contextmanager
def open_bundle_file(folder: Path) -> Iterator[Check]:
    """Yields the check of bundle files, read as a file and as pieces that arrive."""
    data, value = base_value(folder)
    manifest = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    good = file.bundle_head(KEY.sign_bytes(manifest, PAYLOAD_TYPE)) + data
    place = folder / "fuzzed.cachesvc"

    def one(choose: random.Random) -> str:
        bundle = hostile_bundle(choose, good)
        place.write_bytes(bundle)
        whole = _split(bundle, choose)
        try:
            envelope, offset = file.open_bundle(place)
        except (Corrupt, NotFound) as error:
            assert whole is None, "accepted in pieces, refused as a file"
            return described(error)
        assert whole == (envelope, bundle[offset:]), "read in another way in pieces"
        assert bundle.startswith(b"cachesvc-bundle-1\n") and 0 < len(envelope) <= MAX_ENVELOPE_BYTES, "head"
        assert int.from_bytes(bundle[18:26], "big") == len(envelope), "a length that was not stated"
        assert bundle[26:offset] == envelope, "another envelope"
        return _read_whole(place, envelope, offset)

    yield one


def hostile_bundle(choose: random.Random, good: bytes) -> bytes:
    """Returns a bundle with another magic, another length, or other bytes anywhere."""
    kind = choose.randint(0, 3)
    if kind == 0:
        size = choose.choice(
            (0, 1, 25, 1 << 20, MAX_ENVELOPE_BYTES, MAX_ENVELOPE_BYTES + 1, 1 << 63, (1 << 64) - 1)
        )
        return good[:18] + size.to_bytes(8, "big") + good[26:]
    if kind == 1:
        return mutate_bytes(choose, good[:30]) + good[30:]
    return mutate_bytes(choose, good) if kind == 2 else good[: choose.randint(0, len(good))]


def _split(bundle: bytes, choose: random.Random) -> tuple[bytes, bytes] | None:
    step = choose.choice((1 << 20, 1000, 26, 7))
    try:
        envelope, rest = file.split_bundle(bundle[at : at + step] for at in range(0, len(bundle), step))
    except Corrupt:
        return None
    return envelope, b"".join(rest)


def _read_whole(place: Path, envelope: bytes, offset: int) -> str:
    try:
        verified = check.check_envelope(envelope, trusted=(KEY.public,), expected=None, now=NOW)
        with PackReader(place, verified.manifest, offset) as reader:
            reader.verify()
    except DOCUMENTED as error:
        return described(error)
    return "accepted"


PARSERS = (
    Parser("envelope", open_envelope, 22),
    Parser("manifest", open_manifest, 26),
    Parser("pack", open_pack, 12),
    Parser("bundle", open_bundle_file, 14),
)
