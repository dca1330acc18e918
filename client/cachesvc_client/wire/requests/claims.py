"""Defines claims on the wire: who compiles now what no entry holds yet.

A claim is taken for a *subject*. Its key is the subject's digest, which client and registry compute from the
same fields. An entry has two subjects: the exact subject, for a client that knows target and workload
beforehand (``warm``), and the subject of a name in an environment, for a service, which knows what it
compiles only afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..codec import canonical
from ..digest import Digest
from ..factors import Fingerprint
from ..manifest.records import Manifest
from ..names import LATEST, Lane, Namespace, ShortName, Tag, Target
from ..partitions import known_partition, partition

MAX_WAIT_SECONDS = 30
"""Seconds that one request waits at most. A client that waits longer sends another request."""
CLAIM_STATES = ("yours", "held", "published")
"""States of a claim in an answer, see `ClaimAnswer`."""
_HOLDER = re.compile(r"[0-9a-f]{32}")
"""Matches the identity of a holder."""


@dataclass(frozen=True, slots=True)
class ClaimSubject:
    """Describes what is to be compiled. ``target`` and ``workload`` are both set, or neither is."""

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
        """Returns the digest of the subject. Equal subjects have equal keys."""
        return Digest.of(canonical(self))


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Asks for a claim, and waits for it up to ``wait`` seconds.

    ``holder``: 32 hex digits that no other holder has. A second request of the same holder is the same claim,
    so a client that lost an answer can ask again. ``who``: text for the people who wait. ``seen``: fence of a
    publication that this client looked at and cannot use.
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
    """Names a claim and its holder, for renewals and commits. ``fence`` grows with every holder."""

    key: Digest
    holder: str
    fence: int

    def __post_init__(self) -> None:
        _check_holder(self.holder)
        _check_fence("fence", self.fence)


@dataclass(frozen=True, slots=True)
class ClaimRelease:
    """Gives a claim back. ``done`` says that the result is published, so that the clients that wait need not
    compile."""

    claim: ClaimRef
    done: bool = False


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """Answers a `ClaimRequest`. ``state``: ``yours``; ``held``, by another holder; or ``published``: a result
    was published under this ``fence``. A client that cannot use the result asks again with ``seen``.
    ``left``: seconds until the claim ends unless it is renewed. ``age``: seconds since its holder took it.
    Both are durations, because clocks differ. ``who``: text of the holder."""

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
    """Returns the environment of a subject that has target and workload: the digest of all factors that
    decide. Which of them bind the entry is known only after the compile."""
    return partition(fingerprint, ("gpu", "host"))


def satisfied_claim_keys(manifest: Manifest) -> tuple[Digest, Digest]:
    """Returns the keys of the claims whose waiters a publication of ``manifest`` serves: of the exact
    subject, and of the subject of the name."""
    statement, fingerprint = manifest.statement, manifest.fingerprint
    full_name = (statement.namespace, statement.name)
    exact_subject = ClaimSubject(
        *full_name,
        exact_environment(fingerprint),
        statement.tag,
        statement.lane,
        statement.target,
        manifest.workload.key,
    )
    name_subject = ClaimSubject(*full_name, known_partition(fingerprint), statement.tag, statement.lane)
    return exact_subject.key, name_subject.key


def _check_fence(what: str, fence: int) -> None:
    if not 0 <= fence < 1 << 53:
        raise ValueError(f"{what}: out of range")


def _check_holder(holder: str) -> None:
    if not _HOLDER.fullmatch(holder):
        raise ValueError("holder: 32 hex digits")
