"""Owns the store that a node's agent fills and that the services of the node read: one writer, many readers.

    <root>/v1/packs/<hex>       whole packs
    <root>/v1/lists/<hex>       what a registry offers under a name and tag, see `wire.requests.node_list`;
                                its time of modification says when the registry said so
    <root>/v1/envelopes/<hex>   the signed envelope of each listed revision
    <root>/v1/trust/<hex>/      verified trust metadata; the time of ``timestamp.json`` says when they were
                                asked for

The layout is that of `node.store`, and these four parts are readable for everybody. Readers write nothing,
need no lock, and trust nothing here: envelopes are checked as if they came from the network, and packs frame
by frame when they are installed. So a hostile writer can withhold what is new, and no more. The operator
decides who may be the writer (`open_shared_store`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection
from pathlib import Path

from ..wire.digest import Digest
from ..wire.errors import NotFound, Untrusted
from ..wire.manifest.records import MAX_ENVELOPE_BYTES
from ..wire.requests.node_list import MAX_LIST_BYTES
from .path_owners import refuse_foreign_path
from .store_files import LAYOUT, open_plain_file

READABLE = ("packs", "lists", "envelopes", "trust")
"""Parts that services read."""


class SharedStore:
    """Reads the store of this node's agent."""

    def __init__(self, root: Path) -> None:
        self._base = root / LAYOUT

    @property
    def trust_folder(self) -> Path:
        """Returns the folder with the trust metadata of registries."""
        return self._base / "trust"

    def pack(self, digest: Digest, size: int) -> Path | None:
        """Returns the path of a pack of ``size`` bytes; ``None`` if it is not here, or cannot be read."""
        path = self._base / "packs" / digest.hex
        try:
            status = path.lstat()
        except OSError:
            return None
        whole = stat.S_ISREG(status.st_mode) and status.st_size == size
        return path if whole and os.access(path, os.R_OK) else None

    def list_of(self, key: Digest) -> tuple[bytes, float] | None:
        """Returns a list and how many seconds old it is; ``None`` if it is not here or is of the future."""
        found = self._read("lists", key.hex, MAX_LIST_BYTES)
        if found is None:
            return None
        age = time.time() - found[1].st_mtime
        return (found[0], max(0.0, age)) if age > -1 else None

    def envelope(self, revision: Digest) -> bytes | None:
        """Returns the envelope of a listed revision, unchecked; ``None`` if it is not here."""
        found = self._read("envelopes", revision.hex, MAX_ENVELOPE_BYTES)
        return found[0] if found else None

    def _read(self, part: str, name: str, limit: int) -> tuple[bytes, os.stat_result] | None:
        try:
            with os.fdopen(open_plain_file(self._base / part / name, os.O_RDONLY), "rb") as file:
                data, status = file.read(limit + 1), os.fstat(file.fileno())
        except OSError:
            return None
        return (data, status) if len(data) <= limit else None


def open_shared_store(root: Path, owner: int | None) -> SharedStore:
    """Opens the store of this node's agent to read it.

    ``owner``: the user who may write it, beside this one and root. Raises ``NotFound`` if there is none yet,
    and ``Untrusted`` if another user could write there.
    """
    refuse_foreign_path(root.parent)
    allowed = {0, os.geteuid(), *(() if owner is None else (owner,))}
    for folder in (root, root / LAYOUT, *(root / LAYOUT / part for part in READABLE)):
        _refuse_other_writers(folder, allowed)
    return SharedStore(root)


def _refuse_other_writers(folder: Path, allowed: Collection[int]) -> None:
    try:
        status = folder.lstat()
    except OSError as error:
        raise NotFound(f"the node's store {folder}: {error.strerror}", "start cachesvc node there") from None
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"the node's store: {folder} is not a folder")
    if status.st_uid not in allowed:
        raise Untrusted(
            f"the node's store: {folder} belongs to user {status.st_uid}",
            f"if that is the agent, set CACHESVC_NODE_OWNER={status.st_uid}",
        )
    if status.st_mode & 0o022:
        raise Untrusted(f"the node's store: others may write to {folder}", f"chmod go-w {folder}")
