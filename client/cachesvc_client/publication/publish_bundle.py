"""Publishes a bundle: uploads its pack and commits its envelope over the head of the entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ..http.uploads import Uploads
from ..wire.digest import Digest
from ..wire.errors import Corrupt, HeadConflict, NotFound
from ..wire.manifest.records import Manifest
from ..wire.requests.protocol import BundleRequest, CommitAnswer, CommitRequest, EntrySummary, UploadRequest
from .build_bundle import next_sequence

if TYPE_CHECKING:
    from ..bundle.seal import Signer
    from ..http.registry import Remote
    from ..trust.accept import Acceptance, Accepted
    from ..wire.requests.claims import ClaimRef

ONE_REQUEST_BYTES = 4_000_000
"""Bytes of envelope and pack up to which one request has both: a repeated request costs little."""


def publish_bundle(
    remote: Remote,
    path: Path,
    key: Signer,
    attempts: int = 3,
    *,
    claim: ClaimRef | None = None,
    deed: str | None = None,
    replaces: Callable[[Digest], bool] = lambda _: True,
) -> CommitAnswer:
    """Publishes a bundle that ``key`` signs, as the successor of the entry's present head.

    ``claim``: the claim to publish under; the commit releases it. To publish the head's own manifest again
    succeeds and moves no byte. If the head is newer, or another publisher was faster, the manifest is
    signed again over that head, ``attempts`` times in all; then ``HeadConflict`` is raised, and at once for a
    head whose revision ``replaces`` returns false for. ``deed``: see ``CommitRequest``. Raises ``ClaimLost``
    if another process has taken the claim over, ``Untrusted`` if the registry names a head of the far future,
    what ``Remote`` raises, and ``Corrupt`` before the first byte is sent.
    """
    from ..trust.accept import Acceptance

    verified, offset = _open_bundle(path, Acceptance([key.public]))
    manifest = verified.manifest

    def envelope_over(head: EntrySummary | None) -> bytes:
        if head is None or head.sequence < manifest.statement.sequence:
            return verified.envelope
        statement = replace(manifest.statement, sequence=next_sequence(head.sequence))
        return key.sign(replace(manifest, statement=statement))

    return _publish(remote, path, verified, offset, envelope_over, attempts, claim, deed, replaces=replaces)


def publish_signed(
    remote: Remote,
    path: Path,
    acceptance: Acceptance,
    deed: str | None = None,
) -> tuple[Accepted, CommitAnswer]:
    """Publishes a bundle as it was signed, by a key that ``acceptance`` lets count, over the entry's
    present head.

    To publish the head's own manifest again succeeds and moves no byte. The registry decides whether the
    signer may. Raises ``Untrusted``, ``Corrupt`` before the first byte is sent, ``HeadConflict`` if the
    registry's revision is newer or another publisher was faster, and what ``Remote`` raises.
    """
    verified, offset = _open_bundle(path, acceptance)
    return verified, _publish(remote, path, verified, offset, lambda _: verified.envelope, 1, None, deed)


def _open_bundle(path: Path, acceptance: Acceptance) -> tuple[Accepted, int]:
    """Opens a bundle and checks its envelope; returns the checked envelope and where the pack begins."""
    from ..bundle.file import open_bundle

    envelope, offset = open_bundle(path)
    return acceptance.accept_signed(envelope, None), offset


def _publish(
    remote: Remote,
    path: Path,
    verified: Accepted,
    offset: int,
    envelope_over: Callable[[EntrySummary | None], bytes],
    attempts: int,
    claim: ClaimRef | None,
    deed: str | None,
    *,
    replaces: Callable[[Digest], bool] = lambda _: True,
) -> CommitAnswer:
    """Commits, and repeats it while other publishers change the head.

    ``envelope_over``: returns the envelope to commit over a head.
    """
    from ..bundle.check import check_pack

    entry = verified.manifest.entry
    with path.open("rb") as pack:
        pack.seek(offset)
        check_pack(pack, verified.manifest)
        head = _head(remote, entry)
        if head is not None and head.revision == verified.revision:
            return CommitAnswer(entry, head.revision, created=False)
        with delivery(remote, verified.manifest, pack, offset) as commit:
            for left in reversed(range(attempts)):
                if head is not None and not replaces(head.revision):
                    raise HeadConflict(f"entry {entry}: revision {head.revision} came meanwhile")
                try:
                    return commit(envelope_over(head), head.revision if head else None, claim, deed)
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
    """Yields a function that commits, and that brings the pack of ``manifest`` to the registry.

    The pack lies in ``pack`` from ``offset`` on. Each commit has the pack in its request if the pack is
    small; else one upload before the first commit brings the pack.
    """
    statement, size = manifest.statement, manifest.pack.size
    uploads = Uploads(remote)
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
                request = BundleRequest(
                    statement.namespace, statement.name, statement.lane, head, claim, deed
                )
                pack.seek(offset)
                return uploads.put_bundle(request, envelope, pack, size)
            if upload is None:
                upload = stack.enter_context(_upload(uploads, manifest, pack, offset))
            return uploads.commit(upload, CommitRequest(envelope.decode(), head, claim, deed))

        yield commit


@contextmanager
def _upload(uploads: Uploads, manifest: Manifest, pack: BinaryIO, offset: int) -> Iterator[str]:
    """Uploads the pack and yields the upload's id, to be committed inside the block.

    If the block raises, the upload is aborted.
    """
    statement = manifest.statement
    upload = uploads.begin(
        UploadRequest(statement.namespace, statement.name, manifest.pack.size, statement.lane)
    )
    try:
        pack.seek(offset)
        stored = uploads.put_pack(upload, pack, manifest.pack.size)
        if stored.pack != manifest.pack.digest:
            raise Corrupt(f"upload: {stored.pack} arrived, {manifest.pack.digest} was sent", "try again")
        yield upload.upload
    except BaseException:
        with suppress(Exception):  # an error here does not matter: the lease ends by itself
            uploads.abort(upload.upload)
        raise
