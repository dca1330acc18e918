"""Apply retention, and delete what no one needs. A kill at any moment is safe, and so are concurrent
requests.

What a policy does not keep is deleted from the index, one transaction each; its objects stay for the grace
period. Then objects (`sweep`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.domain.claims import KEPT_SECONDS
from cachesvc.domain.retention import (
    CHEAP_SECONDS,
    DAY,
    DEAR_SECONDS,
    Retention,
    RevisionAge,
    evicted,
    expired,
    unused,
)
from cachesvc.domain.usefulness import DAILY_DAYS, KEPT_DAYS, NODE_DAYS
from cachesvc.index.starts.usefulness import UsedEntry
from cachesvc.index.unit import Unit
from cachesvc.schema.upkeep import FORECAST_DAYS, ColdForecast, CollectPlan, Removal
from cachesvc_client.wire.names import Lane, Namespace
from cachesvc_client.wire.text import count_text

from .. import audit, webhooks
from ..answers import forget_answers
from ..context import Registry
from ..resolve import USED_STEP_SECONDS
from .older_models import unused_older_models
from .sweep import sweep

_log = logging.getLogger("cachesvc.gc")
SHOWN = 1000
"""Removals that a plan names; it counts all of them."""
SHOWN_COLD = 200
"""Environments that a plan names whose starts would go cold; it counts all of them."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of one run. ``entries``: those deleted whole; their revisions are among ``revisions``."""

    revisions: int
    uploads: int
    objects: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Removable:
    """A revision that a policy does not keep; ``whole``: nor its entry."""

    row: RevisionAge
    why: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _GoingCold:
    """An environment that used an entry which goes. ``seconds``: that a start there will compile."""

    removable: _Removable
    used: UsedEntry
    seconds: float

    @property
    def cost(self) -> float:
        """The seconds that its starts will compile, if there are as many again. Publishers state the seconds,
        so they are bounded as in retention."""
        return self.used.starts * max(CHEAP_SECONDS, min(self.seconds, DEAR_SECONDS))


def collect(registry: Registry, by: Token | None = None) -> Collected:
    """Runs retention and collection, by what holds now, whatever a plan said. ``by=None``: the server
    itself."""
    if by is not None:
        demand(by, Action.admin, ANY)
    revisions, entries = _retain(registry)
    with registry.index.write() as unit:
        uploads = unit.uploads.drop_over(registry.now)
        unit.claims.forget(KEPT_SECONDS)
        unit.mirrors.forget_tokens(registry.now - _offline_seconds(registry))
        unit.sessions.forget(registry.now)
        unit.usefulness.forget(registry.now - KEPT_DAYS * DAY)
        unit.environments.forget(registry.now - KEPT_DAYS * DAY)
        unit.cold_starts.forget(registry.now - KEPT_DAYS * DAY)
        unit.days.forget(registry.now // DAY - DAILY_DAYS)
        unit.nodes.forget(registry.now - NODE_DAYS * DAY)
        unit.audit.forget(registry.now - audit.KEPT_DAYS * DAY)
        unit.webhooks.forget(registry.now - webhooks.KEPT_DAYS * DAY)
        webhooks.announce_expiring_tokens(registry, unit)
    collected = Collected(revisions, uploads, sweep(registry), entries)
    if by is not None:
        with registry.index.write() as unit:
            counts = {name: getattr(collected, name) for name in Collected.__dataclass_fields__}
            audit.note(registry, unit, by, "gc.run", ANY, "", **counts)
    if any((collected.revisions, collected.uploads, collected.objects)):
        _log.info(
            "collected %d revisions (%d whole entries), %d uploads, %d objects",
            collected.revisions,
            collected.entries,
            collected.uploads,
            collected.objects,
        )
    return collected


def plan(registry: Registry, by: Token, shown: int = SHOWN) -> CollectPlan:
    """Returns what a run would remove now, and why, with the first ``shown`` removals; changes nothing.
    Objects are those that are free already: objects of the removals follow after their grace period."""
    demand(by, Action.admin, ANY)
    with registry.index.read() as unit:
        policies = _policies(registry, unit) if registry.mirror is None else {}
        removable = [*chain(*_removable(registry, unit, policies).values())]
        removals = _removals(unit, removable[: min(shown, SHOWN)])
        objects = unit.objects.count_loose(registry.now)
        cold = _forecast(registry, unit, removable)
        shown_cold = _named(unit, cold[:SHOWN_COLD])
    size = sum(one.row.size for one in removable)
    kept = "" if removable else _kept(policies)
    return CollectPlan(
        tuple(removals), len(removable), size, objects, shown_cold, len(cold), FORECAST_DAYS, kept
    )


def _kept(policies: Mapping[Namespace, Retention]) -> str:
    """Return what the policies keep, for an operator whose disk is full and whose plan is empty."""
    of_each: dict[str, list[str]] = {}
    for namespace, one in policies.items():
        bounds = {"unused-days": one.unused_days, "keep-bytes": one.keep_bytes}
        unset = " and ".join(f"--{name}" for name, value in bounds.items() if value is None)
        text = f"the newest {count_text(one.revisions, 'revision')} of each entry, and all of {one.days} days"
        of_each.setdefault(text + (f", without {unset}" if unset else ""), []).append(namespace)
    parts = [
        f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}: {text}" for text, names in of_each.items()
    ]
    return "; ".join(parts[:3])


def _forecast(registry: Registry, unit: Unit, removable: Sequence[_Removable]) -> list[_GoingCold]:
    """Returns the entries that go whole and the environments whose starts used them lately, the dearest
    first. A start is offered an entry before it uses it, so an entry that no one was offered is not read."""
    since = registry.now - FORECAST_DAYS * DAY
    offered = since - USED_STEP_SECONDS
    whole = {one.row.entry: one for one in removable if one.whole and one.row.touched >= offered}
    used = unit.usefulness.used_since(list(whole), since)
    heads = {row.entry: whole[row.entry].row.revision for row in used}
    seconds = unit.ages.seconds_of(list(heads.values()))
    cold = [_GoingCold(whole[row.entry], row, seconds.get(heads[row.entry], 0.0)) for row in used]
    return sorted(cold, key=lambda one: (-one.cost, one.used.entry, one.used.environment))


def _named(unit: Unit, cold: Sequence[_GoingCold]) -> tuple[ColdForecast, ...]:
    places = unit.inventory.places([one.removable.row.revision for one in cold])
    return tuple(
        ColdForecast(
            one.used.entry,
            *places[one.removable.row.revision],
            one.used.environment,
            one.used.starts,
            one.used.last_seen,
            one.seconds,
            one.removable.why,
            one.used.facts,
            Lane(one.removable.row.lane) if one.removable.row.lane else None,
        )
        for one in cold
        if one.removable.row.revision in places
    )


def _offline_seconds(registry: Registry) -> int:
    """Returns for how many seconds a mirror's confirmed tokens may still count."""
    return registry.mirror.offline_seconds if registry.mirror is not None else 0


def _retain(registry: Registry) -> tuple[int, int]:
    """Deletes what the policies do not keep, and returns (revisions, entries). A mirror has the revisions of
    its upstream, whose policies decide."""
    if registry.mirror is not None:
        return 0, 0
    with registry.index.read() as unit:
        policies = _policies(registry, unit)
        found = _removable(registry, unit, policies)
        _warn_of_cold(_named(unit, _forecast(registry, unit, [*chain(*found.values())])[:SHOWN_COLD]))
    revisions = entries = 0
    for namespace in found:
        with registry.index.read() as unit:  # again: what holds now is deleted
            policy = registry.limits.retention.of(unit.namespaces.policy(namespace))
            removable = _removable(registry, unit, {namespace: policy}, namespace).get(namespace, [])
        counts = [_delete(registry, one) for one in removable]
        revisions += sum(counts)
        entries += sum(bool(count) and one.whole for count, one in zip(counts, removable, strict=True))
        if any(count and one.whole for count, one in zip(counts, removable, strict=True)):
            forget_answers(registry, namespace)
    return revisions, entries


def _warn_of_cold(cold: Sequence[ColdForecast]) -> None:
    """Says in the log what the policies make cold: this collection follows them, whoever started it."""
    if cold:
        targets = dict.fromkeys(f"{one.namespace}/{one.name}:{one.tag} {one.target}" for one in cold[:3])
        names = ", ".join(targets)
        _log.warning(
            "collecting makes the starts of %d environments cold that used %s%s in the last %d days",
            *(len(cold), names, " and others" if len(cold) > 3 else "", FORECAST_DAYS),
        )


def _policies(registry: Registry, unit: Unit) -> dict[Namespace, Retention]:
    """Returns the policy of each namespace, with the settings' bounds where it has none of its own."""
    retention = registry.limits.retention
    return {namespace: retention.of(policy) for namespace, policy in unit.namespaces.policies().items()}


def _removable(
    registry: Registry,
    unit: Unit,
    policies: Mapping[Namespace, Retention],
    only: Namespace | None = None,
) -> dict[Namespace, list[_Removable]]:
    """Return what to delete, by the namespaces that have something, in order: single revisions first, then
    whole entries.

    The candidates of all namespaces are read at once, by the strictest bounds of all policies: a query for
    each namespace took as long each time. ``only``: the one namespace of ``policies``.
    """
    if not policies:
        return {}
    now = registry.clock()
    newest = min(one.revisions for one in policies.values())
    young = int(now - min(one.days for one in policies.values()) * DAY) + 1
    full = unit.ages.superseded(newest, young, only)
    unused_days = [days for one in policies.values() if (days := one.fewest_days_unused) is not None]
    before = int(now - min(unused_days) * DAY) if unused_days else None
    idle = unit.ages.idle(before, only) if before is not None else {}
    bounds = [one.keep_bytes for one in policies.values() if one.keep_bytes is not None]
    crowded = bool(bounds) and unit.namespaces.totals(only or ANY).bytes > min(bounds)
    older_days = registry.limits.retention.older_model_days
    older = unused_older_models(unit, now, older_days, only) if older_days is not None else {}
    removable = {}
    for namespace, policy in policies.items():
        found = list(_unkept(full.get(namespace, ()), idle.get(namespace, ()), policy, now))
        found += _of_older_models(older.get(namespace, ()), found, older_days)
        if crowded and policy.keep_bytes is not None:
            found += _evicted(_left(unit, namespace, found), policy, now)
        if found:
            removable[namespace] = found
    return removable


def _unkept(
    full: Sequence[RevisionAge], idle: Sequence[RevisionAge], policy: Retention, now: float
) -> Iterator[_Removable]:
    """Yields what the numbers and days of a namespace's policy do not keep."""
    old = expired(full, policy, now)
    yield from (
        _Removable(
            row,
            f"more than {count_text(policy.revisions, 'revision')}, "
            f"older than {count_text(policy.days, 'day')}",
        )
        for row in old
    )
    yield from (
        _Removable(row, f"not used for {policy.days_unused(row.lane)} days", whole=True)
        for row in unused(idle, policy, now)
    )


def _of_older_models(
    heads: Sequence[RevisionAge], found: Sequence[_Removable], days: int | None
) -> list[_Removable]:
    """Return the entries of older models that are not among ``found`` already."""
    whole = {one.row.entry for one in found if one.whole}
    why = f"a newer model replaced it, and no start used it for {days} days"
    return [_Removable(row, why, whole=True) for row in heads if row.entry not in whole]


def _left(unit: Unit, namespace: Namespace, found: Sequence[_Removable]) -> list[RevisionAge]:
    """Returns the revisions of a namespace that stay when ``found`` is deleted."""
    listed = {one.row.revision for one in found}
    entries = {one.row.entry for one in found if one.whole}
    rows = unit.ages.of_namespace(namespace)
    return [row for row in rows if row.revision not in listed and row.entry not in entries]


def _evicted(rows: list[RevisionAge], policy: Retention, now: float) -> Iterator[_Removable]:
    for row in evicted(rows, policy, now):
        idle = int((now - row.touched) / DAY)
        why = f"over {policy.keep_bytes} bytes; idle {idle} days, {row.compile_seconds:.0f} s to compile"
        yield _Removable(row, why, whole=row.is_head)


def _delete(registry: Registry, removable: _Removable) -> int:
    """Deletes a revision or its entry and returns how many revisions: none if it is pinned or a head by
    now."""
    with registry.index.write() as unit:
        if removable.whole:
            keys = unit.entries.remove_whole(removable.row.entry, removable.row.revision) or []
        else:
            key = unit.entries.remove(removable.row.revision)
            keys = [] if key is None else [key]
        for key in keys:
            unit.objects.lease(key, registry.grace_ends)
    return len(keys)


def _removals(unit: Unit, removable: Sequence[_Removable]) -> list[Removal]:
    places = unit.inventory.places([one.row.revision for one in removable])
    return [
        Removal(
            one.row.entry,
            one.row.revision,
            *places[one.row.revision],
            one.row.size,
            one.why,
            one.whole,
        )
        for one in removable
        if one.row.revision in places
    ]
