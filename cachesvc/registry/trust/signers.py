"""Manage signers: whose signatures count, and whose count no more."""

from __future__ import annotations

import time

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.retention import DAY
from cachesvc.domain.usefulness import NODE_DAYS
from cachesvc.index.unit import Unit
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.entries import MAX_DESCENDANTS
from cachesvc.schema.revocations import Revocation, RevocationRequest, RevokedSigner
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.names import Namespace

from ..access.tokens import MAX_LABEL
from ..answers import forget_answers
from ..audit import note
from ..context import Registry
from ..upkeep.quarantine import readable
from . import metadata

SHOWN_NODES = 1000
"""Nodes that a revocation lists, at most."""


def add_signer(
    registry: Registry, by: Token | None, signer: SignerRecord, *, again: bool = False
) -> SignerRecord:
    """Accepts a key's signatures in a namespace; adding it again is a success.

    ``again``: a revoked key too. Its revocation ends, and what it signed there is offered again. Without it
    a revoked key raises ``InvalidRequest``.
    """
    with registry.index.write() as unit:
        added = accept(registry, unit, by, signer, again=again)
    _forget_answers_of(registry, added.namespace)
    return added


def accept(
    registry: Registry, unit: Unit, by: Token | None, signer: SignerRecord, *, again: bool = False
) -> SignerRecord:
    """Adds a signer within a transaction; see :func:`add_signer`."""
    try:
        key = PublicKey(signer.key)
        namespace = signer.namespace if signer.namespace == ANY else Namespace(signer.namespace)
    except ValueError as error:
        raise InvalidRequest(f"signer: {error}") from None
    if len(signer.label) > MAX_LABEL or not signer.label.isprintable():
        raise InvalidRequest(f"label: at most {MAX_LABEL} printable characters")
    if by is not None:
        demand(by, Action.admin, namespace)
    _end_revocations(registry, unit, by, namespace, key, again)
    added = SignerRecord(namespace, key, signer.label)
    unit.signers.add(added, registry.now)
    metadata.follow_signers(registry, unit)
    note(registry, unit, by, "signer.add", namespace, key, label=signer.label)
    return added


def remove_signer(registry: Registry, by: Token, namespace: str, key: str) -> None:
    """Accepts a key's signatures there no more, and offers nothing that it signed: on this replica at once,
    on the others within 5 s. The revisions stay until they are deleted. Raises ``NotFound``."""
    demand(by, Action.admin, namespace)
    valid = namespace == ANY or Namespace.pattern.fullmatch(namespace)
    with registry.index.write() as unit:
        if not (valid and key.isprintable() and unit.signers.remove(namespace, key)):
            where = "every namespace" if namespace == ANY else f"namespace {namespace[:128]!r}"
            raise NotFound(f"{key[:60]} is no signer of {where}", "see: cachesvc admin signers list")
        metadata.follow_signers(registry, unit)
        note(registry, unit, by, "signer.remove", namespace, key)
    _forget_answers_of(registry, namespace)


def list_signers(registry: Registry, by: Token) -> list[SignerRecord]:
    """Returns the signers that the token's namespace accepts; for ``*`` all."""
    demand(by, Action.read, by.namespace, by.lane)
    with registry.index.read() as unit:
        rows = unit.signers.all(ANY)
    return [row for row in rows if by.namespace == ANY or row.namespace in (ANY, by.namespace)]


def revoke_signer(registry: Registry, by: Token, request: RevocationRequest) -> Revocation:
    """Removes a key from the signers for good, and withholds what it signed or will sign: on this replica at
    once, on the others within 5 s. A second call is a success, and keeps the first time and reason.

    Returns what :func:`plan_revocation` returns.
    """
    namespace, key = _place(by, request)
    with registry.index.write() as unit:
        revocation = _revocation(registry, unit, by, namespace, key)
        for one in revocation.signer_of:
            unit.signers.remove(one, key)
        row = RevokedSigner(namespace, key, registry.now, request.why, by.token)
        if unit.revoked.add(row) or revocation.signer_of:
            metadata.follow_signers(registry, unit)
            note(
                registry,
                unit,
                by,
                "signer.revoke",
                namespace,
                key,
                why=request.why or None,
                signer_of=", ".join(revocation.signer_of) or None,
                revisions=revocation.revisions,
                nodes=len(revocation.nodes),
                descendants=len(revocation.descendants) or None,
            )
    _forget_answers_of(registry, namespace)
    return revocation


def plan_revocation(registry: Registry, by: Token, request: RevocationRequest) -> Revocation:
    """Returns what a revocation withholds, and which nodes reported some of it; changes nothing.

    Raises ``InvalidRequest`` for a text that is no key, ``Forbidden``.
    """
    namespace, key = _place(by, request)
    with registry.index.read() as unit:
        return _revocation(registry, unit, by, namespace, key)


def list_revoked(registry: Registry, by: Token) -> list[RevokedSigner]:
    """Returns the keys that the token's namespace refuses; for ``*`` all, with their namespaces."""
    demand(by, Action.read, by.namespace, by.lane)
    with registry.index.read() as unit:
        return unit.revoked.all(by.namespace)


def _place(by: Token, request: RevocationRequest) -> tuple[str, str]:
    """Returns the namespace and the key of a request. A key that :class:`PublicKey` refuses, because anybody
    can sign for it, may be stored by an older version, and is revoked like any other."""
    try:
        namespace = request.namespace or by.namespace
        namespace = namespace if namespace == ANY else Namespace(namespace)
    except ValueError as error:
        raise InvalidRequest(f"namespace: {error}, nor *") from None
    demand(by, Action.admin, namespace)
    if not PublicKey.pattern.fullmatch(request.key):
        raise InvalidRequest(f"key: {request.key[:60]!r}", "see: cachesvc admin signers list")
    return namespace, request.key


def _revocation(registry: Registry, unit: Unit, by: Token, namespace: str, key: str) -> Revocation:
    names = unit.revoked.names(key, namespace)
    since = registry.now - NODE_DAYS * DAY
    reached = unit.ancestry.descendants_of_signer(key, namespace, MAX_DESCENDANTS)
    nodes = unit.nodes.of_signer(key, namespace, since, SHOWN_NODES + 1)
    return Revocation(
        key=key,
        namespace=namespace,
        signer_of=tuple(row.namespace for row in unit.signers.all(namespace) if row.key == key),
        revisions=sum(row.revisions for row in names),
        names=tuple(names),
        nodes=tuple(nodes[:SHOWN_NODES]),
        more_nodes=len(nodes) > SHOWN_NODES,
        descendants=tuple(readable(by, reached)),
    )


def _end_revocations(
    registry: Registry, unit: Unit, by: Token | None, namespace: str, key: str, again: bool
) -> None:
    """Ends the revocations of a key that would refuse it in ``namespace``, if it is added ``again``; else
    raises ``InvalidRequest``. Who ends one that holds everywhere must administer every namespace."""
    for row in [row for row in unit.revoked.all(namespace) if row.key == key]:
        if row.namespace not in (namespace, ANY):
            continue  # another namespace's: it stays, and this signer counts in the others
        if not again:
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(row.revoked))
            reason = f": {row.why}" if row.why else ""
            where = "everywhere" if row.namespace == ANY else f"in {row.namespace}"
            raise InvalidRequest(
                f"signer {key} was revoked {where} on {when} UTC{reason}",
                "use a new key; or, if nobody else has this one: cachesvc admin signers add --again",
            )
        if by is not None:
            demand(by, Action.admin, row.namespace)
        unit.revoked.remove(row.namespace, key)
        note(registry, unit, by, "signer.unrevoke", row.namespace, key, why=row.why or None)


def _forget_answers_of(registry: Registry, namespace: str) -> None:
    """Ends the cached answers of a namespace, which depend on its signers."""
    with registry.index.read() as unit:
        named = [row.namespace for row in unit.namespaces.all(ANY)] if namespace == ANY else [namespace]
    for one in named:
        forget_answers(registry, Namespace(one))
