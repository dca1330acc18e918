"""Owns ``pull`` and ``push``: bundles between a registry and files.

Both check every byte with `bundle.check`: a pulled bundle is signed by a trusted key for the requested name,
and a pushed bundle is checked whole before its first byte is sent.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..bundle.check import ExpectedStatement, check_pack
from ..bundle.file import SUFFIX, open_bundle, write_bundle
from ..bundle.seal import PublicKey
from ..config.settings import Config
from ..environment.detect import detect
from ..http.registry import Remote
from ..node.store import NodeStore
from ..restore.accept import nothing_offered
from ..trust.accept import Acceptance, Accepted
from ..trust_root.registry_metadata import policy_of
from ..wire.digest import Digest
from ..wire.errors import Corrupt, InvalidRequest, NotFound, StorageFull
from ..wire.names import Name, Tag, Target
from ..wire.requests.protocol import ResolveAnswer, ResolvedRevision, ResolveRequest
from .names import suggesting
from .trust import demand_trust, node_store


@dataclass(frozen=True, slots=True)
class PulledBundle:
    """Describes a bundle file that ``pull`` wrote. ``moved``: the bytes of its download."""

    target: Target
    revision: Digest
    path: Path
    bytes: int
    moved: int
    signer: PublicKey


def registry_of(config: Config) -> Remote:
    """Return the configured registry. Raises ``InvalidRequest`` if none is configured."""
    if config.url is None:
        raise InvalidRequest("no registry is configured", "set CACHESVC_URL or run: cachesvc login URL")
    return Remote(config.url, config.token, allow_links=config.allow_links)


def pull(
    config: Config, name: Name, into: Path, *, fallback: tuple[Tag, ...] = (), every: bool = False
) -> list[PulledBundle]:
    """Write each revision under ``name`` that fits this environment as a bundle file into ``into``.

    ``every``: write also the revisions that do not fit here, for an image that runs on another machine. A
    bundle file of the same entry is replaced; a file with the same revision costs no transfer. An error
    leaves only whole, checked files behind. Raises ``NotFound``, ``Incompatible`` if nothing fits or, with
    ``every``, nothing is offered, ``Untrusted``, ``Corrupt``, ``Unavailable``, ``StorageFull``.
    """
    tags = name.tags(fallback)
    expected = ExpectedStatement(name.namespace, name.name, tags, config.lane)
    with registry_of(config) as remote:
        demand_trust(config)
        _make_folder(into)
        store = node_store(config)
        acceptance = config.acceptance(policy_of(config, store, remote))
        with suggesting(remote, name):
            if every:
                answers = list(_answers(remote, config, name, tags))
            else:
                answers = [remote.resolve(request_here(config, name, tags))]
        rows = [row for answer in answers for row in answer.revisions]
        if not rows:
            raise nothing_offered(name, [row for answer in answers for row in answer.rejected])
        return [_pull_one(remote, acceptance, store, expected, row, into) for row in rows]


def _make_folder(into: Path) -> None:
    """Make the folder of the bundles. Raises ``InvalidRequest`` if a file has its name; ``StorageFull``."""
    try:
        into.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidRequest(
            f"{into}: is a file", "name a folder, in which each bundle gets a file"
        ) from None
    except OSError as error:
        raise StorageFull(f"{into}: {error.strerror}", "name a folder that you may write to") from None


def request_here(config: Config, name: Name, tags: tuple[Tag, ...]) -> ResolveRequest:
    """Return the request for what fits this environment."""
    return ResolveRequest(name.namespace, name.name, detect(), tags=tags, lane=config.lane)


def every_revision(
    remote: Remote, config: Config, name: Name, tags: tuple[Tag, ...]
) -> Iterator[ResolvedRevision]:
    """Yield what the registry offers under a name, also what does not fit here."""
    for answer in _answers(remote, config, name, tags):
        yield from answer.revisions


def _answers(remote: Remote, config: Config, name: Name, tags: tuple[Tag, ...]) -> Iterator[ResolveAnswer]:
    """Yield the registry's answer for each entry under a name, which is requested with its own
    fingerprint."""
    tag = remote.resolve(request_here(config, name, tags)).tag or name.tag
    for row in remote.entries(Name(name.namespace, name.name, tag)):
        if row.lane is None or row.lane == config.lane:
            request = ResolveRequest(
                name.namespace, name.name, row.fingerprint, lane=config.lane, entries=(row.entry,)
            )
            yield remote.resolve(request)


def _pull_one(
    remote: Remote,
    acceptance: Acceptance,
    store: NodeStore,
    expected: ExpectedStatement,
    row: ResolvedRevision,
    into: Path,
) -> PulledBundle:
    verified = acceptance.accept(row.envelope_bytes, expected, store.marks)
    manifest, statement = verified.manifest, verified.manifest.statement
    path = into / file_name(verified)
    pack, moved = manifest.pack, 0
    if not is_bundle_of(path, verified):
        fetched, moved = store.fetch(
            pack.digest, pack.size, lambda offset: remote.downloads.fetch(row, pack, offset)
        )
        write_bundle(path, verified.envelope, fetched)
        if moved:  # the node store had no copy, and an image is not to hold the bytes twice
            store.discard(pack.digest)
    store.marks.record_sequence(manifest.entry, statement.sequence, verified.signer)
    return PulledBundle(statement.target, verified.revision, path, pack.size, moved, verified.signer)


def file_name(verified: Accepted) -> str:
    """Return a readable file name, one for each entry: the entry's next revision replaces the file."""
    readable = re.sub(r"[^A-Za-z0-9._+=-]+", "-", verified.manifest.statement.target)[:120]
    return f"{readable}-{verified.manifest.entry.hex[:12]}{SUFFIX}"


def is_bundle_of(path: Path, verified: Accepted) -> bool:
    """Return whether the file is this bundle already, whole."""
    with contextlib.suppress(NotFound, Corrupt, OSError):
        envelope, offset = open_bundle(path)
        if envelope == verified.envelope:
            check_pack(path, verified.manifest, offset)
            return True
    return False
