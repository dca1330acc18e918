"""Restore: resolve, download what the node lacks, check, install. A straight line.

Everything foreign passes `bundle.check` before it is parsed, and every frame is verified before it is
unpacked: neither the registry nor the node store is trusted. Files of a pack that is downloaded are written
beside their places meanwhile (`node.staging`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .wire.codec import canonical
from .wire.digest import Digest
from .wire.errors import CacheSvcError, Corrupt, Incompatible, NotFound, Untrusted
from .wire.factors import Compatible, Fingerprint, compare
from .wire.names import Lane, Name, Tag
from .wire.protocol import Rejected, ResolveAnswer, ResolvedRevision, ResolveRequest
from .wire.records import Manifest, PackRecord

if TYPE_CHECKING:
    from .bundle.check import Verified
    from .bundle.seal import PublicKey
    from .kinds.rules import KindRules
    from .node.folders import Staged
    from .node.store import NodeStore, Watcher
    from .remote import Remote


@dataclass(frozen=True, slots=True)
class Means:
    """What a restore works with.

    ``roots`` is asked at install time (kind -> folder). ``may_install`` is asked before every file: once
    it says no, only the node store is filled.
    """

    store: NodeStore
    trusted: Sequence[PublicKey]
    fingerprint: Fingerprint
    rules: Mapping[str, KindRules]
    roots: Callable[[], Mapping[str, Path]]
    may_install: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Installed:
    """One revision that is in the cache folders of this process now."""

    manifest: Manifest
    revision: Digest
    files: int
    bytes: int


@dataclass(slots=True)
class Restored:
    """What a restore did; filled as it goes, so that a failure half-way tells what came before it.

    ``moved``: bytes over the network. ``seconds``: by step. ``rejected``: entries that exist and do not
    fit, nearest first. ``stored``: revisions that came too late to be installed.
    """

    installed: list[Installed] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    stored: int = 0
    moved: int = 0
    tag: Tag | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds the seconds of a step."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Wish:
    """A name with the tags to fall back to, and what ranks the candidates."""

    name: Name
    fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    model: Digest | None = None

    def request(self, fingerprint: Fingerprint) -> ResolveRequest:
        """The one request of a restore."""
        return ResolveRequest(
            namespace=self.name.namespace,
            name=self.name.name,
            fingerprint=fingerprint,
            tags=tuple(dict.fromkeys((self.name.tag, *self.fallback))),
            lane=self.lane,
            model=self.model,
        )


def restore(wish: Wish, remote: Remote, means: Means, restored: Restored) -> None:
    """Installs every revision under a name that fits this environment.

    One revision that is damaged or not trusted does not keep the others out: it is told in ``problems``,
    and raised only if nothing could be installed. Raises ``CacheSvcError``: ``NotFound`` (no such name),
    ``Incompatible`` (entries, but none fits: the message names the first factor), ``Untrusted``,
    ``Unavailable``, ``StorageFull``.
    """
    if not means.trusted:
        raise Untrusted("no signer is trusted", "run cachesvc login, or set CACHESVC_TRUSTED_KEYS")
    with restored.timed("resolve"):
        answer = _resolve(wish, remote, means, restored)
    restored.tag = answer.tag
    restored.rejected.extend(answer.rejected)
    failures: list[CacheSvcError] = []
    for revision in answer.revisions:
        try:
            _restore_one(wish, revision, remote, means, restored)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(str(error))
    if not restored.installed and not restored.stored:
        raise failures[0] if failures else _nothing(wish, restored.rejected)


def restore_files(paths: Iterable[Path], means: Means, restored: Restored) -> None:
    """Installs from bundle files, without any registry. Raises as :func:`restore` does."""
    from .bundle.check import check_envelope
    from .bundle.file import open_bundle

    if not means.trusted:
        raise Untrusted("no signer is trusted", "run cachesvc login, or set CACHESVC_TRUSTED_KEYS")
    failures: list[CacheSvcError] = []
    for path in paths:
        try:
            with restored.timed("check"):
                envelope, offset = open_bundle(path)
                verified = check_envelope(envelope, trusted=means.trusted, wanted=None, now=time.time())
                _accept(verified, means, restored)
            _install(verified, path, offset, means, restored)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(f"{path}: {error}")
    if not restored.installed:
        raise failures[0] if failures else NotFound("no bundle file (*.cachesvc) there")


def _resolve(wish: Wish, remote: Remote, means: Means, restored: Restored) -> ResolveAnswer:
    """The answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is taken, however many days old (a week at
    most): what it names passes the same gate, and an image without a compiler could not start otherwise.
    """
    from .node.store import OUTAGE_SECONDS
    from .remote import parse_resolved

    request = wish.request(means.fingerprint)
    key = Digest.of(canonical([remote.identity, request]))
    recent = means.store.recent_answer(key)
    if recent is not None:
        with suppress(CacheSvcError):
            return parse_resolved(recent)
    try:
        raw = remote.resolve_bytes(request)
    except CacheSvcError as error:
        last = means.store.recent_answer(key, OUTAGE_SECONDS) if error.retry else None
        if last is None:
            raise
        restored.problems.append(f"{wish.name}: restored from this node's last answer: {error}")
        return parse_resolved(last)
    answer = parse_resolved(raw)
    means.store.remember_answer(key, raw)
    return answer


def _restore_one(
    wish: Wish, found: ResolvedRevision, remote: Remote, means: Means, restored: Restored
) -> None:
    from .bundle.check import Wanted, check_envelope
    from .node.staging import Staging

    with restored.timed("check"):
        wanted = Wanted(
            namespace=wish.name.namespace,
            name=wish.name.name,
            tags=tuple(dict.fromkeys((wish.name.tag, *wish.fallback))),
            lane=wish.lane,
        )
        verified = check_envelope(
            found.envelope.encode(), trusted=means.trusted, wanted=wanted, now=time.time()
        )
        _accept(verified, means, restored)
    pack = verified.manifest.pack
    try:
        with Staging(verified.manifest, means.rules, means.roots, may_go_on=means.may_install) as staging:
            path = _fetch(found, pack, remote, means, restored, staging)
            _install(verified, path, 0, means, restored, staging.finish())
    except Corrupt:
        # Frames are verified again at install: the node's copy was damaged since it was downloaded.
        means.store.discard(pack.digest)
        _install(verified, _fetch(found, pack, remote, means, restored), 0, means, restored)
    means.store.saw(verified.manifest.entry, verified.manifest.statement.sequence)


def _fetch(
    found: ResolvedRevision,
    pack: PackRecord,
    remote: Remote,
    means: Means,
    restored: Restored,
    watcher: Watcher | None = None,
) -> Path:
    """The pack on this node, downloaded if it lacks."""
    with restored.timed("download"):
        path, moved = means.store.fetch(
            pack.digest,
            pack.size,
            lambda offset: remote.fetch(found, pack, offset),
            watcher,
        )
        restored.moved += moved
    return path


def _accept(verified: Verified, means: Means, restored: Restored) -> None:
    """A registry's word that something fits is not enough: compared here again."""
    from .bundle.check import check_sequence

    manifest = verified.manifest
    check_sequence(verified, means.store.seen(manifest.entry))
    verdict = compare(means.fingerprint, manifest.fingerprint, manifest.scopes)
    if isinstance(verdict, Compatible):
        return
    statement = manifest.statement
    restored.rejected.append(Rejected(manifest.entry, statement.target, statement.tag, verdict.differences))
    raise Incompatible(
        f"{statement.full_name} {statement.target}: {verdict.reason}", verdict.differences[0].mend
    )


def _install(
    verified: Verified,
    path: Path,
    offset: int,
    means: Means,
    restored: Restored,
    staged: Staged | None = None,
) -> None:
    from .bundle.pack import PackReader
    from .node.folders import install

    if not means.may_install():
        restored.stored += 1
        return
    with restored.timed("install"), PackReader(path, verified.manifest, offset) as reader:
        done = install(reader, means.rules, means.roots(), staged=staged, may_go_on=means.may_install)
    restored.installed.append(
        Installed(verified.manifest, verified.revision, done.written + done.kept + done.merged, done.bytes)
    )


def _nothing(wish: Wish, rejected: Sequence[Rejected]) -> CacheSvcError:
    if not rejected:
        return NotFound(f"{wish.name}: nothing is published under it", "check the name, or run cachesvc warm")
    nearest = rejected[0]
    difference = nearest.differences[0]
    return Incompatible(
        f"{wish.name}: {len(rejected)} entries, none fits; nearest is {nearest.target}: {difference}",
        difference.mend,
    )
