"""Defines trusted publishers, version 1: the rules by which a registry gives a CI job a token of minutes.

A rule names an issuer of OpenID Connect, an audience and claims. A job whose token has all of them gets a
registry token with the rule's namespace, lane and role. `cachesvc.domain.publishers` says which rules are
too wide, and which rule a job gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachesvc_client.wire.names import Lane, Namespace

DEFAULT_MINUTES = 15
"""Minutes that an issued token lives, if a rule does not say otherwise."""
MAX_MINUTES = 60
"""Largest number of minutes that a rule may give."""
MAX_CLAIMS = 20
"""Largest number of claims of one rule."""
MAX_VALUE = 500
"""Largest number of characters of an issuer, an audience, a claim's pattern, and a label."""
MAX_WORKLOAD_TOKEN = 16 << 10
"""Largest number of characters of the token that a CI system issues."""
NUMBER = "{number}"
"""Stands in a rule's lane for the number of the pull request."""
_ISSUER = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(?:/[A-Za-z0-9._~%/-]*)?")
_CLAIM = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class PublisherRequest:
    """Asks for a new rule.

    ``claims``: what each claim must be; a ``*`` at the end of a value stands for any rest. ``lane``: the lane
    that a job writes to, such as ``nightly``, or ``pr-{number}`` with the number of its pull request;
    ``None`` is the trunk. ``role``: write or read. ``minutes``: how long an issued token lives.
    """

    issuer: str
    audience: str
    claims: dict[str, str]
    namespace: Namespace
    lane: str | None = None
    role: str = "write"
    minutes: int = DEFAULT_MINUTES
    label: str = ""

    def __post_init__(self) -> None:
        if not _ISSUER.fullmatch(self.issuer):
            raise ValueError("issuer: https://host[:port][/path], without user, query, fragment or *")
        if not self.audience:
            raise ValueError("audience: missing; the registry's address is usual")
        if not 1 <= len(self.claims) <= MAX_CLAIMS:
            raise ValueError(f"claims: 1 to {MAX_CLAIMS}")
        for name, pattern in self.claims.items():
            if not _CLAIM.fullmatch(name):
                raise ValueError(f"claims: {name[:40]!r} is no name of a claim")
            if not pattern or "*" in pattern[:-1]:
                raise ValueError(f"claims: {name}: a value, with a * at its end at most")
        for what, text in (("issuer", self.issuer), ("audience", self.audience), ("label", self.label)):
            _check_text(what, text)
        for name, pattern in self.claims.items():
            _check_text(name, pattern)
        if self.lane is not None:
            Lane(self.lane.replace(NUMBER, "1", 1))
        if self.role not in ("write", "read"):
            raise ValueError("role: write or read")
        if not 1 <= self.minutes <= MAX_MINUTES:
            raise ValueError(f"minutes: 1 to {MAX_MINUTES}")


@dataclass(frozen=True, slots=True)
class PublisherRecord:
    """Describes a rule. ``publisher``: its id. ``created``: seconds of UTC."""

    publisher: str
    created: int
    rule: PublisherRequest


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """Asks for a registry token in exchange for a token of a CI system.

    ``namespace``, ``lane``: only rules with these count; ``None`` leaves that open. ``role``: ``read`` asks
    for less than a rule of the role *write* gives.
    """

    token: str
    namespace: Namespace | None = None
    lane: Lane | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        if not self.token or len(self.token) > MAX_WORKLOAD_TOKEN or not self.token.isascii():
            raise ValueError(f"token: a JSON Web Token of at most {MAX_WORKLOAD_TOKEN} characters")
        if self.role not in (None, "write", "read"):
            raise ValueError("role: write or read")


def _check_text(what: str, text: str) -> None:
    if len(text) > MAX_VALUE or not text.isprintable():
        raise ValueError(f"{what}: at most {MAX_VALUE} printable characters")
