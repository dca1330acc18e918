"""Packs, to those who may read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachesvc.domain.access import Action, Token, may
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.protocol import pack_path

from .context import Registry


@dataclass(frozen=True, slots=True)
class Pack:
    """A whole, immutable object of ``size`` bytes with this digest."""

    digest: Digest
    size: int
    key: str


def pack_url(registry: Registry, revision: Digest, key: str) -> str:
    """Where clients get a revision's pack, the object ``key``: by a link to the store, or else by a path of
    this registry.

    A link outlives the answer that holds it by ``link_seconds`` less the 5 s that the answer is remembered.
    """
    if registry.links is None:
        return pack_path(revision)
    return registry.links.link(key, registry.limits.link_seconds)


def find_pack(registry: Registry, token: Token, revision: Digest) -> Pack:
    """Raises ``NotFound``, also for what the token may not see."""
    with registry.index.read() as unit:
        place = unit.entries.place(revision)
    if place is None or not may(token, Action.read, place.namespace, place.lane):
        raise NotFound(f"revision {revision} does not exist", "it may be gone: resolve again")
    return Pack(place.digest, place.size, place.key)


def read_pack(registry: Registry, pack: Pack, start: int, length: int) -> Iterator[bytes]:
    """``length`` bytes from ``start``, never fewer without an error. Raises ``NotFound`` if GC was faster."""
    return registry.blobs.open(pack.key, start, length)
