"""Defines the signed record (manifest) and its parts.

Every record is immutable and validates itself: a bad record cannot exist. The bounds stand beside the shapes,
because manifests are hostile input until `bundle.check` has passed them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..codec import canonical
from ..digest import Digest
from ..factors import FactorValue, Facts, Fingerprint
from ..names import LATEST, Lane, Name, Namespace, ShortName, Tag, Target
from ..partitions import partition
from .ancestors import Ancestor, check_ancestors
from .graph_keys import graph_keys
from .key_components import MAX_ENCODED
from .proof import Proof
from .provenance import MAX_STATEMENT_BYTES

MANIFEST_FORMAT = "cachesvc.manifest/1"
"""Format of the manifests that this client writes and reads."""
PACK_FORMAT = "cachesvc.pack/1"
"""Format of the packs that this client writes and reads."""
PAYLOAD_TYPE = "application/vnd.cachesvc.manifest.v1+json"
"""Media type of a manifest in an envelope."""

FRAME_BYTES = 4 << 20
"""Largest number of uncompressed bytes of a frame."""
MAX_ENVELOPE_BYTES = 48 << 20
"""Largest number of bytes of an envelope."""
MAX_MANIFEST_BYTES = 32 << 20
"""Largest number of bytes of a manifest."""
MAX_AHEAD_MILLISECONDS = 86_400_000
"""Milliseconds (a day) that a sequence may be ahead of this machine's clock: one that is further ahead is not
signed over, and keeps no other signer out."""
MAX_FILES = 65_536
"""Largest number of files of one revision."""
MAX_PACK_BYTES = 16 << 30
"""Largest number of bytes of a pack."""
MAX_RAW_BYTES = 64 << 30
"""Largest number of uncompressed bytes of a pack."""
MAX_PATH_BYTES = 512
"""Largest number of bytes of a file's path."""
MODES = (0o644, 0o755)
"""File modes that a manifest may name."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
"""Matches the name of a kind."""
_PATH_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+=,@-]{0,254}"
_PATH = re.compile(f"{_PATH_PART}(?:/{_PATH_PART})*")
"""Matches a relative path without hidden files, parents or links."""


@dataclass(frozen=True, slots=True)
class Statement:
    """States what a manifest is published as. It is signed with the manifest, so that no one can publish the
    manifest as something else.

    ``sequence``: milliseconds of UTC at signing, and greater than that of the replaced head. ``expires``:
    seconds of UTC after which no client installs the revision; ``None`` is never.
    """

    namespace: Namespace
    name: ShortName
    target: Target
    sequence: int
    tag: Tag = LATEST
    lane: Lane | None = None
    expires: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sequence < 1 << 53:
            raise ValueError("sequence: out of range")

    @property
    def full_name(self) -> Name:
        """Returns ``namespace/name:tag``."""
        return Name(self.namespace, self.name, self.tag)


@dataclass(frozen=True, slots=True)
class Frame:
    """Describes a frame: ``size`` bytes stored at ``offset`` of the pack, with this digest; ``raw`` bytes
    uncompressed."""

    offset: int
    size: int
    raw: int
    digest: Digest

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size <= 0 or not 0 < self.raw <= FRAME_BYTES:
            raise ValueError("frame: offset, size or raw out of range")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Describes a file: ``size`` bytes from ``offset`` of the uncompressed frame ``frame``, continued in the
    following frames. ``path`` is relative to the kind's folder. ``ranks``: ranks that use the file; empty
    means all."""

    kind: str
    path: str
    size: int
    digest: Digest
    frame: int
    offset: int
    mode: int = 0o644
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"kind: {self.kind[:40]!r}")
        if len(self.path) > MAX_PATH_BYTES or not _PATH.fullmatch(self.path):
            raise ValueError(f"path: {self.path[:120]!r}")
        if self.mode not in MODES:
            raise ValueError(f"mode: {self.mode!r}")
        if self.size < 0 or self.frame < 0 or self.offset < 0:
            raise ValueError("file: size, frame or offset out of range")


@dataclass(frozen=True, slots=True)
class PackRecord:
    """Describes the object that has the bytes."""

    digest: Digest
    size: int
    format: str = PACK_FORMAT

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_PACK_BYTES or self.format != PACK_FORMAT:
            raise ValueError("pack: size or format")


@dataclass(frozen=True, slots=True)
class Workload:
    """Describes what was compiled. It routes and ranks; PyTorch's own keys decide correctness.

    ``model``: model hash (``environment.model_hash.model_hash``), or ``None`` for a script target, whose
    ``script`` is a digest of script, spec and declared inputs. ``inputs``: for each named input set, its
    signature (shapes, dtypes, strides, dynamic dimensions). ``options``: compile options as text.
    """

    model: Digest | None = None
    script: Digest | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, FactorValue] = field(default_factory=dict)
    dtype: str = ""
    grad: bool = False
    training: bool = False
    autocast: str = ""
    ranks: int = 1

    @property
    def key(self) -> Digest:
        """Returns the digest of the workload. Equal workloads have equal keys."""
        return Digest.of(canonical(self))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a revision; its bytes are signed, see docs/concepts.md. ``scopes``: what the entry holds:
    *gpu*, *host*.

    ``asked``: what its compiles were asked for, by the workload rows of the factor table; absent in entries
    of older builders. ``measured``: seconds by name (``compile``, ``first_call``, ``steady``,
    ``eager_first``, ``eager_steady``, ``restored_first``). ``provenance``: free text by name, for people.
    ``attestation``: an in-toto statement of who built the pack from what (`provenance`). ``proof``: on what
    it was shown to work (`proof`). Both are absent in entries of older builders, and older clients ignore
    them. ``ancestors``: the revisions whose code can be in this one (`ancestors`), by digest; absent if there
    are none. ``deferrable``: the rules of every kind of its files say ``deferrable``; absent if one does not.
    """

    statement: Statement
    pack: PackRecord
    frames: tuple[Frame, ...]
    files: tuple[FileRecord, ...]
    fingerprint: dict[str, FactorValue]
    workload: Workload
    scopes: tuple[str, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    format: str = MANIFEST_FORMAT
    key_facts: str | None = None
    asked: dict[str, FactorValue] | None = None
    attestation: dict[str, Any] | None = None
    proof: Proof | None = None
    ancestors: tuple[Ancestor, ...] | None = None
    deferrable: bool | None = None

    def __post_init__(self) -> None:
        if self.format != MANIFEST_FORMAT:
            raise ValueError(f"format {self.format[:60]!r}: this client reads {MANIFEST_FORMAT}")
        if set(self.scopes) - {"gpu", "host"}:
            raise ValueError("scopes: gpu and host are known")
        if len(self.files) > MAX_FILES:
            raise ValueError(f"{len(self.files)} files, more than the {MAX_FILES} allowed")
        if len(self.key_facts or "") > MAX_ENCODED:
            raise ValueError(f"key_facts: {len(self.key_facts or '')} characters, at most {MAX_ENCODED}")
        if self.attestation is not None and len(canonical(self.attestation)) > MAX_STATEMENT_BYTES:
            raise ValueError(f"attestation: more than {MAX_STATEMENT_BYTES} bytes")
        check_ancestors(self.ancestors or ())

    @property
    def facts(self) -> Facts:
        """Returns all facts of the factor table: those of the environment and those of the workload."""
        model = {"model": str(self.workload.model)} if self.workload.model else {}
        return {**(self.asked or {}), **model, **self.fingerprint}

    @property
    def graph_keys(self) -> tuple[str, ...]:
        """Returns the compilers' own keys of the graphs that the revision holds."""
        return graph_keys(record.path for record in self.files)

    @property
    def may_wait(self) -> bool:
        """Returns whether a start may leave the revision out until a compile looks for one of its graphs."""
        return bool(self.deferrable and self.graph_keys)

    @property
    def partition(self) -> Digest:
        """Returns the fingerprint partition of the entry."""
        return partition(self.fingerprint, self.scopes)

    @property
    def entry(self) -> Digest:
        """Returns the key of the entry: (namespace, lane, name, tag, target, partition, workload)."""
        return entry_key(self.statement, self.fingerprint, self.scopes, self.workload)

    def encode(self) -> bytes:
        """Returns the exact bytes to sign. Their digest identifies the revision."""
        return canonical(self)


def entry_key(
    statement: Statement, fingerprint: Fingerprint, scopes: tuple[str, ...], workload: Workload
) -> Digest:
    """Returns the identity of a line of revisions. The statement's sequence and expiry are no part of it."""
    return Digest.of(
        canonical(
            {
                "namespace": statement.namespace,
                "lane": statement.lane,
                "name": statement.name,
                "tag": statement.tag,
                "target": statement.target,
                "partition": partition(fingerprint, scopes),
                "workload": workload.key,
            }
        )
    )
