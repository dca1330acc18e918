"""List the starts that compiled and would again: name, environment, reason, cost, and what to do.

What services want is found in :mod:`.wanted`, name by name; here are all names of a namespace, also those
under which nothing is: a service with a misspelt name compiles for ever, and no page of a name shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc.domain.retention import DAY
from cachesvc.domain.usefulness import KEPT_DAYS
from cachesvc.index.unit import Unit
from cachesvc.schema.wanted import MAX_WANTED_ROWS, Miss, MissesAnswer, WantedTarget
from cachesvc_client.wire.names import LATEST, Name, Namespace
from cachesvc_client.wire.suggestion import nearest

from .context import Registry
from .wanted import DAYS, list_wanted

MAX_NAMES = 50
"""Names that one answer judges, at most; those whose starts compiled longest come first."""
MAX_COMPARED = 2_000
"""Names that are compared with a misspelt one, at most."""
MISTYPED = 3
"""Letters by which a misspelt name is longer or shorter, at most."""


def list_misses(
    registry: Registry,
    by: Token,
    namespace: Namespace | None = None,
    days: int = DAYS,
    most: int = MAX_NAMES,
) -> MissesAnswer:
    """Return what services of a namespace, or of all that the token reads, compiled in the last ``days``
    and would compile again, the most expensive first, of ``most`` names. Raise ``Forbidden``."""
    where = namespace or by.namespace
    demand(by, Action.read, where, by.lane)
    since = registry.now - min(days, KEPT_DAYS) * DAY
    with registry.index.read() as unit:
        names = unit.cold_starts.names(where, by.lane, since, most + 1)
    rows: list[Miss] = []
    known: dict[Namespace, list[str]] = {}
    more = max(0, len(names) - most)
    for name in names[:most]:
        answer = list_wanted(registry, by, name, by.lane, days)
        more += answer.more
        if answer.rows:
            with registry.index.read() as unit:
                rows += _explained(unit, by, name, answer.rows, known)
    rows.sort(
        key=lambda one: (-one.wanted.spent, -one.wanted.starts, one.wanted.name, one.wanted.environment)
    )
    more += max(0, len(rows) - MAX_WANTED_ROWS)
    return MissesAnswer(tuple(rows[:MAX_WANTED_ROWS]), more)


def _explained(
    unit: Unit, by: Token, name: Name, rows: tuple[WantedTarget, ...], known: dict[Namespace, list[str]]
) -> Iterator[Miss]:
    """Yield the rows of one name with their reason. ``known``: the names of the namespaces that were read for
    this answer, which may be many."""
    lanes = [None, *([by.lane] if by.lane else [])]
    tags = unit.listing.tags(name.namespace, name.name, lanes)
    reason, near = "no-entry", None
    if not tags:
        if name.namespace not in known:
            known[name.namespace] = [row.name for row in unit.listing.names(name.namespace, lanes)]
        near = nearest(name.name, _of_like_length(name.name, known[name.namespace]))
        reason = "no-such-name"
        near = f"{name.namespace}/{near}" if near else _in_nearest_namespace(unit, by, name)
    elif name.tag not in tags:
        tag = nearest(name.tag, tags) or (LATEST if LATEST in tags else tags[0])
        reason, near = "no-such-tag", f"{name.namespace}/{name.name}:{tag}"
    for row in rows:
        if row.entry is not None:
            yield Miss(row, "compiled-anyway", f"cachesvc explain {name}")
        elif near is not None:
            yield Miss(row, reason, f"CACHESVC_NAME={near}", near)
        elif reason == "no-such-name":
            yield Miss(row, reason, "cachesvc warm SPEC")
        else:
            yield Miss(row, reason, "cachesvc warm SPEC --missing")


def _in_nearest_namespace(unit: Unit, by: Token, name: Name) -> str | None:
    """Return the name in the namespace that a misspelt one may have been; ``None`` where nothing is like it,
    or where things are under the namespace."""
    known = [where for where in unit.namespaces.policies() if may(by, Action.read, where, by.lane)]
    near = (
        None if name.namespace in known else nearest(name.namespace, _of_like_length(name.namespace, known))
    )
    return f"{near}/{name.name}" if near else None


def _of_like_length(word: str, known: Sequence[str]) -> list[str]:
    """Return the words that a mistake in typing may have been, so that few are compared letter by letter."""
    return [one for one in known if abs(len(one) - len(word)) <= MISTYPED][:MAX_COMPARED]
