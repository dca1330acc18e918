"""Restore: resolve, check, download what the node lacks, install. A straight line.

It has two halves: first every revision is checked, then what was accepted is installed. The caller chooses
the cache folder in between, for its name says what it may hold.

Everything foreign passes `bundle.check` before it is parsed, and every frame is verified before it is
unpacked: neither the registry nor the node store is trusted. Files of a pack that is downloaded are written
beside their places meanwhile (`node.staging`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .wire.codec import canonical
from .wire.digest import Digest
from .wire.errors import CacheSvcError, Corrupt, Distrusted, Incompatible, NotFound, Untrusted
from .wire.factors import Compatible, Fingerprint, compare
from .wire.names import Lane, Name, Tag
from .wire.protocol import Rejected, ResolveAnswer, ResolvedRevision, ResolveRequest
from .wire.records import Manifest, PackRecord, Statement

if TYPE_CHECKING:
    from .bundle.check import Verified
    from .bundle.seal import TrustedKey
    from .http.registry import Remote
    from .kinds.rules import KindRules
    from .node.staging import Staging
    from .node.store import NodeStore, Watcher


@dataclass(frozen=True, slots=True)
class Means:
    """What a restore works with.

    ``roots`` is asked at install time (kind -> folder). ``may_install`` is asked before every file: once
    it says no, only the node store is filled. ``held``: gets the revisions that were accepted, for the caller
    to install. ``ahead``: their packs are put on this node at once, since ranks agree before they install.
    ``lane``: bundles of it are accepted beside the trunk's. ``fresh``: the registry is asked, whatever
    another process of this node was answered a moment ago.
    """

    store: NodeStore
    trusted: Sequence[TrustedKey]
    fingerprint: Fingerprint
    rules: Mapping[str, KindRules]
    roots: Callable[[], Mapping[str, Path]]
    may_install: Callable[[], bool] = lambda: True
    held: list[Held] = field(default_factory=list)
    lane: Lane | None = None
    ahead: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A revision that was checked and accepted. ``fetch`` puts its pack on this node. ``install`` puts its
    files into the cache folders, all of them or those that a rank needs; it answers ``None`` if it is too
    late for that, and the pack is on this node then. Both raise ``Corrupt``, ``Untrusted``, ``StorageFull``,
    ``Unavailable``."""

    manifest: Manifest
    revision: Digest
    fetch: Callable[[], object]
    install: Callable[[int | None], Installed | None]


@dataclass(slots=True)
class Installed:
    """One revision that is in the cache folders of this process now."""

    manifest: Manifest
    revision: Digest
    files: int
    bytes: int

    @property
    def keys(self) -> set[str]:
        """The compilers' own keys that it has something for."""
        return {part for record in self.manifest.files for part in record.path.split("/")[:-1]}


@dataclass(slots=True)
class Restored:
    """What a restore did; filled as it goes, so that a failure half-way tells what came before it.

    ``moved``: bytes over the network. ``seconds``: by step. ``rejected``: entries that exist and do not
    fit, nearest first. ``stored``: revisions that came too late to be installed. ``distrusted``: revisions
    that were installed until the canary found them wrong. ``own``: what an earlier start of this node
    compiled, which no registry is told of.
    """

    installed: list[Installed] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    stored: int = 0
    moved: int = 0
    tag: Tag | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    distrusted: list[Installed] = field(default_factory=list)
    own: Installed | None = None

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

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The name's own tag, then those to fall back to, once each."""
        return tuple(dict.fromkeys((self.name.tag, *self.fallback)))

    def request(self, fingerprint: Fingerprint) -> ResolveRequest:
        """The one request of a restore."""
        return ResolveRequest(
            namespace=self.name.namespace,
            name=self.name.name,
            fingerprint=fingerprint,
            tags=self.tags,
            lane=self.lane,
            model=self.model,
        )


def accept_revisions(wish: Wish, remote: Remote, means: Means, restored: Restored) -> None:
    """Accepts every revision under a name that fits this environment, for the caller to install.

    One revision that is damaged or not trusted does not keep the others out: it is told in ``problems``,
    and raised only if nothing was accepted. Raises ``CacheSvcError``: ``NotFound`` (no such name),
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
            _hold(_revision(wish, revision, remote, means, restored), means)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(str(error))
    if not restored.installed and not restored.stored and not means.held:
        raise failures[0] if failures else nothing_offered(wish.name, restored.rejected)


def accept_bundles(paths: Iterable[Path], wishes: Sequence[Wish], means: Means, restored: Restored) -> None:
    """Accepts bundle files, without any registry, for the caller to install.

    ``wishes``: each bundle has to be signed for one of them; if there are none, for any name, since the user
    named the file. ``lane``: see `Means`. Raises as :func:`accept_revisions` does.
    """
    if not means.trusted:
        raise Untrusted("no signer is trusted", "run cachesvc login, or set CACHESVC_TRUSTED_KEYS")
    failures: list[CacheSvcError] = []
    for path in paths:
        try:
            _hold(_bundle(path, wishes, means, restored), means)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(f"{path}: {error}")
    if not restored.installed and not means.held:
        raise failures[0] if failures else NotFound("no bundle file (*.cachesvc) there")


def _hold(held: Held, means: Means) -> None:
    """Of two revisions of one entry, which only bundles bring, the newer one is kept."""
    entry, sequence = held.manifest.entry, held.manifest.statement.sequence
    for other in [one for one in means.held if one.manifest.entry == entry]:
        if other.manifest.statement.sequence > sequence:
            raise Untrusted(
                f"{held.manifest.statement.full_name}: sequence {sequence} is older than "
                f"{other.manifest.statement.sequence}, which is there too",
                "remove the older bundle",
            )
        means.held.remove(other)
    if means.ahead:
        held.fetch()
    means.held.append(held)


def _resolve(wish: Wish, remote: Remote, means: Means, restored: Restored) -> ResolveAnswer:
    """The answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is taken, however many days old (a week at
    most): what it names passes the same gate, and an image without a compiler could not start otherwise.
    """
    from .http.registry import parse_resolved
    from .node.store import OUTAGE_SECONDS

    request = wish.request(means.fingerprint)
    key = Digest.of(canonical([remote.identity, request]))
    recent = None if means.fresh else means.store.recent_answer(key)
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


def _revision(wish: Wish, found: ResolvedRevision, remote: Remote, means: Means, restored: Restored) -> Held:
    """Checks one revision of a registry's answer."""
    from .bundle.check import Wanted, check_envelope

    with restored.timed("check"):
        wanted = Wanted(namespace=wish.name.namespace, name=wish.name.name, tags=wish.tags, lane=wish.lane)
        verified = check_envelope(
            found.envelope.encode(), trusted=means.trusted, wanted=wanted, now=time.time()
        )
        _accept(verified, means, restored)
    fetched = partial(_fetch, found, verified.manifest.pack, remote, means, restored)
    install = partial(_install_pack, verified, fetched, means, restored)
    return Held(verified.manifest, verified.revision, fetched, install)


def _bundle(path: Path, wishes: Sequence[Wish], means: Means, restored: Restored) -> Held:
    """Checks one bundle file."""
    from .bundle.check import check_envelope
    from .bundle.file import open_bundle

    with restored.timed("check"):
        envelope, offset = open_bundle(path)
        verified = check_envelope(envelope, trusted=means.trusted, wanted=None, now=time.time())
        _refuse_unasked(verified.manifest.statement, wishes, means.lane)
        _accept(verified, means, restored)

    def install(rank: int | None) -> Installed | None:
        return _install(verified, path, offset, means, restored, rank)

    return Held(verified.manifest, verified.revision, lambda: None, install)


def _refuse_unasked(statement: Statement, wishes: Sequence[Wish], lane: Lane | None) -> None:
    """Raises ``Untrusted`` for a bundle of another name than those that were asked for, or of a lane that was
    not asked for."""
    said = f"this bundle is signed for {statement.full_name}"
    if statement.lane not in (None, lane):
        raise Untrusted(
            f"{said} in lane {statement.lane}, wanted: lane {lane}"
            if lane
            else f"{said} in lane {statement.lane}, wanted: the trunk",
            f"set CACHESVC_LANE={statement.lane} to use it",
        )
    name = (statement.namespace, statement.name)
    if wishes and not any(
        name == (wish.name.namespace, wish.name.name) and statement.tag in wish.tags for wish in wishes
    ):
        wanted = " or ".join(
            f"{wish.name.namespace}/{wish.name.name}:{tag}" for wish in wishes for tag in wish.tags
        )
        raise Untrusted(f"{said}, wanted: {wanted}", "attach to the bundle's own name, or to no name")


def _install_pack(
    verified: Verified,
    fetched: Callable[..., Path],
    means: Means,
    restored: Restored,
    rank: int | None,
) -> Installed | None:
    from .node.staging import Staging

    try:
        with Staging(verified.manifest, means.rules, means.roots, may_go_on=means.may_install) as staging:
            return _install(verified, fetched(staging), 0, means, restored, rank, staging)
    except Corrupt:
        # Frames are verified again at install: the node's copy was damaged since it was downloaded.
        means.store.discard(verified.manifest.pack.digest)
        return _install(verified, fetched(), 0, means, restored, rank)


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
    _refuse_distrusted(verified, means)
    verdict = compare(means.fingerprint, manifest.fingerprint, manifest.scopes)
    if isinstance(verdict, Compatible):
        return
    statement = manifest.statement
    restored.rejected.append(Rejected(manifest.entry, statement.target, statement.tag, verdict.differences))
    raise Incompatible(
        f"{statement.full_name} {statement.target}: {verdict.reason}", verdict.differences[0].mend
    )


def _refuse_distrusted(verified: Verified, means: Means) -> None:
    manifest = verified.manifest
    if means.store.distrusts(manifest.entry, verified.revision):
        raise Distrusted(
            f"{manifest.statement.full_name} {manifest.statement.target}: a canary on this node found its "
            "numbers wrong",
            "publish another revision with cachesvc warm --force",
        )


def _still_trusted(verified: Verified, means: Means) -> None:
    """Another process's canary may have spoken during the install, and removed what was there until then.
    A mark of another revision is over: this one has taken its place."""
    from .node.folders import remove

    try:
        _refuse_distrusted(verified, means)
    except Distrusted:
        remove(verified.manifest, means.rules, means.roots())
        raise
    means.store.trust_again(verified.manifest.entry)


def _install(
    verified: Verified,
    path: Path,
    offset: int,
    means: Means,
    restored: Restored,
    rank: int | None,
    staging: Staging | None = None,
) -> Installed | None:
    from .bundle.pack import PackReader
    from .node.folders import install

    done = None
    if means.may_install():
        with restored.timed("install"), PackReader(path, verified.manifest, offset) as reader:
            staged = staging.finish() if staging is not None else None
            done = install(
                reader, means.rules, means.roots(), rank=rank, staged=staged, may_go_on=means.may_install
            )
        _still_trusted(verified, means)
    means.store.saw(verified.manifest.entry, verified.manifest.statement.sequence)
    if done is None:
        return None
    files = done.written + done.kept + done.merged
    return Installed(verified.manifest, verified.revision, files, done.bytes)


def nothing_offered(name: Name, rejected: Sequence[Rejected]) -> CacheSvcError:
    """Says why an answer holds no revision, in the same words for a service's log, `doctor` and `pull`."""
    if not rejected:
        return NotFound(f"{name}: nothing is published under it", "check the name, or run cachesvc warm")
    nearest = rejected[0]
    count = "1 entry" if len(rejected) == 1 else f"{len(rejected)} entries"
    verdict = "none fits; nearest is"
    if nearest.withheld:
        verdict = "none is offered here; withheld is"
    told = "; ".join(map(str, nearest.differences[:3]))
    return Incompatible(f"{name}: {count}, {verdict} {nearest.target}: {told}", nearest.differences[0].mend)
