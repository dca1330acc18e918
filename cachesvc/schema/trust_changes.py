"""Define the requests of an operator who signs trust metadata, version 1, and the registry's answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RootRequest:
    """Holds the next root as it was signed, and new targets if the root changes their keys."""

    root: str
    targets: str | None = None


@dataclass(frozen=True, slots=True)
class TargetsRequest:
    """Holds the next targets as they were signed."""

    targets: str


@dataclass(frozen=True, slots=True)
class KeysRequest:
    """Asks a registry for new keys of its own: ``root``, ``targets``, ``online``."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrustState:
    """Says what a registry signs itself. ``signs_all``: also root and targets, as a registry of one machine
    does. ``signs_online``: snapshot and timestamp. ``online``: the public key (``ed25519:<base64>``) for
    these two that the next root is to name. ``root``: version of the newest root; 0 if there is none."""

    signs_all: bool
    signs_online: bool
    online: str | None = None
    root: int = 0
