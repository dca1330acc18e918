"""Tell the agents of nodes where they find packs at each other, and which of them shall ask the registry.

What is kept here are hints of minutes (`hot.store.Hot.hold`). They give no right: who may read a namespace
may get its packs from the registry anyway, and an agent checks every byte. An agent that lies, or a lost
store, costs time and transfers.

Of a pack that the namespace does not offer, or no more, nothing is kept and no one is named: a withdrawal
reaches the hints, and who makes digests up fills no store.
"""

from __future__ import annotations

import hashlib
import random

from cachesvc.domain.access import Action, Token, demand
from cachesvc.domain.offers import withheld
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, NotFound
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.peers import (
    MAX_SOURCES,
    PackSources,
    PackWant,
    PeersAnswer,
    PeerSource,
    PeersRequest,
)

from ..context import Registry

OFFER_SECONDS = 300.0
"""Seconds that an offer is passed on, unless it is made again."""
FETCHERS = 2
"""Number of agents that may get one pack from the registry at the same time: one may end or be killed."""
_FETCH_SECONDS = 10.0
"""Seconds that an agent has for a pack in any case, before another one may get it from the registry."""
_FETCH_RATE = 8 << 20
"""Bytes in a second of such a transfer, at least; a larger pack has more seconds."""


def exchange(registry: Registry, token: Token, request: PeersRequest) -> PeersAnswer:
    """Keeps what an agent offers, and says where it finds what it wants.

    Raises ``Forbidden`` without the role *read* in the namespace's trunk and for a lane's token, which
    anyone who opens a pull request may have; ``NotFound`` where the operator has not turned this on.
    """
    demand(token, Action.read, request.namespace)
    if token.lane is not None:
        raise Forbidden(
            f"token {token.token} is of lane {token.lane}: agents give each other packs of the trunk",
            "use a token without a lane",
        )
    if not registry.peers:
        raise NotFound("agents give each other no packs here", "turn on the registry's setting peers")
    peer = _peer(token, request.agent)
    offered = _offered(registry, request)
    for offer in request.offers:
        if offer.pack not in offered:
            continue
        value = codec.canonical(PeerSource(peer, request.address, offer.capability))
        registry.hot.hold(_offers(request.namespace, offer.pack), peer, value, OFFER_SECONDS)
        registry.hot.release(_fetches(request.namespace, offer.pack), peer)
    for pack in request.withdrawn:
        registry.hot.release(_offers(request.namespace, pack), peer)
        registry.hot.release(_fetches(request.namespace, pack), peer)
    return PeersAnswer(
        tuple(
            _answer(registry, request, peer, want)
            if want.pack in offered
            else PackSources(want.pack, fetch=True)  # the registry says why it does not give it
            for want in request.wants
        )
    )


def _offered(registry: Registry, request: PeersRequest) -> set[Digest]:
    """Return those packs of a request that the registry would give to who reads the namespace's trunk."""
    packs = [*(offer.pack for offer in request.offers), *(want.pack for want in request.wants)]
    if not packs:
        return set()
    with registry.index.read() as unit:
        places = unit.pack_places.of_packs(request.namespace, packs)
    return {place.digest for place in places if withheld(place) is None}


def _answer(registry: Registry, request: PeersRequest, peer: str, want: PackWant) -> PackSources:
    """Names a few peers at random, so that load spreads; or else, of all who ask, has a few fetch the pack.

    An agent for which every known peer was useless may fetch it too: so a peer that lies holds no one up for
    long, and each agent that fetched is one more peer for the others.
    """
    useless = {peer, *request.failed}
    rows = registry.hot.holders(_offers(request.namespace, want.pack))
    known = [source for holder, value in rows.items() if holder not in useless and (source := _read(value))]
    if known:
        return PackSources(want.pack, tuple(random.sample(known, min(len(known), MAX_SOURCES))))
    return PackSources(want.pack, fetch=_may_fetch(registry, request.namespace, peer, want))


def _may_fetch(registry: Registry, namespace: Namespace, peer: str, want: PackWant) -> bool:
    key = _fetches(namespace, want.pack)
    fetching = registry.hot.holders(key)
    if peer not in fetching:
        # The count is exact among replicas and ends after seconds; who holds the key is known for longer.
        if len(fetching) >= FETCHERS or registry.hot.count(key) > FETCHERS:
            return False
        registry.hot.hold(key, peer, b"", _FETCH_SECONDS + want.size / _FETCH_RATE)
    return True


def _read(value: bytes) -> PeerSource | None:
    """Returns what an agent offered; ``None`` for what someone else wrote into the store."""
    try:
        return codec.build(PeerSource, codec.parse_json(value, limit=1000, what="the offer"))
    except ValueError:
        return None


def _peer(token: Token, agent: str) -> str:
    """Returns the identity of an agent for others. An agent with another token has another one: no one takes
    back what was offered with a token that they do not have."""
    return hashlib.sha256(f"{token.token}/{agent}".encode()).hexdigest()[:32]


def _offers(namespace: Namespace, pack: Digest) -> str:
    return f"peers/{namespace}/{pack.hex}"


def _fetches(namespace: Namespace, pack: Digest) -> str:
    return f"peers-fetch/{namespace}/{pack.hex}"
