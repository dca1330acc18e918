"""Checks everything that comes from outside: no foreign byte is used before it passes here.

The order matters: size, then a minimal envelope, then the signature over the bytes received, and only then
the manifest, its statement and its arithmetic. Of what no trusted key signed, only the envelope is parsed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..wire import codec
from ..wire.digest import Digest
from ..wire.errors import Corrupt, Untrusted
from ..wire.manifest.provenance import ATTESTATION, Provenance, read_statement
from ..wire.manifest.records import MAX_ENVELOPE_BYTES, MAX_MANIFEST_BYTES, PAYLOAD_TYPE, Manifest, Statement
from ..wire.names import Lane, Namespace, ShortName, Tag
from .layout import Layout
from .seal import PublicKey, TrustedKey, pae, strict_base64

CLOCK_SKEW_SECONDS = 300
"""Seconds by which the clocks of signer and client may differ when an expiry is checked."""
_MAX_SIGNATURES = 4
"""Largest number of signatures of one envelope."""
_MAX_INPUT_DEPTH = 32
"""Largest depth of the inputs that a workload describes, and of an attestation."""
_CHUNK = 1 << 20
"""Number of bytes that are read from a pack at once."""


@dataclass(frozen=True, slots=True)
class ExpectedStatement:
    """Describes what the caller asked for; the statement must say the same. ``tags``: the statement has one
    of them; ``None`` accepts every tag. ``lane``: entries of this lane and of the trunk; ``None`` means the
    trunk alone."""

    namespace: Namespace
    name: ShortName
    tags: tuple[Tag, ...] | None = None
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """Holds a manifest whose signature and statement hold. ``revision``: digest of the payload as received.
    ``envelope``: its exact bytes, to be passed on unchanged. ``provenance``: who built the pack from what;
    ``None`` if the manifest does not say it in a form that is read here."""

    manifest: Manifest
    revision: Digest
    envelope: bytes
    signer: PublicKey
    provenance: Provenance | None = None


class Policy(Protocol):
    """Declares who decides about signers beside the trusted keys: the delegations of a registry's trust
    root."""

    @property
    def keys(self) -> Sequence[PublicKey]:
        """Return the keys whose signatures are worth checking."""

    def check(self, statement: Statement, signers: Collection[PublicKey]) -> PublicKey:
        """Return one of the signers that count for the statement. Raise ``Untrusted`` if they are too few."""

    def counts(self, key: str, statement: Statement) -> bool:
        """Return whether a key is named for the statement, and is not revoked there."""

    def max_age(self, namespace: Namespace) -> int | None:
        """Return for how many seconds a revision of the namespace counts; ``None`` if nothing is signed."""

    def check_ancestors(self, manifest: Manifest) -> None:
        """Raise ``Untrusted`` if a key that was revoked has signed an ancestor."""


def check_envelope(
    envelope: bytes,
    *,
    trusted: Sequence[PublicKey | TrustedKey],
    expected: ExpectedStatement | None,
    now: float,
    policy: Policy | None = None,
    trust_hint: str = "set CACHESVC_TRUSTED_KEYS or run: cachesvc login URL",
) -> Verified:
    """Returns the manifest in ``envelope``, if a key of ``trusted`` signed it and its statement is the
    ``expected`` one.

    A ``TrustedKey`` counts in the namespace that it is bound to; a ``PublicKey`` counts in every namespace.
    With a ``policy``, the policy must accept the signers too; then ``trusted`` may be empty.

    ``now``: seconds of UTC. ``expected=None`` accepts any name (a bundle that the user named by its path).
    ``trust_hint``: how a user trusts one more key here, for the message. Guarantees that the manifest's
    layout is sound (:class:`Layout`). Raises ``Untrusted`` (signer, statement) or ``Corrupt`` (form) with one
    line.
    """
    payload_type, payload, signatures = _parse_envelope(envelope)
    if payload_type != PAYLOAD_TYPE:
        raise Corrupt(
            f"envelope: payload type {_one_line(payload_type)!r}, this client reads {PAYLOAD_TYPE}",
            "made by another version of cachesvc?",
        )
    by_policy: list[PublicKey] = []
    if policy is not None:
        hint = "the registry's trust metadata name its signers: cachesvc admin signers list"
        by_policy = [
            _public_key(key) for key in _signers(payload_type, payload, signatures, policy.keys, hint)
        ]
    by_user = (
        _signers(payload_type, payload, signatures, trusted, trust_hint) if trusted or policy is None else []
    )
    manifest = _parse_manifest(payload)
    if policy is not None:
        signer = policy.check(manifest.statement, by_policy)
        policy.check_ancestors(manifest)
    if by_user:
        signer = _bound_signer(manifest.statement, by_user)
    _check_statement(manifest.statement, signer, expected, now)
    Layout(manifest.pack, manifest.frames, manifest.files)
    return Verified(manifest, Digest.of(payload), envelope, signer, _read_provenance(manifest))


def check_attestation(
    envelope: bytes, trusted: Sequence[TrustedKey], namespace: Namespace, trust_hint: str
) -> tuple[dict[str, Any], PublicKey]:
    """Return the statement in ``envelope``, which is about files and no revision, and the key that signed it:
    one of ``trusted`` that is named for this very ``namespace``. Raise ``Untrusted`` or ``Corrupt``."""
    payload_type, payload, signatures = _parse_envelope(envelope)
    if payload_type != ATTESTATION:
        raise Corrupt(f"envelope: payload type {_one_line(payload_type)!r}, a statement has {ATTESTATION}")
    counting = [key for key in trusted if key.namespace == namespace]
    [signer, *_] = _signers(payload_type, payload, signatures, counting, trust_hint)
    try:
        statement = codec.parse_json(payload, limit=MAX_MANIFEST_BYTES, what="statement")
        if not isinstance(statement, dict) or not _is_shallow(statement, _MAX_INPUT_DEPTH):
            raise ValueError(f"statement: an object of at most {_MAX_INPUT_DEPTH} levels is expected")
    except (ValueError, RecursionError) as error:
        raise Corrupt(_one_line(error)) from None
    return statement, _public_key(signer)


def check_pack(pack: Path | BinaryIO, manifest: Manifest, offset: int = 0) -> None:
    """Raises ``Corrupt`` unless ``pack`` (a path, from ``offset`` on; or a file from its position to its end)
    has exactly the size and digest that the manifest names. Reads the pack once, in chunks of 1 MiB."""
    if isinstance(pack, (str, os.PathLike)):
        with open(pack, "rb") as file:
            file.seek(offset)
            return check_pack(file, manifest)
    expected, read = manifest.pack, 0

    def chunks() -> Any:
        nonlocal read
        while read <= expected.size and (chunk := pack.read(_CHUNK)):
            read += len(chunk)
            yield chunk

    digest = Digest.of_chunks(chunks())
    if read != expected.size:
        more = "more than " if read > expected.size else ""
        raise Corrupt(f"pack: {more}{min(read, expected.size)} bytes, the manifest says {expected.size}")
    if digest != expected.digest:
        raise Corrupt(f"pack: digest {digest}, the manifest says {expected.digest}")
    return None


def _parse_envelope(envelope: bytes) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    """Returns (payload type, payload, [(keyid, signature)]) of an envelope whose signatures are not checked
    yet."""
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise Corrupt(f"envelope: {len(envelope)} bytes, more than the {MAX_ENVELOPE_BYTES} allowed")
    # An envelope holds a dozen values. Counting before parsing keeps hostile JSON from making millions.
    if envelope.count(b'"') > 64 or any(envelope.count(mark) > 16 for mark in (b"[", b"{", b",")):
        raise Corrupt("envelope: more parts than a DSSE envelope has")
    try:
        value = codec.parse_json(envelope, limit=MAX_ENVELOPE_BYTES, what="envelope")
        payload_type, payload, entries = _fields(value, "payloadType", "payload", "signatures")
        if not isinstance(payload_type, str) or not isinstance(payload, str) or not isinstance(entries, list):
            raise ValueError("envelope: payload and payloadType are text, signatures is a list")
        if not 0 < len(entries) <= _MAX_SIGNATURES:
            raise ValueError(f"envelope: {len(entries)} signatures; 1 to {_MAX_SIGNATURES} are allowed")
        return payload_type, strict_base64(payload), [_signature(item) for item in entries]
    except ValueError as error:
        raise Corrupt(_one_line(error)) from None


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
    trust_hint: str,
) -> list[PublicKey | TrustedKey]:
    """Returns those of ``trusted`` that signed the payload, whatever namespace they are bound to."""
    if not trusted:
        raise Untrusted("no key is trusted", trust_hint)
    message = pae(payload_type, payload)
    keys = [(_public_key(trust), trust) for trust in trusted]
    # A keyid is a hint; only keys that it names are tried, so that the work is bounded.
    candidates = [
        (*pair, signature) for keyid, signature in signatures for pair in keys if pair[0].keyid == keyid
    ]
    signers = [trust for key, trust, signature in candidates if key.verifies(signature, message)]
    if signers:
        return signers
    if candidates:
        raise Untrusted(
            f"the signature of key {candidates[0][0].short} does not match", "the bytes were altered"
        )
    keyids = ", ".join(_one_line(keyid)[:40] for keyid, _ in signatures)
    raise Untrusted(
        f"signed by key {keyids or 'none'}, which is not trusted; "
        f"trusted: {', '.join(sorted({key.short for key, _ in keys}))}",
        trust_hint,
    )


def _public_key(trust: PublicKey | TrustedKey) -> PublicKey:
    return trust.key if isinstance(trust, TrustedKey) else trust


def _bound_signer(statement: Statement, signers: list[PublicKey | TrustedKey]) -> PublicKey:
    """Returns the first of ``signers`` that is trusted for the statement's namespace."""
    for signer in signers:
        if not isinstance(signer, TrustedKey) or signer.counts_for(statement.namespace):
            return _public_key(signer)
    namespaces = [str(signer.namespace) for signer in signers if isinstance(signer, TrustedKey)]
    raise Untrusted(
        f"key {_public_key(signers[0]).short} signed this for {statement.full_name}; it is trusted for "
        f"{', '.join(sorted(set(namespaces)))} only",
        f'if it may sign there too, trust "{statement.namespace}={_public_key(signers[0])}"',
    )


def _parse_manifest(payload: bytes) -> Manifest:
    try:
        value = codec.parse_json(payload, limit=MAX_MANIFEST_BYTES, what="manifest")
        manifest = codec.build(Manifest, value, "manifest")
        if not _is_shallow(manifest.workload.inputs, _MAX_INPUT_DEPTH):
            raise ValueError(f"manifest.workload.inputs: deeper than {_MAX_INPUT_DEPTH} levels")
        if not _is_shallow(manifest.attestation, _MAX_INPUT_DEPTH):
            raise ValueError(f"manifest.attestation: deeper than {_MAX_INPUT_DEPTH} levels")
        # What cannot be written again (infinities, half surrogates) has no key either.
        texts = (manifest.statement, manifest.facts, manifest.measured, manifest.provenance)
        codec.canonical([manifest.entry, *texts])
    except (ValueError, RecursionError, OverflowError) as error:
        raise Corrupt(_one_line(error)) from None
    return manifest


def _read_provenance(manifest: Manifest) -> Provenance | None:
    if manifest.attestation is None:
        return None
    try:
        return read_statement(manifest.attestation, manifest.pack.digest)
    except ValueError as error:
        raise Corrupt(f"manifest.attestation: {_one_line(error)}") from None


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)
    return True


def _check_statement(
    statement: Statement, signer: PublicKey, expected: ExpectedStatement | None, now: float
) -> None:
    name = f"{statement.full_name}" + (f" (lane {statement.lane})" if statement.lane else "")
    if expected is not None:
        if (statement.namespace, statement.name) != (expected.namespace, expected.name):
            raise Untrusted(
                f"key {signer.short} signed this for {name}, wanted: {expected.namespace}/{expected.name}"
            )
        if expected.tags is not None and statement.tag not in expected.tags:
            raise Untrusted(
                f"key {signer.short} signed this for {name}, wanted tag: {' or '.join(expected.tags)}"
            )
        if statement.lane is not None and statement.lane != expected.lane:
            raise Untrusted(
                f"key {signer.short} signed this for {name}, wanted lane: {expected.lane or 'the trunk'}"
            )
    if statement.expires is not None and now > statement.expires + CLOCK_SKEW_SECONDS:
        late = int(now - statement.expires)
        raise Untrusted(
            f"{name}: signed by {signer.short}, expired {late} s ago",
            "publish again, or set the clock",
        )


def _one_line(value: object) -> str:
    """Returns hostile text as one short printable line."""
    return "".join(char if " " <= char <= "~" else "?" for char in str(value)[:300])
