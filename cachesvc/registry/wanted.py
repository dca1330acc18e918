"""Find what services of a name start in, and what they wanted there and compiled.

Clients reported it; whether a start would be cold *now* is judged by the registry's own ``resolve``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachesvc.domain.access import Action, Token, demand
from cachesvc.domain.retention import DAY
from cachesvc.domain.usefulness import KEPT_DAYS
from cachesvc.index.starts.cold_starts import ColdRecord
from cachesvc.schema.wanted import MAX_SEEN, MAX_WANTED_ROWS, SeenEnvironment, WantedAnswer, WantedTarget
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Lane, Name, Target
from cachesvc_client.wire.partitions import known_partition
from cachesvc_client.wire.requests.protocol import MAX_RESOLVED, ResolveRequest

from .context import Registry
from .reports import recognised
from .resolve import Offers, offers_each

DAYS = 30
"""Days of which starts are asked for by default."""


def list_wanted(
    registry: Registry, by: Token, name: Name, lane: Lane | None = None, days: int = DAYS
) -> WantedAnswer:
    """Returns what services of ``name`` compiled in the last ``days``, as those of ``lane`` see the name:
    what they would be offered nothing for now, and what they compiled although an entry fits; the dearest
    first.

    A cold start counts for each target that has its models in another environment, and for no target where
    its client knew no model. Raises ``Forbidden``.
    """
    demand(by, Action.read, name.namespace, lane)
    since = registry.now - min(days, KEPT_DAYS) * DAY
    most = MAX_WANTED_ROWS + 1
    with registry.index.read() as unit:
        cold = unit.cold_starts.under(name, lane, since, most)
        useless = unit.cold_starts.compiled_all_the_same(name, lane, since, most)
        models = [model for row in cold for model in row.models]
        targets = unit.cold_starts.targets_of(name, lane, list(dict.fromkeys(models)))
    judged = cold[:MAX_WANTED_ROWS]
    rows = [*_still_cold(registry, name, judged, targets), *useless]
    rows.sort(key=lambda row: (-row.spent, -row.starts, row.target or "", row.environment))
    more = len(cold) - len(judged) + max(0, len(rows) - MAX_WANTED_ROWS)
    return WantedAnswer(tuple(rows[:MAX_WANTED_ROWS]), more)


def list_seen(registry: Registry, by: Token, name: Name, lane: Lane | None = None) -> list[SeenEnvironment]:
    """Returns the environments whose services reported starts with ``name`` in the last months, and whose
    facts are known, the last seen first; at most ``MAX_SEEN``. Raises ``Forbidden``."""
    demand(by, Action.read, name.namespace, lane)
    with registry.index.read() as unit:
        used = unit.environments.reported(name, lane, limit=MAX_SEEN)
        facts = unit.environments.get_each(name.namespace, [row.environment for row in used if row.stored])
        cold = unit.cold_starts.under(name, lane, 0, MAX_SEEN)
    seen: dict[Digest, SeenEnvironment] = {}
    for row in used:
        if (fingerprint := facts.get(row.environment)) is not None:
            _add(seen, fingerprint, sum(row.states.values()), 0, row.last_seen)
    for start in cold:
        _add(seen, start.fingerprint, start.starts, start.starts, start.last_seen)
    return sorted(seen.values(), key=lambda one: (-one.last_seen, one.environment))[:MAX_SEEN]


def _add(
    seen: dict[Digest, SeenEnvironment], fingerprint: Fingerprint, starts: int, cold: int, last: int
) -> None:
    where = known_partition(fingerprint)
    before = seen.get(where)
    if before is not None:
        starts, cold, last = starts + before.starts, cold + before.cold, max(last, before.last_seen)
    seen[where] = SeenEnvironment(where, fingerprint, starts, cold, last)


def _still_cold(
    registry: Registry, name: Name, rows: Sequence[ColdRecord], targets: dict[Digest, list[Target]]
) -> Iterator[WantedTarget]:
    """Yields a row for each target that a cold start wanted, and that its environment is not offered now."""
    for row, offered in zip(rows, _offers(registry, name, rows), strict=True):
        known = {model for model in row.models if model in targets}
        wanted = sorted({target for model in known for target in targets[model]})
        if not wanted and (offered.heads or offered.left_out):
            continue  # something fits now; whether it is what they compile, their next start will say
        there = {head.slot.target for head in offered.heads if head.model in known}
        missing = [target for target in wanted if target not in there] if wanted else [None]
        for target in missing:
            yield WantedTarget(
                *(name.namespace, name.name, name.tag, row.environment, row.starts),
                target=target,
                spent=round(row.spent / max(1, len(wanted)), 3),
                last_seen=row.last_seen,
                facts=recognised(row.fingerprint),
                fingerprint=row.fingerprint,
                lane=row.lane,
            )


def _offers(registry: Registry, name: Name, rows: Sequence[ColdRecord]) -> Iterator[Offers]:
    """Yields what a service of each row's environment would be offered now, of the models of its starts."""
    asked = [(number, model) for number, row in enumerate(rows) for model in row.models or (None,)]
    requests = [
        ResolveRequest(
            *(name.namespace, name.name, rows[number].fingerprint, (name.tag,), rows[number].lane),
            model=model,
            most=MAX_RESOLVED,
        )
        for number, model in asked
    ]
    offers = [Offers([]) for _ in rows]
    for (number, _), answer in zip(asked, offers_each(registry, requests), strict=True):
        if not isinstance(answer, CacheSvcError):
            before = offers[number]
            offers[number] = Offers([*before.heads, *answer.heads], before.left_out + answer.left_out)
    yield from offers
