"""Defines answers about environments: which ones services start in, and what they compile for want of it.

Clients reported all of it; it is trusted for nothing. Times are seconds of UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

MAX_WANTED_ROWS = 100
"""Largest number of rows of one answer; those that cost most come first."""
MAX_SEEN = 200
"""Largest number of environments in one answer; those seen last come first."""


@dataclass(frozen=True, slots=True)
class WantedTarget:
    """Counts the starts of one environment that compiled a target, or something under a name.

    ``target``: ``None`` if nothing fitted and no entry of another environment is for the model of these
    starts. ``entry``: the entry that fits there and did not spare the compile; ``None`` if none fits.
    ``starts``: number of starts that compiled. ``spent``: seconds that they compiled, together.
    ``environment``: the digest that the registry has for it. ``facts``: those by which people recognise it.
    ``fingerprint``: all facts; empty where the registry does not know them any more. ``why``: what differed
    in the last start that compiled although an entry fits.
    """

    namespace: Namespace
    name: ShortName
    tag: Tag
    environment: Digest
    starts: int
    spent: float
    last_seen: int
    target: Target | None = None
    facts: dict[str, str] = field(default_factory=dict)
    fingerprint: dict[str, FactorValue] = field(default_factory=dict)
    lane: Lane | None = None
    entry: Digest | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """Lists what services of a name wanted and compiled, the dearest first. ``more``: number of rows that the
    registry has and did not judge."""

    rows: tuple[WantedTarget, ...]
    more: int = 0


MISSES = ("no-such-name", "no-such-tag", "no-entry", "compiled-anyway")
"""Reasons for which starts compile: nothing is under the name, or under its tag; no entry fits the
environment; one fits, and did not spare the compile."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Counts starts that compiled and would again. ``reason``: one of ``MISSES``. ``nearest``: the name
    that the service may have meant. ``fix``: what to type, on such a host for an environment."""

    wanted: WantedTarget
    reason: str
    fix: str
    nearest: str | None = None


@dataclass(frozen=True, slots=True)
class MissesAnswer:
    """Lists misses, those that cost most seconds first. ``more``: number of rows that are not here."""

    rows: tuple[Miss, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class SeenEnvironment:
    """Describes an environment whose services reported starts with a name. ``environment``: the digest of the
    facts that every process knows (``partitions.known_partition``). ``starts``: number of them. ``cold``: how
    many of these were offered nothing."""

    environment: Digest
    fingerprint: dict[str, FactorValue]
    starts: int
    cold: int
    last_seen: int
