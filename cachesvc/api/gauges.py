"""Show Prometheus what the whole registry holds, at a bounded cost."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachesvc.domain.access import ANY, Role, Token
from cachesvc.registry.context import Registry
from cachesvc.registry.mirror.state import Mirror
from cachesvc.registry.misses import list_misses
from cachesvc.registry.upkeep.holdings import Holdings, read_holdings
from cachesvc.registry.wanted import DAYS
from cachesvc.schema.wanted import MISSES, Miss
from cachesvc_client.wire.errors import CacheSvcError

FRESH_SECONDS = 15.0
"""Seconds for which sums are shown again, at least."""
SHARE = 20
"""Sums are shown again for so many times the seconds that they took: they take a twentieth of the time, at
most, however large the index is and however often someone asks."""
MOST_NAMESPACES = 1000
"""Namespaces that are shown with their names: those that hold most."""
MOST_NAMES = 1000
"""Names whose starts are shown: those with most."""

_READER = Token("metrics", "the metrics", Role.read, ANY)
"""Who reads the misses of every namespace; its rows are shown with names only where the operator says so."""

T = TypeVar("T")
_log = logging.getLogger("cachesvc.metrics")


class SharedRead(Generic[T]):
    """What is read of the index once for several requests for the metrics, since a read may be slow."""

    def __init__(self, what: str, *, read: Callable[[], T]) -> None:
        """``what``: for the log, where it cannot be read."""
        self._what, self._read = what, read
        self._lock = threading.Lock()
        self._last: T | None = None
        self._until = 0.0

    def get(self) -> T | None:
        """Return an answer at most as old as ``FRESH_SECONDS`` and ``SHARE`` allow; ``None`` if the index
        could not be read. Requests that come while it is read wait for that, and read nothing themselves."""
        with self._lock:
            began = time.monotonic()
            if began < self._until:
                return self._last
            try:
                self._last = self._read()
            except CacheSvcError as error:
                _log.warning("%s could not be read: %s", self._what, error)
                self._last = None
            ended = time.monotonic()
            self._until = ended + max(FRESH_SECONDS, SHARE * (ended - began))
            return self._last


class RegistryGauges(Collector):
    """The sums of the registry. Every replica shows the same: take the maximum over replicas, not the sum.

    ``namespaces``: shows each namespace with its name. An index that cannot be read leaves the sums out, and
    ``cachesvc_index_up`` says so.
    """

    def __init__(self, registry: Registry, *, namespaces: bool) -> None:
        self._namespaces = namespaces
        self._holdings = SharedRead("the gauges of the registry", read=lambda: read_holdings(registry))
        self._names = SharedRead("the starts of names", read=lambda: _starts_of_names(registry))

    def describe(self) -> tuple[Metric, ...]:
        """Returns nothing, so that a collector's registration reads no index."""
        return ()

    def collect(self) -> Iterator[Metric]:
        holdings = self._holdings.get()
        up = "1 if the last look of this process at the index succeeded, else 0."
        yield _gauge("index_up", up, float(holdings is not None))
        if holdings is not None:
            yield from _sums(holdings)
            if self._namespaces:
                yield from _by_namespace(holdings)
                yield _by_name(self._names.get() or {})


def _starts_of_names(registry: Registry) -> dict[str, dict[str, int]]:
    with registry.index.read() as unit:
        return unit.sums.starts_of_names(MOST_NAMES)


def _by_name(names: dict[str, dict[str, int]]) -> Metric:
    text = "Starts as services reported them of the revisions that are kept, by name and state."
    family = GaugeMetricFamily("cachesvc_name_starts", text, labels=["name", "state"])
    for name, counts in names.items():
        for state, count in counts.items():
            family.add_metric([name, state], count)
    return family


class MirrorGauges(Collector):
    """How far a mirror is behind its upstream. Reads nothing but this process's memory."""

    def __init__(self, registry: Registry, mirror: Mirror) -> None:
        self._registry, self._mirror = registry, mirror

    def collect(self) -> Iterator[Metric]:
        lag = self._mirror.lag(self._registry.clock())
        text = (
            "Seconds since the last look of this mirror at its upstream that succeeded; absent if none has."
        )
        if lag is not None:
            yield _gauge("mirror_lag_seconds", text, lag)
        behind = "Heads that the upstream has, by the last look, and that this mirror does not have."
        yield _gauge("mirror_behind_revisions", behind, self._mirror.behind)


class MissGauges(Collector):
    """What starts compiled in the last days and would compile again (`registry.misses`), on every replica the
    same. ``names``: shows each name."""

    def __init__(self, registry: Registry, *, names: bool) -> None:
        self._names = names
        self._rows = SharedRead("the misses", read=lambda: list_misses(registry, _READER).rows)

    def describe(self) -> tuple[Metric, ...]:
        """Returns nothing, so that a collector's registration reads no index."""
        return ()

    def collect(self) -> Iterator[Metric]:
        rows = self._rows.get()
        if rows is None:
            return
        days = f"in the last {DAYS} days and would compile again, of the names that cost most; by reason."
        starts = GaugeMetricFamily("cachesvc_miss_starts", f"Starts that compiled {days}", labels=["reason"])
        spent = GaugeMetricFamily(
            "cachesvc_miss_seconds", f"Seconds that starts compiled {days}", labels=["reason"]
        )
        for reason in MISSES:
            of_reason = [row.wanted for row in rows if row.reason == reason]
            starts.add_metric([reason], sum(one.starts for one in of_reason))
            spent.add_metric([reason], sum(one.spent for one in of_reason))
        yield from (starts, spent)
        if self._names:
            yield _misses_by_name(rows)


def _misses_by_name(rows: tuple[Miss, ...]) -> Metric:
    text = "Starts that compiled and would compile again, by name and reason."
    family = GaugeMetricFamily("cachesvc_name_miss_starts", text, labels=["name", "reason"])
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        one = row.wanted
        counts[f"{one.namespace}/{one.name}:{one.tag}", row.reason] += one.starts
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _sums(holdings: Holdings) -> Iterator[Metric]:
    rows = holdings.namespaces
    whole = "in the whole registry; every replica says the same."
    yield _gauge("namespaces", f"Namespaces {whole}", len(rows))
    yield _gauge("entries", f"Entries {whole}", sum(row.entries for row in rows))
    yield _gauge("revisions", f"Revisions of all entries {whole}", sum(row.revisions for row in rows))
    stored = f"Bytes of the packs of all revisions {whole}"
    yield _gauge("stored_bytes", stored, sum(row.bytes for row in rows))
    if holdings.fullest_quota is not None:
        fullest = "Stored bytes divided by quota of the namespace that uses most of its quota."
        yield _gauge("quota_used_ratio", fullest, holdings.fullest_quota)
    tokens = GaugeMetricFamily(
        "cachesvc_tokens_expiring",
        "Valid tokens, without those of CI jobs, that expire within this many days.",
        labels=["days"],
    )
    for days, count in holdings.expiring.items():
        tokens.add_metric([str(days)], count)
    yield tokens
    oldest = "Seconds since the oldest upload began that is under way; 0 if none is."
    yield _gauge("oldest_upload_seconds", oldest, holdings.oldest_upload_seconds)
    waiting = f"Events of webhooks that their receivers have not got yet, {whole}"
    yield _gauge("webhook_events_waiting", waiting, holdings.events_waiting)
    age = "Seconds since the oldest event happened that waits for the receiver of a webhook; 0 if none waits."
    yield _gauge("webhook_oldest_event_seconds", age, holdings.oldest_event_seconds)
    given_up = f"Events of webhooks that were given up in the last 30 days, {whole}"
    yield _gauge("webhook_events_given_up", given_up, holdings.events_given_up)
    expires = GaugeMetricFamily(
        "cachesvc_trust_expires_seconds",
        "Seconds until trust metadata expire that the registry does not sign anew by itself.",
        labels=["role"],
    )
    for role, seconds in holdings.trust_expires.items():
        expires.add_metric([role], seconds)
    yield expires
    if holdings.disk is not None:
        disk = "Bytes {} the file system that holds the packs, on the machine of this process."
        yield _gauge("disk_free_bytes", disk.format("that can still be written to"), holdings.disk.free)
        yield _gauge("disk_size_bytes", disk.format("of"), holdings.disk.size)


def _by_namespace(holdings: Holdings) -> Iterator[Metric]:
    rows = sorted(holdings.namespaces, key=lambda row: (-row.bytes, row.namespace))[:MOST_NAMESPACES]
    stored = _family("stored_bytes", "Bytes of the packs of all revisions of a namespace.")
    entries = _family("entries", "Entries of a namespace.")
    quota = _family("quota_bytes", "Quota of a namespace in bytes; absent for one without a quota.")
    for row in rows:
        stored.add_metric([row.namespace], row.bytes)
        entries.add_metric([row.namespace], row.entries)
        if row.quota is not None:
            quota.add_metric([row.namespace], row.quota)
    yield from (stored, entries, quota)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cachesvc_{name}", text, value=value)


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cachesvc_namespace_{name}", text, labels=["namespace"])
