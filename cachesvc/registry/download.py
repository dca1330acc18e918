"""Give packs to those who may read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachesvc.domain.access import Action, Token, may
from cachesvc.domain.offers import withheld
from cachesvc.index.mirrors import ABSENT
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound, RangeInvalid
from cachesvc_client.wire.requests.protocol import pack_path

from .context import Registry


@dataclass(frozen=True, slots=True)
class Pack:
    """A whole, immutable object of ``size`` bytes with this digest."""

    digest: Digest
    size: int
    key: str


def pack_url(registry: Registry, revision: Digest, key: str) -> str:
    """Returns a link to the object ``key``, a revision's pack, or else its path at this registry.

    A client has ``link_seconds`` for a link, less the 5 s for which an answer that has it is cached. The
    store knows no revocation: a link holds to its end. A pack that a mirror does not have yet has no link.
    """
    if registry.packs.links is None or key.startswith(ABSENT):
        return pack_path(revision)
    return registry.packs.links.link(key, registry.limits.link_seconds)


def find_pack(registry: Registry, token: Token, revision: Digest) -> Pack:
    """Returns the pack of a revision. Raises ``NotFound``, also for what the token may not see.

    What is offered to no one (:func:`~cachesvc.domain.offers.withheld`) is not given to a reader either: the
    error has the reason. Only an administrator of the namespace gets it, to examine it or to roll back.
    Another revision with the same pack does not count: each has an object of its own.
    """
    with registry.index.read() as unit:
        place = unit.pack_places.of_revision(revision)
    if place is None or not may(token, Action.read, place.namespace, place.lane):
        raise NotFound(f"revision {revision} does not exist", "it may be gone: resolve again")
    difference = withheld(place)
    if difference is not None and not may(token, Action.admin, place.namespace, place.lane):
        raise NotFound(f"revision {revision} is not offered: {difference.mine}", difference.fix)
    return Pack(place.digest, place.size, place.key)


def read_pack(registry: Registry, pack: Pack, start: int, length: int) -> Iterator[bytes]:
    """Yields ``length`` bytes from ``start``, never fewer without an error. Raises ``NotFound`` if GC was
    faster, and ``RangeInvalid`` if the store has only the beginning of the pack."""
    try:
        return registry.packs.blobs.open(pack.key, start, length)
    except RangeInvalid:
        raise RangeInvalid(
            f"the registry's store has less of the pack {pack.digest[:19]} than its {pack.size} bytes",
            "publish it again; an operator repairs the store with cachesvc admin fsck --apply",
        ) from None
