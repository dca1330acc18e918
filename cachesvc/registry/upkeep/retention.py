"""Change what is kept, pinned, withheld or deleted, for operators. The audit log has each change."""

from __future__ import annotations

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.index.unit import Unit
from cachesvc.schema.entries import RevisionRecord
from cachesvc.schema.namespaces import NamespaceRecord, Policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import HeadConflict, InvalidRequest, NotFound
from cachesvc_client.wire.names import Namespace

from ..answers import forget_answers
from ..audit import note
from ..context import Registry
from ..inventory import readable_revision


def list_namespaces(registry: Registry, by: Token) -> list[NamespaceRecord]:
    """Returns the admin's namespaces, with what they hold and keep."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.namespaces.all(by.namespace)


def set_policy(registry: Registry, by: Token, namespace: Namespace, policy: Policy) -> NamespaceRecord:
    """Replaces the policy of a namespace, and makes the namespace if it does not exist. Nothing is removed
    before the next collection. Raises ``Forbidden``."""
    demand(by, Action.admin, namespace)
    details = {name: getattr(policy, name) for name in Policy.__dataclass_fields__}
    with registry.index.write() as unit:
        unit.namespaces.keep(namespace, policy, registry.now)
        note(registry, unit, by, "namespace.set", namespace, namespace, **details)
        return unit.namespaces.all(namespace)[0]


def pin(registry: Registry, by: Token, revision: Digest, why: str = "") -> RevisionRecord:
    """Keeps a revision, and its entry, from retention, eviction and deletion. A second pin is a success."""
    return _set_pin(registry, by, revision, registry.now, "revision.pin", why)


def unpin(registry: Registry, by: Token, revision: Digest) -> RevisionRecord:
    """Unpins a revision; one that is not pinned is a success."""
    return _set_pin(registry, by, revision, None, "revision.unpin", "")


def delete_entry(registry: Registry, by: Token, entry: Digest, head: Digest | None) -> None:
    """Deletes an entry with its revisions; collection deletes the bytes when downloads under way are over.

    ``head``: the head that the operator saw. Raises ``HeadConflict`` if the head is another by now,
    ``InvalidRequest`` if a revision is pinned, ``NotFound``.
    """
    with registry.index.write() as unit:
        rows = unit.inventory.revisions(entry)
        if not rows or by.namespace not in (ANY, rows[0].namespace):
            raise NotFound(f"entry {entry} does not exist")
        demand(by, Action.admin, rows[0].namespace)
        current = next((row.revision for row in rows if row.head), None)
        if current is None or (head is not None and current != head):
            raise HeadConflict(f"entry {entry}: its head is {current}", "look at it again")
        pinned = [row.revision[:19] for row in rows if row.pinned is not None]
        if pinned:
            raise InvalidRequest(f"entry {entry}: {', '.join(pinned[:3])} is pinned", "unpin it first")
        keys = unit.entries.remove_whole(entry, current)
        if keys is None:
            raise HeadConflict(f"entry {entry} was changed meanwhile", "look at it again")
        for key in keys:
            unit.objects.lease(key, registry.grace_ends)
        place = f"{rows[0].namespace}/{rows[0].name}:{rows[0].tag}"
        note(
            registry,
            unit,
            by,
            "entry.delete",
            rows[0].namespace,
            entry,
            name=place,
            target=rows[0].target,
            lane=rows[0].lane,
            revisions=len(keys),
            **_origin(next(row for row in rows if row.head)),
        )
    forget_answers(registry, rows[0].namespace)


def delete_revision(registry: Registry, by: Token, revision: Digest) -> None:
    """Deletes one revision that is no head. Raises ``InvalidRequest`` for a head or a pinned one."""
    with registry.index.write() as unit:
        row = _administered(unit, by, revision)
        if row.head:
            raise InvalidRequest(
                f"revision {revision} is the head of its entry", "delete the entry, or roll it back first"
            )
        if row.pinned is not None:
            raise InvalidRequest(f"revision {revision} is pinned", "unpin it first")
        key = unit.entries.remove(revision)
        if key is None:
            raise HeadConflict(f"revision {revision} was changed meanwhile", "look at it again")
        unit.objects.lease(key, registry.grace_ends)
        note(registry, unit, by, "revision.delete", row.namespace, revision, entry=row.entry, **_origin(row))


def _origin(row: RevisionRecord) -> dict[str, str]:
    """Returns who signed and who published a revision, for the audit log: its row will be gone."""
    return {"signer": row.signer, "published_by": row.published_by}


def _set_pin(
    registry: Registry, by: Token, revision: Digest, now: int | None, action: str, why: str
) -> RevisionRecord:
    with registry.index.write() as unit:
        row = _administered(unit, by, revision)
        if (row.pinned is None) != (now is None):
            unit.inventory.pin(revision, now)
            note(registry, unit, by, action, row.namespace, revision, why=why or None)
        return readable_revision(unit, by, revision)


def _administered(unit: Unit, by: Token, revision: Digest) -> RevisionRecord:
    row = readable_revision(unit, by, revision)
    demand(by, Action.admin, row.namespace)
    return row
