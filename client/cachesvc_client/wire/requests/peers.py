"""Defines on the wire how agents of nodes find packs at each other: what an agent can give, what it wants.

Nothing here gives a right. A registry passes on what agents say, to those who may read the namespace; an
agent checks each byte that it gets, and each address before it connects (`agent.peers.download`).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ..digest import Digest
from ..manifest.records import MAX_PACK_BYTES
from ..names import Namespace

MAX_OFFERS = 64
"""Largest number of packs that one request offers, and of those that it withdraws."""
MAX_WANTS = 8
"""Largest number of packs that one request asks for."""
MAX_FAILED = 32
"""Largest number of peers that a request names as useless."""
MAX_SOURCES = 4
"""Largest number of peers that an answer names for one pack."""
_AGENT = re.compile(r"[0-9a-f]{32}")
"""Matches the identity of an agent, and of a peer."""
_CAPABILITY = re.compile(r"[0-9a-f]{64}")
"""Matches the secret part of the path at which an agent gives a pack."""


@dataclass(frozen=True, slots=True)
class PackOffer:
    """Offers a pack for a few minutes. ``capability``: 64 hex digits, the secret part of the path."""

    pack: Digest
    capability: str

    def __post_init__(self) -> None:
        _check_capability(self.capability)


@dataclass(frozen=True, slots=True)
class PackWant:
    """Asks for a pack of ``size`` bytes."""

    pack: Digest
    size: int

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_PACK_BYTES:
            raise ValueError("size: out of range")


@dataclass(frozen=True, slots=True)
class PeersRequest:
    """Says what an agent can give and what it wants, of one namespace.

    ``agent``: 32 hex digits that no other agent has. ``address``: the IP address at which it gives packs;
    the port is not named, see `PeerSource`. ``withdrawn``: packs that it offered, or fetched from the
    registry, and has not. ``failed``: peers that gave it nothing, by `PeerSource.peer`.
    """

    namespace: Namespace
    agent: str
    address: str
    offers: tuple[PackOffer, ...] = ()
    wants: tuple[PackWant, ...] = ()
    withdrawn: tuple[Digest, ...] = ()
    failed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_agent("agent", self.agent)
        _check_address(self.address)
        for peer in self.failed:
            _check_agent("failed", peer)
        bounds = {"offers": MAX_OFFERS, "wants": MAX_WANTS, "withdrawn": MAX_OFFERS, "failed": MAX_FAILED}
        for name, most in bounds.items():
            if len(getattr(self, name)) > most:
                raise ValueError(f"{name}: at most {most}")


@dataclass(frozen=True, slots=True)
class PeerSource:
    """Names a peer that offers a pack. Its port is the one at which the asking agent gives packs itself: so
    no answer leads an agent to another service of a machine."""

    peer: str
    address: str
    capability: str

    def __post_init__(self) -> None:
        _check_agent("peer", self.peer)
        _check_address(self.address)
        _check_capability(self.capability)


@dataclass(frozen=True, slots=True)
class PackSources:
    """Answers one `PackWant`. ``fetch``: the agent shall get the pack from the registry now. Without that and
    without ``sources`` another agent does so, and this one asks again."""

    pack: Digest
    sources: tuple[PeerSource, ...] = ()
    fetch: bool = False

    def __post_init__(self) -> None:
        if len(self.sources) > MAX_SOURCES:
            raise ValueError(f"sources: at most {MAX_SOURCES}")


@dataclass(frozen=True, slots=True)
class PeersAnswer:
    """Answers a `PeersRequest`: what it wants, in its order."""

    packs: tuple[PackSources, ...] = ()


def _check_agent(what: str, text: str) -> None:
    if not _AGENT.fullmatch(text):
        raise ValueError(f"{what}: 32 hex digits")


def _check_capability(text: str) -> None:
    if not _CAPABILITY.fullmatch(text):
        raise ValueError("capability: 64 hex digits")


def _check_address(text: str) -> None:
    try:
        plain = str(ipaddress.ip_address(text)) == text and "%" not in text
    except ValueError:
        plain = False
    if not plain:
        raise ValueError("address: an IP address, such as 10.4.0.17")
