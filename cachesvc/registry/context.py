"""What every use case stands on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachesvc.blobs.store import BlobStore, Links
from cachesvc.blobs.wrappers import Meter
from cachesvc.domain.retention import Retention
from cachesvc.hot.store import Hot
from cachesvc.index.unit import Index
from cachesvc_client.wire.records import MAX_PACK_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """``lease_seconds``: how long an upload may be silent. ``grace_seconds``: how long an object outlives
    its last reference; at least the longest download, and longer than ``link_seconds``: how long a link to
    the store holds. ``pack_bytes``: of one upload. ``claim_seconds``: how long the holder of a claim may be
    silent. ``retention`` and ``quota_bytes``: of namespaces that have no bounds of their own."""

    lease_seconds: int = 900
    grace_seconds: int = 7200
    link_seconds: int = 900
    pack_bytes: int = MAX_PACK_BYTES
    claim_seconds: int = 60
    quota_bytes: int | None = None
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class Registry:
    """``hot``: hints that replicas share; whoever can write them gains nothing. ``own``: what this process
    keeps for itself (``None``: in ``hot``, which is its own). ``links``: of the store that ``blobs`` wraps,
    if readers may use it. ``meter``: what passes ``blobs``. ``clock``: seconds of UTC."""

    index: Index
    blobs: BlobStore
    hot: Hot
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.time
    links: Links | None = None
    meter: Meter = field(default_factory=Meter)
    own: Hot | None = None

    @property
    def memory(self) -> Hot:
        """Remembers what grants or limits something, and answers, in this process alone: nothing outside of
        it can write there. Each replica reads the index for itself, at least every 5 s."""
        return self.own or self.hot

    @property
    def now(self) -> int:
        """Whole seconds of UTC."""
        return int(self.clock())
