"""Decides which packs a node holds: a pure rule over what is listed, what is there, and a bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.partitions import PublishedAt, newest_first


@dataclass(frozen=True, slots=True)
class WantedPack:
    """Describes a pack of a listed revision. ``pinned``: of a name that the operator has pinned.
    ``at``: how new the revision is."""

    pack: Digest
    size: int
    at: PublishedAt
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class PresentPack:
    """Describes a pack in the store. ``unlisted``: seconds since which no list names it; ``None`` if one
    does."""

    name: str
    size: int
    unlisted: float | None = None


def packs_to_hold(wanted: Iterable[WantedPack], bound: int) -> list[WantedPack]:
    """Returns the packs that fit into ``bound`` bytes together, each once: those of pinned names first, then
    the newest. One that is too large for the room that is left is passed over."""
    chosen: dict[Digest, WantedPack] = {}
    left = bound
    for pack in sorted(wanted, key=lambda row: (not row.pinned, *newest_first(row.at, row.pack))):
        if pack.pack not in chosen and pack.size <= left:
            chosen[pack.pack] = pack
            left -= pack.size
    return list(chosen.values())


def packs_to_remove(
    present: Iterable[PresentPack], held: Iterable[WantedPack], bound: int, keep_seconds: float
) -> list[str]:
    """Returns the names of packs to remove: those that no list names for ``keep_seconds``, and of the others
    that are not held as many as it takes to have room for all that is held, the longest unlisted first.

    A pack that a list names and that is not held (the bound has no room for it) goes like one that no list
    names.
    """
    sizes: Mapping[str, int] = {pack.pack.hex: pack.size for pack in held}
    others = [pack for pack in present if pack.name not in sizes]
    others.sort(key=lambda pack: -(pack.unlisted if pack.unlisted is not None else -1.0))
    room = bound - sum(sizes.values())
    removed: list[str] = []
    total = sum(pack.size for pack in others)
    for pack in others:
        if total > room or (pack.unlisted is not None and pack.unlisted >= keep_seconds):
            removed.append(pack.name)
            total -= pack.size
    return removed
