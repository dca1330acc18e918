"""The one gate that every foreign byte passes.

The order is the point: size, then a minimal envelope, then the signature over the bytes received, and
only then the manifest, what it states and its arithmetic. Nothing that is not signed by a trusted key
is parsed further than the envelope.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..wire import codec
from ..wire.digest import Digest
from ..wire.errors import Corrupt, Untrusted
from ..wire.names import Lane, Namespace, ShortName, Tag
from ..wire.records import MAX_ENVELOPE_BYTES, MAX_MANIFEST_BYTES, PAYLOAD_TYPE, Manifest, Statement
from .layout import Layout
from .seal import PublicKey, TrustedKey, pae, strict_base64

CLOCK_SKEW_SECONDS = 300
_MAX_SIGNATURES = 4
_MAX_INPUT_DEPTH = 32
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asked for: the statement must say the same. ``tags``: any of them; ``None``
    accepts every tag. ``lane``: entries of this lane and of the trunk; ``None`` is the trunk alone."""

    namespace: Namespace
    name: ShortName
    tags: tuple[Tag, ...] | None = None
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A manifest that passed. Only :func:`check_envelope` makes one. ``revision``: the digest of the
    payload as received; ``envelope``: the exact bytes, to be handed on unchanged."""

    manifest: Manifest
    revision: Digest
    envelope: bytes
    signer: PublicKey


def check_envelope(
    envelope: bytes,
    *,
    trusted: Sequence[PublicKey | TrustedKey],
    wanted: Wanted | None,
    now: float,
    to_trust: str = "set CACHESVC_TRUSTED_KEYS or run: cachesvc login URL",
) -> Verified:
    """The manifest in ``envelope``, if a key of ``trusted`` signed it for what is ``wanted``.

    A ``TrustedKey`` counts in the namespace that it is bound to; a ``PublicKey`` in every one.

    ``now``: seconds of UTC. ``wanted=None`` accepts any name (a bundle that the user named by its path).
    ``to_trust``: how one more key is trusted here, for the message.
    Guarantees that the manifest's layout is sound (:class:`Layout`). Raises ``Untrusted`` (signer,
    statement) or ``Corrupt`` (form) with one line.
    """
    payload_type, payload, signatures = _open(envelope)
    if payload_type != PAYLOAD_TYPE:
        raise Corrupt(
            f"envelope: payload type {_line(payload_type)!r}, this client reads {PAYLOAD_TYPE}",
            "made by another version of cachesvc?",
        )
    signers = _signers(payload_type, payload, signatures, trusted, to_trust)
    manifest = _manifest(payload)
    signer = _bound_signer(manifest.statement, signers)
    _check_statement(manifest.statement, signer, wanted, now)
    Layout(manifest.pack, manifest.frames, manifest.files)
    return Verified(manifest, Digest.of(payload), envelope, signer)


def check_sequence(verified: Verified, seen: int | None) -> None:
    """Raises ``Untrusted`` if this entry was seen with a higher sequence: an old revision replayed."""
    found = verified.manifest.statement.sequence
    if seen is not None and found < seen:
        raise Untrusted(
            f"{verified.manifest.statement.full_name}: sequence {found} is older than {seen}, seen before",
            "a rolled-back registry? remove the entry from the node store's seen/ to accept it",
        )


def check_pack(pack: Path | BinaryIO, manifest: Manifest) -> None:
    """Raises ``Corrupt`` unless ``pack`` (a path, or a file from its position to its end) has exactly the
    size and digest that the manifest names. Reads once, in chunks of 1 MiB."""
    if isinstance(pack, (str, os.PathLike)):
        with open(pack, "rb") as file:
            return check_pack(file, manifest)
    expected, read = manifest.pack, 0

    def chunks() -> Any:
        nonlocal read
        while read <= expected.size and (chunk := pack.read(_CHUNK)):
            read += len(chunk)
            yield chunk

    found = Digest.of_chunks(chunks())
    if read != expected.size:
        more = "more than " if read > expected.size else ""
        raise Corrupt(f"pack: {more}{min(read, expected.size)} bytes, the manifest says {expected.size}")
    if found != expected.digest:
        raise Corrupt(f"pack: digest {found}, the manifest says {expected.digest}")
    return None


def _open(envelope: bytes) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    """(payload type, payload, [(keyid, signature)]) of an envelope that nobody vouches for yet."""
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise Corrupt(f"envelope: {len(envelope)} bytes, more than the {MAX_ENVELOPE_BYTES} allowed")
    # An envelope holds a dozen values. Counting before parsing keeps hostile JSON from making millions.
    if envelope.count(b'"') > 64 or any(envelope.count(mark) > 16 for mark in (b"[", b"{", b",")):
        raise Corrupt("envelope: more parts than a DSSE envelope has")
    try:
        value = codec.parse_json(envelope, limit=MAX_ENVELOPE_BYTES, what="envelope")
        payload_type, payload, listed = _fields(value, "payloadType", "payload", "signatures")
        if not isinstance(payload_type, str) or not isinstance(payload, str) or not isinstance(listed, list):
            raise ValueError("envelope: payload and payloadType are text, signatures is a list")
        if not 0 < len(listed) <= _MAX_SIGNATURES:
            raise ValueError(f"envelope: {len(listed)} signatures; 1 to {_MAX_SIGNATURES} are allowed")
        return payload_type, strict_base64(payload), [_signature(item) for item in listed]
    except ValueError as error:
        raise Corrupt(_line(error)) from None


def _fields(value: object, *names: str) -> list[Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"envelope: an object with {', '.join(names)} is expected")
    return [value[name] for name in names]


def _signature(value: object) -> tuple[str, bytes]:
    keyid, sig = _fields(value, "keyid", "sig")
    if not isinstance(keyid, str) or not isinstance(sig, str):
        raise ValueError("envelope: keyid and sig are text")
    return keyid, strict_base64(sig)


def _signers(
    payload_type: str,
    payload: bytes,
    signatures: list[tuple[str, bytes]],
    trusted: Sequence[PublicKey | TrustedKey],
    to_trust: str,
) -> list[PublicKey | TrustedKey]:
    """Returns those of ``trusted`` that signed the payload, whatever namespace they are bound to."""
    if not trusted:
        raise Untrusted("no key is trusted", to_trust)
    message = pae(payload_type, payload)
    keys = [(_key(trust), trust) for trust in trusted]
    # A keyid is a hint; only keys that it names are tried, so that the work is bounded.
    named = [(*pair, signature) for keyid, signature in signatures for pair in keys if pair[0].keyid == keyid]
    signed = [trust for key, trust, signature in named if key.verifies(signature, message)]
    if signed:
        return signed
    if named:
        raise Untrusted(f"the signature of key {named[0][0].keyid} does not match", "the bytes were altered")
    signers = ", ".join(_line(keyid)[:40] for keyid, _ in signatures)
    raise Untrusted(
        f"signed by key {signers or 'none'}, which is not trusted; "
        f"trusted: {', '.join(sorted({key.keyid for key, _ in keys}))}",
        to_trust,
    )


def _key(trust: PublicKey | TrustedKey) -> PublicKey:
    return trust.key if isinstance(trust, TrustedKey) else trust


def _bound_signer(statement: Statement, signers: list[PublicKey | TrustedKey]) -> PublicKey:
    """Returns the first of ``signers`` that is trusted for the statement's namespace."""
    for signer in signers:
        if not isinstance(signer, TrustedKey) or signer.counts_for(statement.namespace):
            return _key(signer)
    bound = [str(signer.namespace) for signer in signers if isinstance(signer, TrustedKey)]
    raise Untrusted(
        f"key {_key(signers[0]).keyid} signed this for {statement.full_name}; it is trusted for "
        f"{', '.join(sorted(set(bound)))} only",
        f'if it may sign there too, trust "{statement.namespace}={_key(signers[0])}"',
    )


def _manifest(payload: bytes) -> Manifest:
    try:
        value = codec.parse_json(payload, limit=MAX_MANIFEST_BYTES, what="manifest")
        manifest = codec.build(Manifest, value, "manifest")
        if not _shallow(manifest.workload.inputs, _MAX_INPUT_DEPTH):
            raise ValueError(f"manifest.workload.inputs: deeper than {_MAX_INPUT_DEPTH} levels")
        # What cannot be written again (infinities, half surrogates) has no key either.
        said = (manifest.statement, manifest.facts, manifest.measured, manifest.provenance)
        codec.canonical([manifest.entry, *said])
    except (ValueError, RecursionError, OverflowError) as error:
        raise Corrupt(_line(error)) from None
    return manifest


def _shallow(value: Any, levels: int) -> bool:
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_shallow(item, levels - 1) for item in inner)
    return True


def _check_statement(statement: Statement, signer: PublicKey, wanted: Wanted | None, now: float) -> None:
    said = f"{statement.full_name}" + (f" (lane {statement.lane})" if statement.lane else "")
    if wanted is not None:
        if (statement.namespace, statement.name) != (wanted.namespace, wanted.name):
            raise Untrusted(
                f"key {signer.keyid} signed this for {said}, wanted: {wanted.namespace}/{wanted.name}"
            )
        if wanted.tags is not None and statement.tag not in wanted.tags:
            raise Untrusted(
                f"key {signer.keyid} signed this for {said}, wanted tag: {' or '.join(wanted.tags)}"
            )
        if statement.lane is not None and statement.lane != wanted.lane:
            raise Untrusted(
                f"key {signer.keyid} signed this for {said}, wanted lane: {wanted.lane or 'the trunk'}"
            )
    if statement.expires is not None and now > statement.expires + CLOCK_SKEW_SECONDS:
        late = int(now - statement.expires)
        raise Untrusted(
            f"{said}: signed by {signer.keyid}, expired {late} s ago", "publish again, or set the clock"
        )


def _line(value: object) -> str:
    """Hostile text as one short printable line."""
    return "".join(char if " " <= char <= "~" else "?" for char in str(value)[:300])
