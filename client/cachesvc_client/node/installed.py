"""Owns the records of what a restore accepts and installs on this node.

They have no behaviour of a restore, so that ranks, canary, outcome and session may read them.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..wire.digest import Digest
from ..wire.manifest.records import Manifest
from ..wire.requests.protocol import Rejected

if TYPE_CHECKING:
    from ..bundle.seal import PublicKey
    from ..trust.accept import Accepted
    from .parts.pack_store import Watcher


class PackSource(ABC):
    """Where the pack of an accepted revision comes from."""

    __slots__ = ()

    @abstractmethod
    def fetch(self, watcher: Watcher | None = None, *, own: bool = False) -> Path:
        """Return the path of a file on this node that holds the pack.

        ``watcher``: follows a download. ``own``: the copy of the node's agent is damaged, or gone. Raise
        ``Corrupt``, ``StorageFull``, ``Unavailable``.
        """


@dataclass(frozen=True, slots=True)
class AcceptedRevision:
    """A revision that passed the door and fits here, and where its pack comes from."""

    accepted: Accepted
    pack: PackSource

    @property
    def manifest(self) -> Manifest:
        """Return what was signed."""
        return self.accepted.manifest

    @property
    def revision(self) -> Digest:
        """Return the digest of the envelope."""
        return self.accepted.revision

    @property
    def signer(self) -> PublicKey:
        """Return who signed it."""
        return self.accepted.signer


@dataclass(slots=True)
class InstalledRevision:
    """Describes a revision that is in the cache folders of this process now."""

    manifest: Manifest
    revision: Digest
    signer: PublicKey
    files: int
    bytes: int

    @property
    def keys(self) -> set[str]:
        """Returns the compilers' own keys for which the revision has files."""
        return {part for record in self.manifest.files for part in record.path.split("/")[:-1]}


@dataclass(frozen=True, slots=True)
class Unusable:
    """Lists revisions that fit and are not used. ``distrusted``: those that were installed until the canary
    found them wrong. ``withdrawn``: those that were not installed, because two processes of this node crashed
    while they loaded files of them."""

    distrusted: list[InstalledRevision] = field(default_factory=list)
    withdrawn: list[InstalledRevision] = field(default_factory=list)

    def all(self) -> list[InstalledRevision]:
        """Return both, the distrusted ones first."""
        return [*self.distrusted, *self.withdrawn]


@dataclass(slots=True)
class RestoreResult:
    """Says what a restore did. The restore fills it step by step, so that after a failure it says what was
    done before.

    ``moved``: bytes over the network. ``seconds``: by step. ``rejected``: entries that exist and do not
    fit, nearest first. ``more``: entries that fit and were left for a compile to ask for. ``stored``:
    revisions that came too late to be installed. ``own``: what an earlier start of this node
    compiled; it is reported to no registry. ``warnings``: problems that the log does not say yet.
    """

    installed: list[InstalledRevision] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    more: int = 0
    stored: int = 0
    moved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unusable: Unusable = field(default_factory=Unusable)
    own: InstalledRevision | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def status(self) -> Literal["restored", "stored"]:
        """Returns how a restore without an error ended: ``stored`` if it came too late to install
        anything."""
        return "restored" if self.installed or self.more else "stored"

    def warn(self, problem: str) -> None:
        """Adds a problem that the session also logs, as a warning."""
        self.problems.append(problem)
        self.warnings.append(problem)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds the wall seconds of the block to a step, which is a span of the program's trace too."""
        begin = time.perf_counter()
        try:
            with _span(step):
                yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - begin


def _span(step: str) -> AbstractContextManager[None]:
    """Returns the span of a step, where the program has imported OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from .. import spans

    return spans.step(step)
