"""Keep the audit log. A row is written in the transaction of its action, so that both exist or neither."""

from __future__ import annotations

from dataclasses import replace

from cachesvc.domain.access import Action, Token, demand
from cachesvc.index.unit import Unit
from cachesvc.schema.access import AuditPage
from cachesvc.schema.entries import MAX_PAGE
from cachesvc_client.wire.errors import InvalidRequest

from .context import Registry

KEPT_DAYS = 730
"""Days after which a row is deleted."""
CONSOLE = "console"
"""Stands in the place of a token's id for an operator at the machine itself."""


def note(
    registry: Registry,
    unit: Unit,
    by: Token | None,
    action: str,
    namespace: str,
    subject: str,
    **details: object,
) -> None:
    """Adds a row. ``action`` is ``thing.verb``; ``details`` that are ``None`` are omitted. An action in a
    session of the web page says so, and names the person if one has logged in: the row outlives the token."""
    if by is not None and by.via is not None:
        details["via"] = by.via
    if by is not None and by.person is not None:
        details |= {"who": f"oidc:{by.person}", "name": by.label}
    unit.audit.add(registry.now, by.token if by else CONSOLE, action, namespace, subject, **details)


def audit_page(
    registry: Registry,
    by: Token,
    cursor: str | None = None,
    limit: int = MAX_PAGE,
    action: str | None = None,
    subject: str | None = None,
) -> AuditPage:
    """Returns a page of the log of the admin's namespace (for ``*`` all of it), newest first.

    ``action``: the beginning of an action. ``subject``: a part of a subject.
    """
    demand(by, Action.admin, by.namespace)
    if cursor is not None and not (cursor.isdecimal() and len(cursor) < 19):
        raise InvalidRequest(f"cursor: {cursor[:40]!r}", "send the cursor of the page before")
    before = int(cursor) if cursor else None
    with registry.index.read() as unit:
        rows = unit.audit.page(by.namespace, before, limit + 1, action, subject)
        labels = unit.tokens.labels({row.by for row in rows})
    more = len(rows) > limit
    named = tuple(replace(row, by_label=labels.get(row.by, "")) for row in rows[:limit])
    return AuditPage(named, str(rows[limit - 1].id) if more else None)
