"""Withhold what is inert in an environment, and offer it again where a start used it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cachesvc.domain.access import Token
from cachesvc.domain.usefulness import HOSTS, InertHost, useless
from cachesvc.index.starts.usefulness import Reported
from cachesvc.index.unit import Unit
from cachesvc.schema.webhooks import COLD, RELEASED, WITHHELD
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.requests.reports import (
    RevisionReport,
)

from . import webhooks
from .audit import note
from .context import Registry

_log = logging.getLogger("cachesvc.reports")
USED = ("hit", "partial")
"""States of a start that used the revision."""


def apply_outcome(
    registry: Registry,
    unit: Unit,
    token: Token,
    subject: Reported,
    host: InertHost,
    row: RevisionReport,
    where: Digest,
    why: Sequence[str],
) -> tuple[bool, bool]:
    """Lifts or sets a quarantine by the outcome of a start.

    Returns (whether the revision is withheld from the environment now, whether that changed).
    """
    if row.state in USED:
        lifted = unit.usefulness.lift(row.revision, where)
        if lifted:
            _log.info("revision %s: used in environment %s, offered there again", row.revision, where)
            details = {"environment": where, "why": "it was used there"}
            note(registry, unit, token, "quarantine.release", subject.namespace, row.revision, **details)
            subject_row = unit.inventory.revision(row.revision)
            webhooks.announce_revision(registry, unit, RELEASED, subject_row, **details)
        return False, lifted
    if row.state != "inert":
        return False, False
    before = unit.usefulness.hosts(row.revision, where)
    hosts = unit.usefulness.inert(row.revision, where, host, registry.now)
    if not before:
        cold = {"environment": where, "why": "; ".join(why)[:500] or None}
        webhooks.announce_revision(registry, unit, COLD, unit.inventory.revision(row.revision), **cold)
    if not useless(hosts):
        return False, False
    changed = unit.usefulness.quarantine(row.revision, where, registry.now)
    if changed:
        _log.warning("revision %s: inert in environment %s, not offered there", row.revision, where)
        details = {"environment": where, "why": f"{HOSTS} hosts found it inert"}
        note(registry, unit, token, "quarantine.set", subject.namespace, row.revision, **details)
        subject_row = unit.inventory.revision(row.revision)
        webhooks.announce_revision(registry, unit, WITHHELD, subject_row, **details)
    return True, changed
