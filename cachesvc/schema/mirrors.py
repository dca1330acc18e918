"""Records by which a mirror learns what another registry offers, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc_client.wire.digest import Digest

MAX_HEADS = 1000
"""Largest number of heads of one page."""


@dataclass(frozen=True, slots=True)
class HeadRow:
    """Describes the head of an entry. ``sequence`` and ``published`` (seconds of UTC): as in
    ``EntrySummary``. ``withheld``: why the registry offers the head to no one; ``None`` if it offers it."""

    entry: Digest
    revision: Digest
    sequence: int
    published: int
    withheld: str | None = None


@dataclass(frozen=True, slots=True)
class HeadsPage:
    """Holds heads in the order of their entries. ``mark``: text that changes when something in the listing
    changes. ``unchanged``: the mark is the one that the request named, and ``heads`` is empty. ``next``: the
    last entry of this page; ``None`` on the last page."""

    mark: str
    heads: tuple[HeadRow, ...] = ()
    unchanged: bool = False
    next: Digest | None = None


@dataclass(frozen=True, slots=True)
class MirrorState:
    """Describes a mirror. ``upstream``: address of the registry that it mirrors. ``lag``: seconds since its
    last successful look there; ``None`` if no look has succeeded. ``behind``: heads that the last look listed
    and that the mirror does not have. ``why``: what the last look that failed came to; empty after a
    successful one. ``packs`` and ``bytes``: packs that the mirror holds."""

    upstream: str
    lag: int | None
    behind: int
    why: str
    packs: int
    bytes: int
