"""Owns the head of the entry into which a process publishes: several processes publish into one entry, and
each publication keeps what the head holds, as far as its signer may sign it again."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire.errors import Corrupt, Untrusted

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey, Signer
    from ..publication.build_bundle import Draft
    from ..restore.request import NameRequest
    from ..restore.session_restore import SessionRestore
    from ..trust.accept import Accepted
    from ..wire.manifest.records import Manifest
    from ..wire.names import Lane

_log = logging.getLogger("cachesvc")

_MOST_JOINED_BYTES = 1 << 30
"""Bytes of all files of a revision up to which those of the head are kept; above it the entry starts anew."""


def is_of_entry(draft: Draft, manifest: Manifest) -> bool:
    """Return whether ``manifest`` is a revision of the entry that ``draft`` would be one of."""
    from ..wire.manifest.records import Statement, entry_key
    from ..wire.partitions import completed

    statement = Statement(draft.name.namespace, draft.name.name, draft.target, 1, draft.name.tag, draft.lane)
    fingerprint = completed(draft.fingerprint, manifest.fingerprint)
    return manifest.entry == entry_key(statement, fingerprint, draft.scopes, draft.workload)


def fetch_head(
    restoring: SessionRestore, request: NameRequest, key: Signer, draft: Draft
) -> tuple[Accepted, Path] | None:
    """Return the head that is offered of the draft's entry, with its pack; ``None`` without one that this
    process accepts."""
    try:
        return restoring.fetch_head(request, functools.partial(is_of_entry, draft), key.public)
    except (Untrusted, Corrupt) as error:
        _log.info("%s: what is published there is not kept: %s", draft.name, error)
        return None


def join_head(
    head: tuple[Accepted, Path] | None,
    files: Sequence[SourceFile],
    signer: PublicKey,
    draft: Draft,
    folder: Path,
) -> tuple[Sequence[SourceFile], Draft]:
    """Return ``files`` and those of the entry's head, each place once, and the draft with the head's line;
    ``files`` and draft alone if the signer may not sign the head's again, or they are too many.

    ``folder``: where the head's files are written. Raises ``Corrupt``.
    """
    from ..bundle.pack import PackReader, SourceFile
    from ..kinds import rule_of
    from ..ranks.join_files import join_captures
    from ..wire.manifest.ancestors import MAX_ANCESTORS, in_order, line_of

    if head is None or not _is_own_head(head[0], signer, draft.lane):
        return files, draft
    records = head[0].manifest.files
    ancestors = in_order((*draft.build.ancestors, *line_of(head[0])))
    if sum(record.size for record in records) > _MOST_JOINED_BYTES or len(ancestors) > MAX_ANCESTORS:
        return files, draft
    kept = []
    with PackReader(head[1], head[0].manifest) as reader:
        for number, record in enumerate(records):
            path = folder / str(number)
            with open(path, "wb") as out:
                for chunk in reader.chunks(record):
                    out.write(chunk)
            kept.append(SourceFile(record.kind, record.path, path, record.mode, record.ranks))
    # The head's ranks count as further ones, so that this process's files come first.
    ranks = range(draft.workload.ranks or 1)
    captured = {rank: [file for file in files if rank in (file.ranks or ranks)] for rank in ranks}
    captured |= {len(ranks) + rank: [one for one in kept if rank in (one.ranks or ranks)] for rank in ranks}
    joined = []
    for file in join_captures(captured, rule_of):
        of = sorted({rank % len(ranks) for rank in file.ranks})
        joined.append(replace(file, ranks=() if len(of) == len(ranks) else tuple(of)))
    return joined, replace(draft, build=replace(draft.build, ancestors=ancestors))


def recorded_by_others(
    head: Accepted, signer: PublicKey, lane: Lane | None, published: Set[tuple[str, str]]
) -> bool:
    """Return whether another process has recorded for the entry already: each would add its own records of
    the same. ``published``: kind and path of what this process has published there."""
    from ..kinds import is_recorded

    held = {(record.kind, record.path) for record in head.manifest.files if is_recorded(record.kind)}
    return bool(held - published) and _is_own_head(head, signer, lane)


def _is_own_head(head: Accepted, signer: PublicKey, lane: Lane | None) -> bool:
    """Return whether a signer may sign the files of the entry's head again: it has signed them for the lane.

    Those of others are not kept: their signer may be revoked, and they would stay under this one's signature.
    """
    if (head.signer, head.manifest.statement.lane) == (signer, lane):
        return True
    text = "%s: the revision there is by key %s, and its files are left out"
    _log.info(text, head.manifest.statement.full_name, head.signer.short)
    return False
