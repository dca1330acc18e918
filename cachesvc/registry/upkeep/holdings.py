"""Sum up what the whole registry holds, for the gauges that an operator watches."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc.blobs.store import Disk
from cachesvc.domain.retention import DAY
from cachesvc.schema.namespaces import NamespaceRecord

from ..context import Registry
from ..trust.metadata import elsewhere_signed
from .quota import effective_quota

EXPIRING_DAYS = (7, 30)
"""Days from now within which tokens are counted that expire."""


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """What a namespace holds. ``bytes``: of the packs of all its revisions. ``quota``: in bytes, its own or
    the registry's; ``None``: without a bound."""

    namespace: str
    entries: int
    revisions: int
    bytes: int
    quota: int | None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the registry holds. ``expiring``: tokens by the days within which they expire.
    ``oldest_upload_seconds``: age of the oldest upload under way; 0 if there is none. ``disk``: that of the
    packs; ``None`` if they are not in a folder of this machine. ``events_waiting``: of webhooks, which their
    receivers have not got yet; ``oldest_event_seconds``: age of the oldest of them; ``events_given_up``: in
    the last 30 days. ``trust_expires``: seconds until a file of the trust metadata expires that the registry
    does not sign anew by itself, by role."""

    namespaces: tuple[NamespaceUse, ...]
    expiring: dict[int, int]
    oldest_upload_seconds: int
    disk: Disk | None
    events_waiting: int
    oldest_event_seconds: int
    events_given_up: int
    trust_expires: dict[str, int]

    @property
    def fullest_quota(self) -> float | None:
        """The greatest share that a namespace uses of its quota; ``None`` if none has a quota."""
        shares = [row.bytes / max(row.quota, 1) for row in self.namespaces if row.quota is not None]
        return max(shares, default=None)


def read_holdings(registry: Registry) -> Holdings:
    """Returns the sums of this moment. Reads an index of the database over all revisions, so callers remember
    the answer for some time. Raises ``Unavailable``."""
    now = registry.now
    with registry.index.read() as unit:
        namespaces = unit.namespaces.all("*")
        expiring = {days: unit.tokens.count_expiring(now, now + days * DAY) for days in EXPIRING_DAYS}
        oldest = unit.uploads.oldest_unfinished(now)
        waiting, oldest_event, given_up = unit.webhooks.backlog()
        trust_expires = elsewhere_signed(registry, unit)
    return Holdings(
        tuple(_use(registry, row) for row in namespaces),
        expiring,
        0 if oldest is None else max(now - oldest, 0),
        registry.packs.on_disk.disk() if registry.packs.on_disk is not None else None,
        waiting,
        0 if oldest_event is None else max(now - oldest_event, 0),
        given_up,
        trust_expires,
    )


def _use(registry: Registry, row: NamespaceRecord) -> NamespaceUse:
    quota = effective_quota(registry, row.policy.quota_bytes)
    return NamespaceUse(str(row.namespace), row.entries, row.revisions, row.bytes, quota)
