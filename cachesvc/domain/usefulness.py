"""When a revision that does nothing in an environment is not offered there any more.

Node ids are the client's own words, so one token could be any number of hosts: it counts for two at most,
and it takes three. A fleet that wants the protection gives each of its clusters a token. What one token can
always do is lift a quarantine, by a hit: that costs others a useless download, where a wrong quarantine costs
them a compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HOSTS = 3
"""Hosts of one environment whose starts found a revision inert, since the last that used it."""
HOSTS_PER_TOKEN = 2
"""Of these, at most so many by one token's word."""
ENVIRONMENTS = 64
"""Kept of each revision; beyond that the one that was seen longest ago goes."""
KEPT_DAYS = 90
"""After so long without a report, an environment is forgotten, unless it is quarantined."""


@dataclass(frozen=True, slots=True)
class InertHost:
    """A node, and the token that it came with."""

    token: str
    node: str


def count_hosts(hosts: Iterable[InertHost]) -> int:
    """How many hosts they stand for: distinct nodes, and of each token at most ``HOSTS_PER_TOKEN``."""
    nodes: dict[str, set[str]] = {}
    for host in hosts:
        nodes.setdefault(host.token, set()).add(host.node)
    by_token = sum(min(HOSTS_PER_TOKEN, len(held)) for held in nodes.values())
    return min(by_token, len(set().union(*nodes.values())))


def useless(hosts: Iterable[InertHost]) -> bool:
    """Whether the revision is to be withheld from the environment of these hosts."""
    return count_hosts(hosts) >= HOSTS
