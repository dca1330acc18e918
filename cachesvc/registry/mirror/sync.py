"""Look at the upstream for what changed there, and make the mirror's index say the same.

A look that fails changes only what it has verified until then, and the next one goes on. The upstream decides
which heads there are and which are withheld; whose signatures count is decided by the trust metadata that the
mirror has verified itself. Each head is verified when it comes, and all again when the process has started
and when other signatures count.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from cachesvc.index.entries.entries import Published
from cachesvc.index.mirrors import ABSENT, MirroredHead
from cachesvc.index.unit import Unit
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.entries import MAX_WHY
from cachesvc.schema.mirrors import MAX_HEADS, HeadRow
from cachesvc.upstream.upstream import is_silence
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    Untrusted,
    printable,
)

from ..answers import forget_answers
from ..context import Registry
from ..trust.acceptance import check_bounds
from .state import Mirror
from .trust import refresh_trust

WHOLE_SECONDS = 300
"""Seconds after which the whole listing is read, whatever its mark says."""
MAX_PAGES = 10_000
"""Pages of one listing, at most."""
_BATCH = 32
"""Heads that are fetched, and then stored in one transaction."""
_FETCHES = 8
"""Envelopes that are fetched at once."""
_MAX_NUMBER = 1 << 53

_log = logging.getLogger("cachesvc.mirror")


def look(registry: Registry) -> None:
    """Looks once. Raises what kept the look from its end; `Mirror.why` says it too."""
    mirror = registry.mirror
    assert mirror is not None
    try:
        _look(registry, mirror)
    except CacheSvcError as error:
        said = mirror.upstream.silent(error.message) if is_silence(error) else error
        mirror.upstream.note_look(answered=not isinstance(error, Unavailable))
        mirror.why = str(said)
        raise said from None
    mirror.looked, mirror.why = registry.now, ""
    mirror.upstream.note_look(answered=True)
    with registry.index.write() as unit:
        unit.mirrors.note_look(mirror.upstream.url, mirror.looked)


def _look(registry: Registry, mirror: Mirror) -> None:
    targets = refresh_trust(registry, mirror)
    before = mirror.targets
    same = before is not None and (before.delegations, before.keys, before.revoked) == (
        targets.delegations,
        targets.keys,
        targets.revoked,
    )
    now = registry.clock()
    whole = not same or mirror.mark is None or not 0 <= now - mirror.whole_at < WHOLE_SECONDS
    page = mirror.upstream.heads(None, None if whole else mirror.mark)
    if page.unchanged:
        if whole:
            raise Corrupt(f"{mirror.upstream.url}: a listing without heads, where all were asked for")
        return
    mark, refused = page.mark, 0
    merge = _Merge(registry, mirror, SignerPolicy(targets, mirror.upstream.url), again=not same)
    after: Digest | None = None
    for _ in range(MAX_PAGES):
        _check_page(page.heads, after, page.next)
        refused += merge.page(page.heads, after, page.next)
        if page.next is None:
            break
        after, page = page.next, mirror.upstream.heads(page.next, None)
    else:
        raise Corrupt(f"{mirror.upstream.url}: more than {MAX_PAGES} pages of heads")
    mirror.mark, mirror.targets, mirror.behind = mark, targets, refused
    mirror.whole_at = now


def _check_page(heads: Sequence[HeadRow], after: Digest | None, following: Digest | None) -> None:
    """Raises ``Corrupt`` for a page whose entries are not in their order, or whose numbers are none."""
    entries = [row.entry for row in heads]
    ordered = all(first < second for first, second in pairwise(entries))
    if len(heads) > MAX_HEADS or not ordered or (entries and after is not None and entries[0] <= after):
        raise Corrupt("the upstream's heads are not in their order")
    if following is not None and (not entries or following != entries[-1]):
        raise Corrupt("the upstream's page of heads does not end where it says")
    if not all(0 <= row.published < _MAX_NUMBER and 0 <= row.sequence < _MAX_NUMBER for row in heads):
        raise Corrupt("the upstream's heads have numbers that are out of range")


class _Merge:
    """Makes the index say what the listing of one look says. ``again``: verifies what is here too."""

    def __init__(self, registry: Registry, mirror: Mirror, policy: SignerPolicy, *, again: bool) -> None:
        self._registry, self._mirror, self._policy, self._again = registry, mirror, policy, again

    def page(self, heads: Sequence[HeadRow], after: Digest | None, until: Digest | None) -> int:
        """Merges the heads of the entries behind ``after``, up to ``until``. Returns how many of them were
        refused. Raises ``Unavailable`` if the upstream or the index goes away."""
        with self._registry.index.read() as unit:
            here = unit.mirrors.heads(after or "", until)
        listed = {row.entry: row for row in heads}
        for entry in here.keys() - listed.keys():
            self._remove(entry, here[entry].revision)
        refused = 0
        new: list[HeadRow] = []
        for row in heads:
            present = here.get(row.entry)
            if present is None or present.revision != row.revision:
                if present is not None and self._is_older(row, present):
                    self._refuse(row, f"sequence {row.sequence} is not above {present.sequence}: rolled back")
                    refused += 1
                else:
                    new.append(row)
            else:
                self._hold_or_offer(row, present)
        for begin in range(0, len(new), _BATCH):
            self._mirror.demand_open()
            refused += self._adopt(new[begin : begin + _BATCH])
        return refused

    def _is_older(self, row: HeadRow, present: MirroredHead) -> bool:
        """Returns whether a listed head is not newer than the one that is here. One that is here and that
        no one trusted has signed is removed, and nothing is older than it; only a look that verifies all
        again finds out."""
        if row.sequence > present.sequence:
            return False
        if self._again:
            self._verify_again(HeadRow(row.entry, present.revision, present.sequence, 0))
            if present.revision in self._mirror.untrusted:
                self._remove(row.entry, present.revision)
                return False
        return True

    def _refuse(self, row: HeadRow, why: object) -> None:
        _log.warning("revision %s of entry %s is not mirrored: %s", row.revision, row.entry, why)

    def _hold_or_offer(self, row: HeadRow, present: MirroredHead) -> None:
        """Withholds a head that is here, or offers it, as the upstream and the trust metadata say."""
        if self._again:
            self._verify_again(row)
        why = self._mirror.untrusted.get(row.revision, _why(row))
        if why == present.why:
            return
        with self._registry.index.write() as unit:
            place = unit.pack_places.of_revision(row.revision)
            unit.inventory.quarantine(row.revision, None)
            if why is not None:
                unit.inventory.quarantine(row.revision, self._registry.now, why)
        if place is not None:
            forget_answers(self._registry, place.namespace)

    def _verify_again(self, row: HeadRow) -> None:
        self._mirror.untrusted.pop(row.revision, None)
        with self._registry.index.read() as unit:
            envelope = unit.inventory.envelope(row.revision)
        try:
            if envelope is None:
                raise Corrupt("its envelope is gone")
            self._verify(row, envelope)
        except CacheSvcError as error:
            self._mirror.untrusted[row.revision] = printable(error.message)[:MAX_WHY]
            self._refuse(row, error)

    def _adopt(self, rows: Sequence[HeadRow]) -> int:
        """Fetches, verifies and stores heads, and returns how many were refused."""
        with ThreadPoolExecutor(_FETCHES) as pool:
            envelopes = list(
                pool.map(_outcome(self._mirror.upstream.envelope), [row.revision for row in rows])
            )
        verified: list[tuple[HeadRow, Accepted]] = []
        refused = 0
        for row, envelope in zip(rows, envelopes, strict=True):
            try:
                if isinstance(envelope, CacheSvcError):
                    raise envelope
                verified.append((row, self._verify(row, envelope)))
            except (Untrusted, Corrupt, InvalidRequest, TooLarge, NotFound) as error:
                self._refuse(row, error)
                refused += 1
        with self._registry.index.write() as unit:
            for row, one in verified:
                self._store(unit, row, one)
        for namespace in {one.manifest.statement.namespace for _, one in verified}:
            forget_answers(self._registry, namespace)
        return refused

    def _verify(self, row: HeadRow, envelope: bytes) -> Accepted:
        """Checks an envelope as a client with the mirror's root does, and that it is the one which the
        listing names. Raises ``Untrusted``, ``Corrupt``, ``InvalidRequest``, ``TooLarge``."""
        acceptance = Acceptance((), self._policy)
        verified = acceptance.accept_signed(envelope, None, now=self._registry.clock())
        manifest = verified.manifest
        if (verified.revision, manifest.entry) != (row.revision, row.entry):
            raise Corrupt(f"the upstream sent revision {verified.revision} of entry {manifest.entry} for it")
        if manifest.statement.sequence != row.sequence:
            raise Corrupt(f"its signed sequence is {manifest.statement.sequence}, not {row.sequence}")
        if manifest.pack.size > self._registry.limits.pack_bytes:
            raise TooLarge(f"a pack of {manifest.pack.size} bytes: more than max_pack_bytes")
        check_bounds(manifest)
        return verified

    def _store(self, unit: Unit, row: HeadRow, verified: Accepted) -> None:
        """Makes a verified revision the head of its entry, without its pack."""
        registry, manifest = self._registry, verified.manifest
        head = unit.entries.lock(manifest, registry.now)
        if head is not None and head.revision == verified.revision:
            return
        key = absent_key(verified.revision)
        unit.mirrors.unplaced(key)
        # Whose signatures count is decided by the metadata: the row says that this key's did.
        label = "named by the trust metadata of the upstream"
        unit.signers.add(SignerRecord(manifest.statement.namespace, verified.signer, label), registry.now)
        provenance = verified.provenance
        published = Published(
            revision=verified.revision,
            envelope=verified.envelope,
            signer=verified.signer,
            pack_key=key,
            published=row.published,
            published_by="upstream",
            builder=provenance.builder if provenance else None,
            source_ref=(provenance.ref or None) if provenance else None,
            ancestors=manifest.ancestors or (),
        )
        unit.entries.advance(manifest, published)
        why = _why(row)
        if why is not None:
            unit.inventory.quarantine(verified.revision, registry.now, why)
        if head is not None:
            before = unit.entries.remove(head.revision)
            if before is not None:
                unit.objects.lease(before, registry.grace_ends)

    def _remove(self, entry: Digest, head: Digest) -> None:
        """Removes an entry that the upstream does not have any more."""
        registry = self._registry
        with registry.index.write() as unit:
            place = unit.pack_places.of_revision(head)
            for key in unit.entries.remove_whole(entry, head) or ():
                unit.objects.lease(key, registry.grace_ends)
        self._mirror.untrusted.pop(head, None)
        if place is not None:
            forget_answers(registry, place.namespace)


def absent_key(revision: Digest) -> str:
    """Returns the key of an object without bytes, which a revision names until its pack is here."""
    return f"{ABSENT}{revision.hex}-{secrets.token_hex(4)}"


def _why(row: HeadRow) -> str | None:
    return None if row.withheld is None else printable(row.withheld)[:MAX_WHY]


def _outcome(act: Callable[[Digest], bytes]) -> Callable[[Digest], bytes | CacheSvcError]:
    """Returns a function that returns the error of ``act`` instead of raising it."""

    def run(revision: Digest) -> bytes | CacheSvcError:
        try:
            return act(revision)
        except CacheSvcError as error:
            return error

    return run
