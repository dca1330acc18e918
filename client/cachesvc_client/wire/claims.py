"""Claims on the wire: who compiles now what no entry holds yet.

A claim is taken for a *subject*, and its key is the subject's digest, made by the registry from the same
words. Two subjects stand for one entry: the exact one (``warm`` knows target and workload beforehand) and
that of a name in an environment (a service knows what it compiles only when it has).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .codec import canonical
from .digest import Digest
from .factors import Fingerprint
from .names import LATEST, Lane, Namespace, ShortName, Tag, Target
from .partitions import known_partition, partition
from .records import Manifest

MAX_WAIT_SECONDS = 30
"""Of one request; who wants to wait longer asks again."""
CLAIM_STATES = ("yours", "held", "published")
_HOLDER = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ClaimSubject:
    """What is to be compiled. ``target`` and ``workload``: both, or neither."""

    namespace: Namespace
    name: ShortName
    environment: Digest
    tag: Tag = LATEST
    lane: Lane | None = None
    target: Target | None = None
    workload: Digest | None = None

    def __post_init__(self) -> None:
        if (self.target is None) != (self.workload is None):
            raise ValueError("target and workload: both, or neither")

    @property
    def key(self) -> Digest:
        """Equal subjects have equal keys."""
        return Digest.of(canonical(self))


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Takes the claim, or waits for it up to ``wait`` seconds.

    ``holder``: 32 hex digits that nobody else has; the same again is the same holder, so that a lost answer
    can be asked for again. ``who``: for people who wait. ``seen``: the fence under which something was
    published that the one who asks has looked at, and that does not serve him.
    """

    subject: ClaimSubject
    holder: str
    who: str = ""
    wait: float = 0.0
    seen: int = 0

    def __post_init__(self) -> None:
        _check_holder(self.holder)
        if len(self.who) > 100 or not self.who.isprintable():
            raise ValueError("who: at most 100 printable characters")
        if not 0 <= self.wait <= MAX_WAIT_SECONDS:  # false for nan
            raise ValueError(f"wait: seconds, 0 to {MAX_WAIT_SECONDS}")
        _check_fence("seen", self.seen)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim that somebody holds: what a renewal and a commit present. ``fence`` grows with every holder."""

    key: Digest
    holder: str
    fence: int

    def __post_init__(self) -> None:
        _check_holder(self.holder)
        _check_fence("fence", self.fence)


@dataclass(frozen=True, slots=True)
class ClaimRelease:
    """Gives a claim back. ``done``: what it was taken for is published; those who wait need not compile."""

    claim: ClaimRef
    done: bool = False


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """``state``: ``yours``; ``held`` by somebody else, still; or ``published``: under this ``fence``
    something was, so look, and if it does not serve, ask again with ``seen``. ``left``: seconds until it ends
    unless it is renewed; ``age``: seconds since its holder took it: durations, because clocks differ.
    ``who``: the holder's words."""

    state: str
    key: Digest
    fence: int = 0
    left: int = 0
    age: int = 0
    who: str = ""

    def __post_init__(self) -> None:
        if self.state not in CLAIM_STATES:
            raise ValueError(f"state: one of {', '.join(CLAIM_STATES)}")


def exact_environment(fingerprint: Fingerprint) -> Digest:
    """Of a subject with target and workload: everything that decides. Which of it an entry will be bound to
    is known only when it is compiled."""
    return partition(fingerprint, ("gpu", "host"))


def served_by(manifest: Manifest) -> tuple[Digest, Digest]:
    """The keys of the claims for which a publication of ``manifest`` is what was waited for."""
    statement, fingerprint = manifest.statement, manifest.fingerprint
    place = (statement.namespace, statement.name)
    exact = ClaimSubject(
        *place,
        exact_environment(fingerprint),
        statement.tag,
        statement.lane,
        statement.target,
        manifest.workload.key,
    )
    named = ClaimSubject(*place, known_partition(fingerprint), statement.tag, statement.lane)
    return exact.key, named.key


def _check_fence(what: str, fence: int) -> None:
    if not 0 <= fence < 1 << 53:
        raise ValueError(f"{what}: out of range")


def _check_holder(holder: str) -> None:
    if not _HOLDER.fullmatch(holder):
        raise ValueError("holder: 32 hex digits")
