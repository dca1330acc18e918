"""Decide when a revision that is inert in an environment is not offered there any more.

Clients choose their node ids, so one token could pretend to be any number of hosts. Three hosts are needed,
and one token counts for two of them at most: a fleet needs a token for each of its clusters to use this. One
token can always lift a quarantine, by a hit: a wrong lift costs others a useless download, and a wrong
quarantine would cost them a compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HOSTS = 3
"""Hosts of one environment that report a revision inert, since the last hit, before it is withheld there."""
HOSTS_PER_TOKEN = 2
"""Hosts that one token counts for, at most."""
ENVIRONMENTS = 64
"""Environments that are stored of each revision; beyond them the one seen longest ago is deleted."""
KEPT_DAYS = 90
"""Days without a report after which an environment is deleted, unless it is quarantined."""
NODES = 1000
"""Nodes that are stored of each revision; beyond them a new node is not written down."""
NODE_DAYS = 30
"""Days without a report after which a node is deleted, so that no one follows a node for long."""

NAMESPACE_ENVIRONMENTS = 1000
"""Environments whose facts are stored for each namespace; beyond them the one seen longest ago is deleted."""
UNKNOWN_NAMESPACES = 20
"""Namespaces in which nothing is and whose cold starts are counted, at most: misspelt ones."""
NAMESPACE_COLD = 1000
"""Pairs of a name and an environment whose cold starts are stored for each namespace; beyond them the one
seen longest ago is deleted."""
COLD_MODELS = 8
"""Hashes of models that are stored of such a pair, at most: the first that were reported."""
DAILY_DAYS = 400
"""Days for which the starts of each day are stored: a year, and the days before it to compare with."""


@dataclass(frozen=True, slots=True)
class InertHost:
    """A node that reported a revision inert, and its token."""

    token: str
    node: str


def count_hosts(hosts: Iterable[InertHost]) -> int:
    """Counts distinct nodes, and of each token at most ``HOSTS_PER_TOKEN``."""
    nodes: dict[str, set[str]] = {}
    for host in hosts:
        nodes.setdefault(host.token, set()).add(host.node)
    by_token = sum(min(HOSTS_PER_TOKEN, len(of_token)) for of_token in nodes.values())
    return min(by_token, len(set().union(*nodes.values())))


def useless(hosts: Iterable[InertHost]) -> bool:
    """Returns whether the revision is to be withheld from the environment of these hosts."""
    return count_hosts(hosts) >= HOSTS
