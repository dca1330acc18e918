"""Find the environments that reported starts with a name, and the facts of one."""

from __future__ import annotations

from cachesvc.domain.access import Action, Token, demand
from cachesvc.index.starts.environments import ReportedEnvironment
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Lane, Name
from cachesvc_client.wire.requests.reports import STATES

from .context import Registry
from .reports import recognised

LISTED = 200
"""Environments of a name that are listed, at most: those seen last."""


def list_environments(
    registry: Registry, by: Token, name: Name, lane: Lane | None
) -> list[ReportedEnvironment]:
    """Returns the environments whose services reported a start with an entry of ``name``, as services of
    ``lane`` see it, the last seen first. Raises ``Forbidden``."""
    demand(by, Action.read, name.namespace, lane)
    with registry.index.read() as unit:
        return unit.environments.reported(name, lane, limit=LISTED)


def starts_of_name(registry: Registry, by: Token, name: Name, lane: Lane | None) -> list[ReportedEnvironment]:
    """Return the environments whose services asked for ``name``, as services of ``lane`` see it, those with
    most starts first: also those that were offered nothing, whose starts are misses. Raises ``Forbidden``."""
    demand(by, Action.read, name.namespace, lane)
    with registry.index.read() as unit:
        rows = unit.environments.reported(name, lane, limit=LISTED)
        for cold in unit.cold_starts.under(name, lane, 0, LISTED):
            facts, states = recognised(cold.fingerprint), {**dict.fromkeys(STATES, 0), "miss": cold.starts}
            missed = (cold.environment, facts, states, cold.last_seen, True, 0.0, cold.spent)
            rows.append(ReportedEnvironment(*missed))
    return sorted(rows, key=lambda row: (-sum(row.states.values()), -row.last_seen, row.environment))


def reported_facts(
    registry: Registry, by: Token, name: Name, lane: Lane | None, environment: Digest
) -> dict[str, FactorValue] | None:
    """Returns the facts of an environment that reported a start with an entry of ``name``; ``None`` if none
    did, or if its facts are not stored. Raises ``Forbidden``."""
    demand(by, Action.read, name.namespace, lane)
    with registry.index.read() as unit:
        if not unit.environments.reported(name, lane, environment, limit=1):
            return None
        return unit.environments.get(name.namespace, environment)
