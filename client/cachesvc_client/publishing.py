"""Publish: pack, manifest, seal, one upload, commit. A straight line, without threads."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from .wire.digest import Digest
from .wire.errors import Corrupt, HeadConflict, NotFound, NotWarm, Untrusted
from .wire.factors import Facts, Fingerprint
from .wire.keyfacts import KeyFacts
from .wire.names import Lane, Name, Target
from .wire.protocol import BundleRequest, CommitAnswer, CommitRequest, EntrySummary, UploadRequest
from .wire.records import Manifest, Statement, Workload

if TYPE_CHECKING:
    from .bundle.check import Verified
    from .bundle.pack import SourceFile
    from .bundle.seal import PublicKey, SigningKey, TrustedKey
    from .http.registry import Remote
    from .wire.claims import ClaimRef

ONE_REQUEST_BYTES = 4_000_000
"""Up to this size a pack goes with its envelope: to send both again costs little. Registries that know no
bundles answer that there is no such route, up to 4 MiB, and above that the body is too large."""


MAX_AHEAD_MILLISECONDS = 86_400_000
"""The most that the sequence of a head may be ahead of this machine's clock when it is signed over: a day."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a manifest says beside the files; everything but pack, frames and sequence."""

    name: Name
    target: Target
    fingerprint: Fingerprint
    workload: Workload
    scopes: tuple[str, ...]
    lane: Lane | None = None
    expires: int | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    keys: KeyFacts | None = None
    asked: Facts = field(default_factory=dict)


def next_sequence(head: int = 0) -> int:
    """Milliseconds of UTC, and more than the head's: a registry that was made anew does not look
    rolled back.

    Raises ``Untrusted`` if ``head`` is more than a day ahead of this machine's clock. Nobody signed it
    honestly, and nodes that saw its successor would refuse every later revision.
    """
    now = int(time.time() * 1000)
    if head > now + MAX_AHEAD_MILLISECONDS:
        raise Untrusted(
            f"the registry names a sequence, {head}, that is {(head - now) // 86_400_000} days ahead of this "
            "machine's clock: nothing is signed over it",
            "check this machine's clock and the registry's database",
        )
    return max(now, head + 1)


def build_bundle(
    files: Sequence[SourceFile], draft: Draft, key: SigningKey, path: Path, *, quick: bool = False
) -> Manifest:
    """Packs and seals ``files`` into the bundle file ``path``, whole or not at all. ``quick``: see
    `write_pack`.

    What is signed was read back: an install trusts a signer's file digests, and checks frames alone.
    Raises ``NotWarm`` if there is nothing to pack, ``StorageFull`` if there is no room, ``Corrupt`` if the
    pack does not hold what was packed.
    """
    from .bundle.file import write_bundle
    from .bundle.pack import PackReader, write_pack

    if not files:
        raise NotWarm(f"{draft.target}: nothing was compiled, so there is nothing to publish")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".cachesvc-") as folder:
        pack = Path(folder) / "pack"
        with open(pack, "wb") as out:
            contents = write_pack(files, out, quick=quick)
        manifest = Manifest(
            statement=Statement(
                namespace=draft.name.namespace,
                name=draft.name.name,
                target=draft.target,
                sequence=next_sequence(),
                tag=draft.name.tag,
                lane=draft.lane,
                expires=draft.expires,
            ),
            pack=contents.pack,
            frames=contents.frames,
            files=contents.files,
            fingerprint=dict(draft.fingerprint),
            workload=draft.workload,
            scopes=draft.scopes,
            measured=dict(draft.measured),
            provenance=dict(draft.provenance),
            key_facts=draft.keys.encode() or None if draft.keys else None,
            asked=dict(draft.asked) or None,
        )
        with PackReader(pack, manifest) as reader:
            reader.verify()
        write_bundle(path, key.sign(manifest), pack)
    return manifest


def publish_bundle(
    remote: Remote,
    path: Path,
    key: SigningKey,
    attempts: int = 3,
    *,
    claim: ClaimRef | None = None,
    deed: str | None = None,
) -> CommitAnswer:
    """Publishes a bundle that ``key`` signs, as the successor of the entry's present head; under ``claim``,
    which is given back with the commit.

    The same manifest is a success and moves no byte. If the head is newer, or another publisher was
    faster, it is signed again over that head, ``attempts`` times in all; then ``HeadConflict``. ``deed``:
    see ``CommitRequest``. Raises ``ClaimLost`` if somebody else has taken the claim over, ``Untrusted`` if
    the registry names a head of the far future, what ``Remote`` raises, and ``Corrupt`` before the first
    byte is sent.
    """
    verified, offset = _opened(path, [key.public])
    manifest = verified.manifest

    def over(head: EntrySummary | None) -> bytes:
        if head is None or head.sequence < manifest.statement.sequence:
            return verified.envelope
        statement = replace(manifest.statement, sequence=next_sequence(head.sequence))
        return key.sign(replace(manifest, statement=statement))

    return _publish(remote, path, verified, offset, over, attempts, claim, deed)


def publish_signed(
    remote: Remote, path: Path, trusted: Sequence[PublicKey | TrustedKey], deed: str | None = None
) -> tuple[Verified, CommitAnswer]:
    """Publishes a bundle as it was signed, by a key of ``trusted``, over the head that is there now.

    The same manifest is a success and moves no byte. The registry decides whether the signer may.
    Raises ``Untrusted``, ``Corrupt`` before the first byte is sent, ``HeadConflict`` if the registry's
    revision is newer or somebody else was first, and what ``Remote`` raises.
    """
    verified, offset = _opened(path, trusted)
    return verified, _publish(remote, path, verified, offset, lambda _: verified.envelope, 1, None, deed)


def _opened(path: Path, trusted: Sequence[PublicKey | TrustedKey]) -> tuple[Verified, int]:
    from .bundle.check import check_envelope
    from .bundle.file import open_bundle

    envelope, offset = open_bundle(path)
    return check_envelope(envelope, trusted=trusted, wanted=None, now=time.time()), offset


def _publish(
    remote: Remote,
    path: Path,
    verified: Verified,
    offset: int,
    over: Callable[[EntrySummary | None], bytes],
    attempts: int,
    claim: ClaimRef | None,
    deed: str | None,
) -> CommitAnswer:
    """Commits until the head stands still: ``over(head)`` is the envelope to put over a head."""
    from .bundle.check import check_pack

    entry = verified.manifest.entry
    with path.open("rb") as pack:
        pack.seek(offset)
        check_pack(pack, verified.manifest)
        head = _head(remote, entry)
        if head is not None and head.revision == verified.revision:
            return CommitAnswer(entry, head.revision, created=False)
        with delivery(remote, verified.manifest, pack, offset) as commit:
            for left in reversed(range(attempts)):
                try:
                    return commit(over(head), head.revision if head else None, claim, deed)
                except HeadConflict:
                    if not left:
                        raise
                    head = _head(remote, entry)
    raise AssertionError("unreachable")


def _head(remote: Remote, entry: Digest) -> EntrySummary | None:
    try:
        return remote.entry(entry)
    except NotFound:
        return None


class Commit(Protocol):
    """Publishes an envelope. Raises what ``Remote.commit`` raises; after ``HeadConflict`` it may be called
    again."""

    def __call__(
        self,
        envelope: bytes,
        head: Digest | None = None,
        claim: ClaimRef | None = None,
        deed: str | None = None,
    ) -> CommitAnswer: ...


@contextmanager
def delivery(remote: Remote, manifest: Manifest, pack: BinaryIO, offset: int) -> Iterator[Commit]:
    """How the pack of ``manifest``, in ``pack`` from ``offset``, gets to a registry: with each commit, if it
    is small and the registry takes that; else by one upload before the first."""
    statement, size = manifest.statement, manifest.pack.size
    upload: str | None = None
    with ExitStack() as stack:

        def commit(
            envelope: bytes,
            head: Digest | None = None,
            claim: ClaimRef | None = None,
            deed: str | None = None,
        ) -> CommitAnswer:
            nonlocal upload
            if upload is None and len(envelope) + size <= ONE_REQUEST_BYTES:
                asked = BundleRequest(statement.namespace, statement.name, statement.lane, head, claim, deed)
                pack.seek(offset)
                with suppress(NotFound):  # a registry of an earlier release
                    return remote.put_bundle(asked, envelope, pack, size)
            if upload is None:
                upload = stack.enter_context(_uploaded(remote, manifest, pack, offset))
            return remote.commit(upload, CommitRequest(envelope.decode(), head, claim, deed))

        yield commit


@contextmanager
def _uploaded(remote: Remote, manifest: Manifest, pack: BinaryIO, offset: int) -> Iterator[str]:
    """The upload's id, to be committed inside; given back if that does not come about."""
    statement = manifest.statement
    upload = remote.begin_upload(
        UploadRequest(statement.namespace, statement.name, manifest.pack.size, statement.lane)
    )
    try:
        pack.seek(offset)
        stored = remote.put_pack(upload, pack, manifest.pack.size)
        if stored.pack != manifest.pack.digest:
            raise Corrupt(f"upload: {stored.pack} arrived, {manifest.pack.digest} was sent", "try again")
        yield upload.upload
    except BaseException:
        with suppress(Exception):  # a courtesy: the lease ends by itself
            remote.abort(upload.upload)
        raise
