"""Withdraw a revision with its bytes, for operators, and keep them from coming back by a commit.

The bytes are withdrawn in the revision's namespace: under every name, tag and lane, whoever signed. An
administrator of one namespace decides nothing for another. What is withdrawn stays refused when the revision
is deleted, until the quarantine is released.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc.index.unit import Unit
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.admin import RevisionRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound, Untrusted
from cachesvc_client.wire.webhooks import RELEASED, WITHHELD

from . import webhooks
from .answers import forget_answers
from .audit import note
from .context import Registry
from .inventory import readable_revision, verify_revision

_log = logging.getLogger("cachesvc.quarantine")


def withdraw(registry: Registry, by: Token, revision: Digest, why: str) -> RevisionRecord:
    """Offers the bytes of a revision to nobody, on every replica within 5 s, and takes them at no commit.
    Starts keep what they have installed. A second call is a success, and keeps the first reason."""
    with registry.index.write() as unit:
        row = readable_revision(unit, by, revision)
        demand(by, Action.admin, row.namespace)
        unit.withdrawals.lock(row.namespace, alone=True)
        for same in unit.withdrawals.of_same_pack(row.namespace, row.pack):
            _withdraw(registry, unit, by, same, why)
        row = readable_revision(unit, by, revision)
    forget_answers(registry, row.namespace)
    return row


def release(registry: Registry, by: Token, revision: Digest) -> None:
    """Offers a revision again wherever reports or an operator withheld it or its bytes, and takes it at a
    commit if it was deleted. Raises ``NotFound``, also for one that the token may not see, and if it is
    withheld nowhere."""
    with registry.index.write() as unit:
        row = unit.inventory.revision(revision)
        namespace = row.namespace if row is not None else unit.withdrawals.namespace_of(revision)
        lane = row.lane if row is not None else None
        if namespace is None or not may(by, Action.read, namespace, lane):
            raise NotFound(f"revision {revision} does not exist")
        demand(by, Action.admin, namespace)
        unit.withdrawals.lock(namespace, alone=True)
        lifted = unit.usefulness.lift(revision)
        released = unit.withdrawals.release(revision)
        for one in released or [revision]:
            lifted = unit.inventory.quarantine(one, None) or lifted
            webhooks.announce_revision(registry, unit, RELEASED, unit.inventory.revision(one), by=by.token)
        if not (lifted or released):
            raise NotFound(f"revision {revision} is offered everywhere")
        note(registry, unit, by, "quarantine.release", namespace, revision)
    forget_answers(registry, namespace)


def demand_offerable(unit: Unit, verified: Accepted) -> None:
    """Raises ``Untrusted`` for a revision that was withdrawn, or whose bytes were, in the transaction of its
    commit, which has taken the lock of withdrawals."""
    found = unit.withdrawals.against(verified.manifest, verified.revision)
    if found is None:
        return
    what = "is older than" if found.older else "has what was withdrawn with"
    raise Untrusted(
        f"revision {verified.revision[:19]} {what} {found.revision[:19]}: {found.why}",
        f"compile something else; or, if it is right: cachesvc admin quarantine release {found.revision}",
    )


def _withdraw(registry: Registry, unit: Unit, by: Token, revision: Digest, why: str) -> None:
    row = unit.inventory.revision(revision)
    if row is None or not unit.inventory.quarantine(revision, registry.now, why):
        return
    unit.withdrawals.add(revision, _files(unit, row), registry.now, why)
    note(registry, unit, by, "quarantine.set", row.namespace, revision, why=why or None)
    webhooks.announce_revision(registry, unit, WITHHELD, row, why=why, by=by.token)


def _files(unit: Unit, row: RevisionRecord) -> Sequence[Digest]:
    """Returns the digests of the files of a revision; none if the index is damaged there."""
    try:
        verified = verify_revision(row.revision, row.signer, unit.inventory.envelope(row.revision) or b"")
    except CacheSvcError as error:
        _log.warning("revision %s is withdrawn without its files: %s", row.revision, error)
        return ()
    return [file.digest for file in verified.manifest.files]
