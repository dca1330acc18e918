"""Owns one round of an agent: asks a registry what it offers, checks it, and has it on the node."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.bundle.check import ExpectedStatement
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.trust_root.local import LocalMetadata
from cachesvc_client.trust_root.registry_metadata import read_pinned, refresh_policy
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Forbidden,
    NotFound,
    StorageFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.node_list import list_key
from cachesvc_client.wire.requests.protocol import EntrySummary, ResolvedRevision, ResolveRequest

from .holding import PresentPack, WantedPack, packs_to_hold, packs_to_remove
from .measures import Measures
from .offer import Checked, Offer, listed_row
from .peers.download import MissingPack
from .peers.peers import PeerBytes, Peers
from .watch import FactorPattern, Pattern, watched_names

if TYPE_CHECKING:
    from cachesvc_client.config.settings import Config
    from cachesvc_client.trust_root.policy import SignerPolicy

_log = logging.getLogger("cachesvc")
CALL_SECONDS = 10.0
"""Seconds that one call of the registry may take in all; a download has others."""
_MAX_LISTING_BYTES = 8 << 20
"""Number of bytes that are read of a listing of entries, and of an answer to a resolve of several."""
_MAX_ENVELOPE_BYTES = 64 << 20
"""Number of bytes that are read of an answer for one entry: an envelope in JSON."""
_MAX_ENTRIES = 2000
"""Largest number of entries of one name and tag that an agent keeps; the newest."""
_ENTRIES_AT_ONCE = 8
"""Number of entries that one resolve asks for: it bounds the memory of its answer."""
_LEAST_RATE = 64 << 10
"""Bytes in a second that a download must bring on average; one that is slower goes on in the next round."""
_LEAST_SECONDS = 60.0
"""Seconds that a download has in any case."""


class _NotYet(Unavailable):
    """Peers have not given all of a pack, and the registry is not to be asked for it yet."""


def _no_bytes(_offset: int) -> Iterator[bytes]:
    """Is a pack of which no peer has anything."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Selection:
    """Says what an agent keeps. ``patterns``: the names that it watches; ``pins``: those of which packs are
    held first; ``factors``: entries of other environments are left out; ``keep_seconds``: how long a pack is
    kept that no list names any more."""

    patterns: tuple[Pattern, ...]
    pins: tuple[Pattern, ...] = ()
    factors: tuple[FactorPattern, ...] = ()
    keep_seconds: float = 3600.0


class Keeper:
    """Keeps a store in step with a registry, round by round."""

    def __init__(
        self,
        config: Config,
        selection: Selection,
        store: SharedStoreWriter,
        measures: Measures,
        peers: Peers | None = None,
    ) -> None:
        """``config`` names the registry and whom to trust; the caller holds the store. ``peers``: other
        agents, with which packs are exchanged."""
        assert config.url is not None
        self._config, self._selection = config, selection
        self._store, self._measures, self._peers = store, measures, peers
        self._url: str = config.url
        self._checks: dict[tuple[Digest, Digest | None], Checked] = {}
        """By revision and trust metadata, what was checked."""
        self._fingerprints: dict[bytes, dict[str, FactorValue]] = {}
        """Those of the checked revisions, each once: thousands of entries are of a few environments."""
        self._offers: dict[Name, Offer] = {}
        self._described: dict[Digest, MissingPack] = {}
        self._unlisted: dict[str, float] = {}
        """Packs that no list names, and since when, in seconds of ``time.monotonic``."""

    def round(self) -> None:
        """Asks for all watched names, and has on the node what the selection keeps of them.

        What a registry offers under one name does not hold up the others. Raises ``CacheSvcError`` if the
        registry cannot be asked, or does not know the token; what was there before stays then, and grows
        older.
        """
        config, began = self._config, time.monotonic()
        with Remote(self._url, config.token, timeout=CALL_SECONDS, allow_links=config.allow_links) as remote:
            policy, marker = self._policy(remote)
            names = watched_names(remote, self._selection.patterns)
            failed = [name for name in names if not self._ask(remote, name, policy, marker)]
            self._offers = {name: self._offers[name] for name in names if name in self._offers}
            self._forget(names, failed)
            self._hold(remote)
        self._measures.set(
            names=len(names),
            revisions=sum(len(offer.revisions) for offer in self._offers.values()),
            last_round_seconds=time.monotonic() - began,
            listed_timestamp_seconds=min((offer.asked for offer in self._offers.values()), default=0.0),
        )

    def _policy(self, remote: Remote) -> tuple[SignerPolicy | None, Digest | None]:
        """Returns who decides about signers, and the digest of the metadata that say so."""
        pinned = self._config.trust_root
        if pinned is None:
            return None, None
        policy, warning = refresh_policy(pinned, self._store.trust_folder, remote)
        if warning:
            _log.warning("%s", warning)
        self._store.open_trust(asked=not warning)
        files = LocalMetadata.of_registry(self._store.trust_folder, remote.url, read_pinned(pinned))
        return policy, Digest.of(files.read("targets.json") or b"")

    def _ask(self, remote: Remote, name: Name, policy: SignerPolicy | None, marker: Digest | None) -> bool:
        """Asks what is offered under a name; returns whether that is known now."""
        self._measures.step()
        offer = Offer(name, time.time())
        try:
            for revision, published in self._offered(remote, name):
                self._take(offer, revision, published, policy, marker)
        except NotFound:
            pass
        except (Unauthenticated, Forbidden):
            raise
        except CacheSvcError as error:
            if error.retry:
                raise
            self._refuse(name, error)
            return False
        self._offers[name] = offer
        return True

    def _offered(self, remote: Remote, name: Name) -> Iterator[tuple[ResolvedRevision, int]]:
        """Yields the heads of a name's trunk that the registry offers to the environments that built them,
        each with when the registry accepted it."""
        groups: dict[bytes, list[EntrySummary]] = {}
        listed = remote.entries(name, limit=_MAX_LISTING_BYTES, trunk=True)
        for row in [row for row in listed if row.lane is None][:_MAX_ENTRIES]:
            if all(each.chooses(row.fingerprint) for each in self._selection.factors):
                groups.setdefault(canonical(row.fingerprint), []).append(row)
        for rows in groups.values():
            published = {row.entry: row.published for row in rows}
            for start in range(0, len(rows), _ENTRIES_AT_ONCE):
                for one in self._resolved(remote, name, rows[start : start + _ENTRIES_AT_ONCE]):
                    yield one, published.get(one.entry, 0)

    def _resolved(
        self, remote: Remote, name: Name, rows: Sequence[EntrySummary]
    ) -> Iterator[ResolvedRevision]:
        self._measures.step()
        try:
            request = ResolveRequest(
                name.namespace,
                name.name,
                rows[0].fingerprint,
                (name.tag,),
                entries=tuple(row.entry for row in rows),
            )
        except ValueError as error:
            raise TooLarge(f"{name}: {error}") from None
        limit = _MAX_LISTING_BYTES if len(rows) > 1 else _MAX_ENVELOPE_BYTES
        try:
            answer = parse_resolved(remote.resolve_bytes(request, limit=limit)[0])
        except TooLarge:
            if len(rows) == 1:
                raise
            for row in rows:
                yield from self._resolved(remote, name, [row])
            return
        yield from answer.revisions[: len(rows)]

    def _take(
        self,
        offer: Offer,
        revision: ResolvedRevision,
        published: int,
        policy: SignerPolicy | None,
        marker: Digest | None,
    ) -> None:
        """Adds a revision to an offer if this node would accept it."""
        try:
            checked = self._checked(offer.name, revision, published, policy, marker)
        except CacheSvcError as error:
            if isinstance(error, StorageFull):
                raise
            self._refuse(offer.name, error)
            return
        offer.revisions.append(checked)
        offer.sources[checked.row.pack] = replace(revision, envelope="")

    def _checked(
        self,
        name: Name,
        resolved: ResolvedRevision,
        published: int,
        policy: SignerPolicy | None,
        marker: Digest | None,
    ) -> Checked:
        """Returns what is kept of a revision, after the checks that a service makes of it."""
        known = self._checks.get((resolved.revision, marker))
        if known is not None and self._store.has_envelope(resolved.revision):
            return known
        expected = ExpectedStatement(name.namespace, name.name, (name.tag,))
        acceptance = self._config.acceptance(policy)
        verified = acceptance.accept(resolved.envelope_bytes, expected, self._store.marks)
        manifest = verified.manifest
        self._store.put_envelope(verified.revision, verified.envelope)
        self._store.marks.record_sequence(manifest.entry, manifest.statement.sequence, verified.signer)
        fingerprint = self._fingerprints.setdefault(
            canonical(manifest.fingerprint), dict(manifest.fingerprint)
        )
        checked = Checked(listed_row(verified, published), fingerprint, manifest.pack, tuple(manifest.frames))
        self._checks[verified.revision, marker] = checked
        return checked

    def _refuse(self, name: Name, error: CacheSvcError) -> None:
        self._measures.add("refused_total", label=error.code)
        _log.warning("%s: not kept on this node: %s", name, error)

    def _forget(self, names: Iterable[Name], failed: Sequence[Name]) -> None:
        """Removes the lists of names that are not watched any more, and envelopes that no list names."""
        self._store.keep_only("lists", (list_key(self._url, name).hex for name in names))
        revisions = {one.row.revision for offer in self._offers.values() for one in offer.revisions}
        if not failed:
            self._store.keep_only("envelopes", (revision.hex for revision in revisions))
        self._checks = {key: value for key, value in self._checks.items() if key[0] in revisions}
        used = [one.fingerprint for offer in self._offers.values() for one in offer.revisions]
        self._fingerprints = {canonical(fingerprint): fingerprint for fingerprint in used}

    def _hold(self, remote: Remote) -> None:
        """Downloads what is to be held, and publishes each list once what it names is here.

        If the registry stops to answer, the lists that are known are published all the same: a service
        downloads by itself what is missing."""
        wanted = [
            WantedPack(one.pack.digest, one.pack.size, one.row.at, self._is_pinned(offer.name))
            for offer in self._offers.values()
            for one in offer.revisions
        ]
        held = packs_to_hold(wanted, self._store.max_bytes)
        self._described = self._describe() if self._peers is not None else {}
        self._measures.set(left_out=len({pack.pack for pack in wanted}) - len(held))
        self._evict(wanted, held)
        missing = [pack for pack in held if self._store.pack(pack.pack, pack.size) is None]
        late = {pack.pack for pack in missing}
        unlisted = [offer for offer in self._offers.values() if not self._list(offer, late)]
        try:
            for digest in self._arrivals(remote, missing):
                late.discard(digest)
                unlisted = [offer for offer in unlisted if not self._list(offer, late)]
            if self._peers is not None:
                self._peers.offer(remote, [self._described[pack.pack] for pack in held])
        finally:
            for offer in unlisted:
                self._list(offer, set())
            self._count_packs()

    def _is_pinned(self, name: Name) -> bool:
        return any(pattern.chooses(name) for pattern in self._selection.pins)

    def _evict(self, wanted: Sequence[WantedPack], held: Sequence[WantedPack]) -> None:
        now, listed = time.monotonic(), {pack.pack.hex for pack in wanted}
        packs = self._store.packs()
        self._unlisted = {name: self._unlisted.get(name, now) for name in packs if name not in listed}
        if self._peers is not None:
            self._peers.keep_only(listed)
        present = [
            PresentPack(name, status.st_size, now - self._unlisted[name] if name in self._unlisted else None)
            for name, status in packs.items()
        ]
        for name in packs_to_remove(present, held, self._store.max_bytes, self._selection.keep_seconds):
            self._store.remove_pack(name)
            self._measures.add("evicted_total")
            if self._peers is not None:
                self._peers.remove(name)

    def _arrivals(self, remote: Remote, missing: Sequence[WantedPack]) -> Iterator[Digest]:
        """Gets the missing packs, and yields each when it is here or was refused."""
        if self._peers is None:
            for pack in missing:
                self._download(remote, pack)
                yield pack.pack
            return
        wanted = {pack.pack: pack for pack in missing}

        def download(one: MissingPack, peer_bytes: PeerBytes, allowed: bool) -> bool:
            return self._download(remote, wanted[one.pack], peer_bytes, allowed)

        yield from self._peers.arrivals(remote, [self._described[one] for one in wanted], download)

    def _describe(self) -> dict[Digest, MissingPack]:
        """Returns what peers are asked for, by pack, for all packs of the lists."""
        return {
            one.pack.digest: MissingPack(offer.name.namespace, one.pack.digest, one.pack.size, one.frames)
            for offer in self._offers.values()
            for one in offer.revisions
        }

    def _download(
        self,
        remote: Remote,
        wanted: WantedPack,
        peer_bytes: PeerBytes = _no_bytes,
        allowed: bool = True,
    ) -> bool:
        """Downloads one pack, from peers first, and what they lack from the registry if that is allowed.
        Returns whether nothing more is to be done for it. Raises ``CacheSvcError`` if the registry does not
        answer; a pack that is refused is left to the services that want it."""
        name, revision = next(
            (offer.name, offer.sources[wanted.pack])
            for offer in self._offers.values()
            if wanted.pack in offer.sources
        )
        pack = PackRecord(wanted.pack, wanted.size)

        def download(offset: int) -> Iterator[bytes]:
            for chunk in peer_bytes(offset):
                offset += len(chunk)
                yield chunk
            if offset == pack.size:
                return
            if not allowed:
                raise _NotYet(f"pack {pack.digest}: another agent fetches it")
            deadline = time.monotonic() + max(_LEAST_SECONDS, wanted.size / _LEAST_RATE)
            for chunk in remote.downloads.fetch(revision, pack, offset, deadline=deadline):
                self._measures.step()
                self._measures.add("downloaded_bytes_total", len(chunk))
                yield chunk

        try:
            if self._store.hold_pack(wanted.pack, wanted.size, download):
                self._measures.add("downloads_total")
                if self._peers is not None:
                    self._peers.received(self._described[wanted.pack])
        except _NotYet:
            return False
        except CacheSvcError as error:
            if error.retry:
                raise
            self._refuse(name, error)
        return True

    def _list(self, offer: Offer, late: set[Digest]) -> bool:
        """Publishes the list of a name unless a pack that it names is still to come; returns whether it
        did."""
        if any(one.pack.digest in late for one in offer.revisions):
            return False
        listed = offer.node_list(self._url)
        self._store.put_list(
            list_key(self._url, offer.name), listed.encode(), max(0.0, time.time() - offer.asked)
        )
        return True

    def _count_packs(self) -> None:
        packs = self._store.packs()
        size = sum(status.st_size for status in packs.values())
        self._measures.set(packs=len(packs), held_bytes=size, bound_bytes=self._store.max_bytes)
