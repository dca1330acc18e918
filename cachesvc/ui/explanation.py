"""Explain what an environment gets under a name, as ``cachesvc explain`` does, from what the registry has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cachesvc.domain.access import Action, demand
from cachesvc.queries.coverage import CoveredEntries
from cachesvc.registry import environments, inventory, names
from cachesvc.registry.resolve import resolve_each
from cachesvc_client.queries.explain import EntryVerdict, Explanation, environment_facts, judge, not_installed
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from cachesvc_client.wire.factors import Facts, Fingerprint
from cachesvc_client.wire.names import Lane, Name
from cachesvc_client.wire.partitions import known_partition, partition
from cachesvc_client.wire.requests.protocol import MAX_RESOLVED, EntrySummary

from .page import Viewer


@dataclass(frozen=True, slots=True)
class EnvironmentExplained:
    """What services of one environment get under a name. ``shown``: the entry that is compared factor by
    factor; ``None`` where the name has no entry."""

    explanation: Explanation
    shown: EntryVerdict | None


def explain(
    viewer: Viewer, name: Name, lane: Lane | None, environment: Digest, entry: Digest | None = None
) -> EnvironmentExplained:
    """Judges what the registry offers to a service of ``environment``, by the functions of the command, in
    ``lane``. ``entry``: the entry that is compared factor by factor, in the place of the command's choice.

    Only a service itself knows which signers it trusts: what it refuses is not in here. Raises ``NotFound``
    for an environment that is not known under the name, and for an entry that is not there.
    """
    rows = _visible(viewer, name, lane)
    here = facts_of_environment(viewer, name, lane, environment, rows)
    request = CoveredEntries(name, lane, (), ()).request(environment_facts(here))
    asked_at_start = replace(request, most=MAX_RESOLVED)  # without the entries of older models
    [answer] = resolve_each(viewer.registry, [asked_at_start])
    if isinstance(answer, CacheSvcError):
        raise answer
    kept_out = not_installed(answer, rows, {})
    explanation = judge(str(name), here, rows, None, kept_out)
    shown = explanation.shown
    if entry is not None:
        shown = next((one for one in explanation.entries if one.entry.entry == entry), None)
        if shown is None:
            raise NotFound(f"{name} has no entry {entry[:19]}", "it may have been deleted or replaced")
    if shown is not None:
        # Only what is offered is compared by the facts of its compiles too, as the command does.
        asked = _signed_facts(viewer, shown.entry) if shown.verdict == "fits" else {}
        [shown] = judge(str(name), here, [shown.entry], {shown.entry.entry: asked}, kept_out).entries
    return EnvironmentExplained(explanation, shown)


def facts_of_environment(
    viewer: Viewer, name: Name, lane: Lane | None, environment: Digest, rows: list[EntrySummary] | None = None
) -> Fingerprint:
    """Returns the facts of an environment of a name: as a service there last reported them, or as an entry
    was built. Raises ``NotFound``."""
    reported = environments.reported_facts(viewer.registry, viewer.token, name, lane, environment)
    if reported is not None:
        return reported
    rows = _visible(viewer, name, lane) if rows is None else rows
    environments_built = CoveredEntries(name, lane, tuple(rows), ()).environments()
    built = {known_partition(one.facts): one.facts for one in environments_built}
    built |= {partition(row.fingerprint, row.scopes): row.fingerprint for row in rows}
    if environment not in built:
        raise NotFound(
            f"the facts of environment {environment[:19]} are not known under {name}",
            "the next start that a service there reports brings them",
        )
    return built[environment]


def _visible(viewer: Viewer, name: Name, lane: Lane | None) -> list[EntrySummary]:
    demand(viewer.token, Action.read, name.namespace, lane)
    rows = names.list_entries(viewer.registry, viewer.token, name.namespace, name.name, name.tag)
    return [row for row in rows if row.lane is None or row.lane == lane]


def _signed_facts(viewer: Viewer, row: EntrySummary) -> Facts:
    try:
        return inventory.read_revision(viewer.registry, viewer.token, row.revision).manifest.facts
    except CacheSvcError:  # it does not verify, so no service believes it either
        return {}
