"""Prepare the first start: an admin's token and, unless the operator chose it, a signing key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachesvc.domain.access import ANY
from cachesvc.index.unit import Unit
from cachesvc.schema.access import SignerRecord, TokenRequest
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.wire.errors import InvalidRequest

from .access.tokens import create_token, issue
from .context import Registry
from .trust import metadata
from .trust.signers import accept

_ANOTHER = TokenRequest("serve --new-token", "admin", ANY, never=True)
_FIRST = TokenRequest("first start", "admin", ANY, never=True)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a start tells the operator.

    ``secret``: the secret of the token that this start made, unless the operator chose it. ``trust``: the
    public key of the file ``signing_key``, if the file is there. ``root_keys``: the keys of the root of
    trust, which clients pin, as texts.
    """

    secret: str | None
    trust: PublicKey | None
    signing_key: Path
    root_keys: tuple[str, ...] = ()


def prepare_credentials(
    registry: Registry, signing_key: Path, *, first_token: str = "", new_token: bool = False
) -> Credentials:
    """Makes what is missing, once, however many replicas start together: the first admin's token, and the
    signing key with its signer for every namespace. Safe to repeat: a killed start commits nothing.

    ``first_token``: the secret that the operator chose for that token. Then the result has no secret, and no
    key is made: builders have their own keys. A later start replaces neither token nor key: an operator may
    have revoked the token and moved the key into CI.
    """
    prepare_mirror(registry)
    with registry.index.read() as unit:
        first = not unit.tokens.any_admin()
    secret = None
    if first:
        with registry.index.write() as unit:
            unit.tokens.take_turns()
            if not unit.tokens.any_admin():
                secret = _first(registry, unit, signing_key, first_token)
    if secret is None and new_token:
        secret = create_token(registry, None, _ANOTHER).secret
    root_keys = metadata.prepare(registry) if registry.mirror is None else ()
    public = SigningKey.load(signing_key).public if signing_key.exists() else None
    return Credentials(secret, public, signing_key, root_keys)


def prepare_mirror(registry: Registry) -> None:
    """Begins a mirror in an empty index, and goes on with one that began. Raises ``InvalidRequest`` for the
    index of a registry of its own, whose entries a mirror would delete, and for a mirror's index without an
    upstream."""
    mirror = registry.mirror
    with registry.index.read() as unit:
        before = unit.mirrors.upstream()
        in_use = unit.mirrors.holds_registry()
    if mirror is None:
        if before is not None:
            raise InvalidRequest(
                f"the index is a mirror of {before[0]}, and upstream_url is not set",
                "set upstream_url, or name another folder with --data",
            )
        return
    if before is None and in_use:
        raise InvalidRequest(
            f"the index holds a registry of its own, which a mirror of {mirror.upstream.url} would empty",
            "name an empty folder with --data",
        )
    mirror.looked = before[1] if before is not None else None
    with registry.index.write() as unit:
        unit.mirrors.note_look(mirror.upstream.url, mirror.looked)


def _first(registry: Registry, unit: Unit, signing_key: Path, first_token: str) -> str | None:
    """Makes what a database without an admin lacks; returns the secret unless the operator chose it."""
    if first_token or registry.mirror is not None:
        # The signatures that a mirror accepts are those that its upstream's metadata name.
        made = issue(registry, unit, None, _FIRST, first_token or None)
        return None if first_token else made.secret
    if not signing_key.exists():
        # Before the commit: nobody could use a signer whose key is lost.
        _save(SigningKey.generate(), signing_key)
    accept(registry, unit, None, SignerRecord(ANY, SigningKey.load(signing_key).public, "first start"))
    return issue(registry, unit, None, _FIRST).secret


def _save(key: SigningKey, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"signing key {path}: {error.strerror or error}",
            "name a folder with --data, or set first_token: then no key is made here",
        ) from None
    key.save(path)
