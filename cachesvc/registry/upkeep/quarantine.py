"""Withdraw a revision with its bytes, for operators, and keep them from coming back by a commit.

The bytes are withdrawn in the revision's namespace: under every name, tag and lane, whoever signed. An
administrator of one namespace decides nothing for another. What is withdrawn stays refused when the revision
is deleted, until the quarantine is released.

Withheld too is what was made with a withdrawn revision (``wire.manifest.ancestors``), in every namespace:
who runs the code of another namespace has let it decide. It is offered again once none of its ancestors is
withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cachesvc.domain.access import ANY, Action, Token, demand, may
from cachesvc.index.entries.withdrawals import DELETED
from cachesvc.index.unit import Unit
from cachesvc.schema.entries import MAX_DESCENDANTS, Descendant, RevisionRecord
from cachesvc.schema.webhooks import RELEASED, WITHHELD
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.compare import ancestor_withdrawn
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, NotFound, Untrusted
from cachesvc_client.wire.names import Namespace, ShortName, Tag, Target

from .. import webhooks
from ..answers import forget_answers
from ..audit import note
from ..context import Registry
from ..inventory import absent, readable_revision, verify_revision

_log = logging.getLogger("cachesvc.quarantine")


def withdraw(
    registry: Registry, by: Token, revision: Digest, why: str, namespace: Namespace | None = None
) -> RevisionRecord:
    """Offers the bytes of a revision to no one, on every replica within 5 s, and takes them at no commit.
    Starts keep what they have installed. A second call is a success, and keeps the first reason. Returns the
    revision with its descendants in the token's namespaces.

    Of one that is not here, such as one of which a bundle file is elsewhere, the digest is enough. Who
    deleted it says where it was; else an administrator of all namespaces says it: ``namespace``."""
    with registry.index.read() as unit:
        is_here = unit.inventory.revision(revision) is not None
    if not is_here:
        return _withdraw_deleted(registry, by, revision, why, namespace)
    with registry.index.write() as unit:
        row = readable_revision(unit, by, revision)
        demand(by, Action.admin, row.namespace)
        unit.withdrawals.lock(row.namespace, alone=True)
        alike = unit.withdrawals.of_same_pack(row.namespace, row.pack)
        reached = unit.ancestry.descendants(alike, ANY, MAX_DESCENDANTS)
        for same in alike:
            _withdraw(registry, unit, by, same, why, len(reached))
        row = readable_revision(unit, by, revision)
    _forget_answers(registry, row.namespace, reached)
    return replace(row, descendants=tuple(readable(by, reached)))


def _withdraw_deleted(
    registry: Registry, by: Token, revision: Digest, why: str, namespace: Namespace | None
) -> RevisionRecord:
    """Withdraw a revision that is not here. Its descendants alone do not decide in which namespace it was:
    anybody can name any revision as an ancestor, and would so withdraw what is another namespace's."""
    with registry.index.write() as unit:
        deleted = unit.audit.page(ANY, None, 1, "revision.delete", revision)
        place = Namespace(deleted[0].namespace) if deleted else None
        if place is None and may(by, Action.admin, ANY):
            claimed = unit.ancestry.claimed_namespaces(revision)
            place = namespace or (claimed[0] if len(claimed) == 1 else None)
        if place is None or not may(by, Action.admin, place):
            raise NotFound(
                absent(revision).message,
                "if it was here once: an administrator of all namespaces adds -n NAMESPACE",
            )
        unit.withdrawals.lock(place, alone=True)
        unit.withdrawals.add_deleted(revision, place, registry.now, why)
        reached = unit.ancestry.descendants([revision], ANY, MAX_DESCENDANTS)
        found = {"why": why or None, "descendants": len(reached) or None}
        note(registry, unit, by, "quarantine.set", place, revision, **found)
    _forget_answers(registry, place, reached)
    return RevisionRecord(
        revision=revision,
        entry=revision,
        namespace=place,
        name=ShortName(DELETED),
        tag=Tag("latest"),
        target=Target(DELETED),
        head=False,
        sequence=0,
        published=0,
        published_by="",
        signer="",
        pack=revision,
        pack_size=0,
        files=0,
        quarantined=registry.now,
        why=why,
        descendants=tuple(readable(by, reached)),
    )


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
        if row is not None and row.withdrawn_ancestor and not row.quarantined:
            ancestor = row.withdrawn_ancestor.split()[0]
            raise InvalidRequest(
                f"revision {revision[:19]}: {ancestor_withdrawn(row.withdrawn_ancestor)}",
                f"if that one is right: cachesvc admin quarantine release {ancestor}",
            )
        lifted = unit.usefulness.lift(revision)
        released = unit.withdrawals.release(revision)
        for one in released or [revision]:
            lifted = unit.inventory.quarantine(one, None) or lifted
            webhooks.announce_revision(registry, unit, RELEASED, unit.inventory.revision(one), by=by.token)
        if not (lifted or released):
            raise NotFound(f"revision {revision} is offered everywhere")
        note(registry, unit, by, "quarantine.release", namespace, revision)
        reached = unit.ancestry.descendants(released or [revision], ANY, MAX_DESCENDANTS)
    _forget_answers(registry, namespace, reached)


def demand_offerable(unit: Unit, verified: Accepted) -> None:
    """Raise ``Untrusted`` for a revision that was withdrawn, or whose bytes were, in the transaction of its
    commit, which has taken the lock of withdrawals."""
    found = unit.withdrawals.against(verified.manifest, verified.revision)
    if found is None:
        return
    what = "is older than" if found.older else "has what was withdrawn with"
    raise Untrusted(
        f"revision {verified.revision[:19]} {what} {found.revision[:19]}: {found.why}",
        f"compile something else; or, if it is right: cachesvc admin quarantine release {found.revision}",
    )


def demand_line(unit: Unit, verified: Accepted) -> None:
    """Raise ``Untrusted`` for a revision that has a withdrawn ancestor. The same transaction has written it
    with its ancestors, so that one rule decides here and at each resolve."""
    if not verified.manifest.ancestors:
        return
    found = unit.ancestry.withdrawn(verified.revision, verified.manifest.statement.namespace)
    if found is not None:
        raise Untrusted(
            f"revision {verified.revision[:19]}: {ancestor_withdrawn(found)}",
            "start without what was withdrawn, and compile it again",
        )


def readable(by: Token, descendants: Iterable[Descendant]) -> list[Descendant]:
    """Returns the descendants that a token may read."""
    return [one for one in descendants if may(by, Action.read, one.namespace, one.lane)]


def _forget_answers(registry: Registry, namespace: Namespace, reached: Iterable[Descendant]) -> None:
    for one in {namespace, *(descendant.namespace for descendant in reached)}:
        forget_answers(registry, one)


def _withdraw(
    registry: Registry, unit: Unit, by: Token, revision: Digest, why: str, descendants: int
) -> None:
    row = unit.inventory.revision(revision)
    if row is None or not unit.inventory.quarantine(revision, registry.now, why):
        return
    unit.withdrawals.add(revision, _files(unit, row), registry.now, why)
    note(
        registry,
        unit,
        by,
        "quarantine.set",
        row.namespace,
        revision,
        why=why or None,
        descendants=descendants or None,
    )
    webhooks.announce_revision(registry, unit, WITHHELD, row, why=why, by=by.token)


def _files(unit: Unit, row: RevisionRecord) -> Sequence[Digest]:
    """Returns the digests of the files of a revision; none if the index is damaged there."""
    try:
        verified = verify_revision(row.revision, row.signer, unit.inventory.envelope(row.revision) or b"")
    except CacheSvcError as error:
        _log.warning("revision %s is withdrawn without its files: %s", row.revision, error)
        return ()
    return [file.digest for file in verified.manifest.files]
