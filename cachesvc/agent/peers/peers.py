"""Owns how an agent gets packs from other agents, and from the registry where that brings nothing."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.peers import (
    MAX_FAILED,
    MAX_OFFERS,
    MAX_WANTS,
    PackOffer,
    PackSources,
    PackWant,
    PeersAnswer,
    PeerSource,
    PeersRequest,
)

from ..measures import Measures
from .download import MissingPack, PeerBusy, PeerUseless, bytes_from_peer
from .options import PeerOptions
from .patience import Patience
from .shelf import Shelf

_log = logging.getLogger("cachesvc")
ASK_SECONDS = 1.0
"""Seconds between two questions where nothing can be had yet, on average."""
AVOIDED_SECONDS = 600.0
"""Seconds for which a useless peer is not asked, and none is where waiting for them was in vain."""
RENEW_SECONDS = 120.0
"""Age of an offer from which it is made again: a registry passes it on for 300 seconds."""
_VERIFY_BYTES = 1 << 30
"""Bytes of packs of an earlier run that one round reads again, before they are offered."""

PeerBytes = Callable[[int], Iterator[bytes]]
"""Yields the bytes that peers have of a pack, from an offset on; it may end before the pack does."""
Download = Callable[[MissingPack, PeerBytes, bool], bool]
"""Gets a pack: from peers, and what they lack from the registry, if the last argument allows that. Returns
whether nothing more is to be done for the pack."""


@dataclass(slots=True)
class _Avoided:
    """Holds the peers that are not asked, each with the time until which, in seconds of ``time.monotonic``.

    ``peers``: by the id of a peer. ``addresses``: every peer that is offered at an address. ``all_until``:
    no peer is asked before.
    """

    peers: dict[str, float] = field(default_factory=dict)
    addresses: dict[str, float] = field(default_factory=dict)
    all_until: float = 0.0

    def add(self, source: PeerSource, *, address: bool) -> None:
        """Avoids a peer for a while, and with ``address`` every peer that is offered at its address."""
        until = time.monotonic() + AVOIDED_SECONDS
        self.peers[source.peer] = until
        if address:
            self.addresses[source.address] = until

    def has(self, source: PeerSource) -> bool:
        """Returns whether a peer is avoided now."""
        until = max(self.peers.get(source.peer, 0.0), self.addresses.get(source.address, 0.0))
        return until > time.monotonic()

    def now(self) -> list[str]:
        """Returns the peers that are avoided now; the newest are the last."""
        now = time.monotonic()
        self.peers = {peer: until for peer, until in self.peers.items() if until > now}
        self.addresses = {where: until for where, until in self.addresses.items() if until > now}
        return sorted(self.peers, key=self.peers.__getitem__)


class Peers:
    """Offers the packs of a node to other agents, and gets missing ones from them.

    ``shelf``: what is given to others; see `server.serve_packs`.
    """

    def __init__(self, options: PeerOptions, store: SharedStoreWriter, measures: Measures) -> None:
        self.shelf = Shelf(store)
        self._options, self._measures = options, measures
        self._agent = secrets.token_hex(16)
        self._avoided = _Avoided()
        self._offered: dict[Digest, float] = {}
        """Packs that the registry was told of, and when, in seconds of ``time.monotonic``."""
        self._withdrawn: dict[Digest, Namespace] = {}
        self._namespaces: dict[Digest, Namespace] = {}
        """The namespaces of the packs that are given."""

    def arrivals(
        self, remote: Remote, missing: Sequence[MissingPack], download: Download
    ) -> Iterator[Digest]:
        """Gets the missing packs, and yields each when nothing more is to be done for it.

        Ends at the latest when `Patience` does and the registry has then given what is left. Raises what
        ``download`` raises of the registry.
        """
        pending = {one.pack: one for one in missing}
        patience = Patience.of([one.size for one in missing])
        while pending:
            if time.monotonic() < self._avoided.all_until:
                patience.end()
            some = random.sample(list(pending.values()), min(len(pending), MAX_WANTS))
            answers = self._ask(remote, some, patience)
            done = next((one for one in some if self._get(one, answers, patience, download)), None)
            if done is not None:
                del pending[done.pack]
                patience.note_progress()
                if not self.shelf.has(done.pack):  # it was refused: another agent may fetch it
                    self._withdrawn[done.pack] = done.namespace
                yield done.pack
            elif pending and not patience.is_over():
                self._measures.step()
                time.sleep(ASK_SECONDS * random.uniform(0.5, 1.5))
        if patience.is_over() and missing and time.monotonic() > self._avoided.all_until:
            _log.warning("peers: waiting for them was in vain; the registry is asked for the next 10 minutes")
            self._avoided.all_until = time.monotonic() + AVOIDED_SECONDS

    def offer(self, remote: Remote, held: Iterable[MissingPack]) -> None:
        """Offers the packs that are held for as long as the registry passes that on. Packs of an earlier run
        are read and checked before, some in each round. Never raises for a registry that does not answer."""
        if time.monotonic() < self._avoided.all_until:
            return
        left, now = _VERIFY_BYTES, time.monotonic()
        due: dict[Namespace, list[Digest]] = {where: [] for where in self._withdrawn.values()}
        for one in held:
            if not self.shelf.has(one.pack) and left > 0:
                left -= one.size
                self._measures.step()
                if self.shelf.has_whole(one.pack):
                    self.received(one)
            if self.shelf.has(one.pack) and now - self._offered.get(one.pack, -1e9) > RENEW_SECONDS:
                due.setdefault(one.namespace, []).append(one.pack)
        for namespace, packs in due.items():
            for start in range(0, max(1, len(packs)), MAX_OFFERS):
                if self._exchange(remote, namespace, packs[start : start + MAX_OFFERS], ()) is None:
                    return

    def keep_only(self, listed: Collection[str]) -> None:
        """Stop to give what no list names any more, by the digits of the digests: it may be withdrawn. The
        services of this node keep it for a while."""
        for pack in [pack for pack in self._namespaces if pack.hex not in listed]:
            self.remove(pack.hex)

    def remove(self, name: str) -> None:
        """Stops to give a pack, which is named by the digits of its digest."""
        self.shelf.remove(name)
        pack = Digest(f"sha256:{name}")
        namespace = self._namespaces.pop(pack, None)
        if self._offered.pop(pack, None) is not None and namespace is not None:
            self._withdrawn[pack] = namespace

    def received(self, one: MissingPack) -> None:
        """Gives a pack to others from now on, which this process has verified."""
        self.shelf.put(one.pack, one.size)
        self._namespaces[one.pack] = one.namespace

    def _ask(
        self, remote: Remote, some: Sequence[MissingPack], patience: Patience
    ) -> dict[Digest, PackSources]:
        """Returns where packs can be had; what is not in it may be had from the registry if the patience is
        over. Offers what has arrived since the last question."""
        answers: dict[Digest, PackSources] = {}
        if patience.is_over():
            return answers
        fresh = [pack for pack in self._namespaces if pack not in self._offered]
        asked = {one.namespace for one in some if one.divisible}
        for namespace in asked | {self._namespaces[pack] for pack in fresh}:
            offers = [pack for pack in fresh if self._namespaces[pack] == namespace]
            wants = [one for one in some if one.namespace == namespace and one.divisible]
            rows = self._exchange(remote, namespace, offers[:MAX_OFFERS], wants)
            if rows is None:
                continue
            answers |= {row.pack: row for row in rows}
        for one in some:
            if not one.divisible:
                answers[one.pack] = PackSources(one.pack, fetch=True)
        return answers

    def _exchange(
        self,
        remote: Remote,
        namespace: Namespace,
        offers: Sequence[Digest],
        wants: Sequence[MissingPack],
    ) -> tuple[PackSources, ...] | None:
        """Sends one question; ``None`` if there was no answer. Avoids all peers for a while if the
        registry does not help to find them."""
        gone = [pack for pack, where in self._withdrawn.items() if where == namespace][:MAX_OFFERS]
        request = PeersRequest(
            namespace,
            self._agent,
            self._options.address,
            tuple(PackOffer(pack, self.shelf.capability(pack)) for pack in offers if self.shelf.has(pack)),
            tuple(PackWant(one.pack, one.size) for one in wants),
            tuple(gone),
            tuple(self._avoided.now()[-MAX_FAILED:]),
        )
        try:
            answer = remote.call("POST", "/v1/peers", request, PeersAnswer)
        except CacheSvcError as error:
            if not error.retry:
                hint = "turn on its setting peers" if isinstance(error, NotFound) else str(error)
                _log.warning("peers: the registry does not help to find them: %s", hint)
                self._avoided.all_until = time.monotonic() + AVOIDED_SECONDS
            return None
        for pack in gone:
            del self._withdrawn[pack]
        self._offered |= dict.fromkeys((offer.pack for offer in request.offers), time.monotonic())
        known = {one.pack for one in wants}
        return tuple(row for row in answer.packs if row.pack in known)

    def _get(
        self,
        one: MissingPack,
        answers: dict[Digest, PackSources],
        patience: Patience,
        download: Download,
    ) -> bool:
        """Tries to get one pack now; returns whether nothing more is to be done for it."""
        answer = answers.get(one.pack, PackSources(one.pack))
        sources = [source for source in answer.sources if self._may_try(source)]
        allowed = answer.fetch or patience.is_over()
        if not sources and not allowed:
            return False
        return download(one, lambda offset: self._from_peers(one, sources, offset, patience), allowed)

    def _may_try(self, source: PeerSource) -> bool:
        """Returns whether a peer is worth a try. The registry is told of one that is not: otherwise it would
        name that peer again."""
        if self._avoided.has(source) or source.address == self._options.address:
            self._avoided.add(source, address=False)
            return False
        if not self._options.permits(source.address):
            _log.warning("peers: %s is in none of the networks of peers, and is not asked", source.address)
            self._fail(source, "address", address=False)
            return False
        return True

    def _from_peers(
        self, one: MissingPack, sources: list[PeerSource], offset: int, patience: Patience
    ) -> Iterator[bytes]:
        """Yields what the peers give of a pack from ``offset`` on, one peer after the other."""
        while sources and offset < one.size:
            source = sources.pop(random.randrange(len(sources)))
            try:
                for data in bytes_from_peer(source, self._options, one, offset, patience.until):
                    offset += len(data)
                    patience.note_progress()
                    self._measures.add("peer_received_bytes_total", len(data))
                    self._measures.step()
                    yield data
            except PeerBusy:
                self._measures.add("peer_failures_total", label="busy")
            except PeerUseless as error:
                _log.info("peers: %s is left alone for a while: %s", source.address, error)
                self._fail(source, error.reason, address=error.reason != "refused")

    def _fail(self, source: PeerSource, reason: str, *, address: bool) -> None:
        self._avoided.add(source, address=address)
        self._measures.add("peer_failures_total", label=reason)
