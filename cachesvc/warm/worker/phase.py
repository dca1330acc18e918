"""Define what a fresh process is asked to do, and what it answers. Both travel as JSON files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.key_components import KeyFacts

from ..spec.plan import Job
from .steady import Steady

__all__ = [
    "CapturedFile",
    "Compared",
    "GraphBreak",
    "ModelFacts",
    "Observation",
    "PhaseRequest",
    "PhaseResult",
    "Times",
]


@dataclass(frozen=True, slots=True)
class PhaseRequest:
    """Asks one process to do one phase of a job.

    ``phase``: ``probe``, ``eager``, ``compile``, ``finalise``, ``replay`` or ``record``. A replay restores
    ``bundle``, or ``name`` from the registry that the environment names; ``record`` is a replay that records
    what Dynamo traces. ``reference``: the file to which a compile writes its outputs, and from which a replay
    reads them, if the file exists. ``stage``: the folder that captured files are copied to; if it is empty,
    nothing is captured. ``device``: the file that describes the GPU to compile for on a machine without one;
    empty where the GPU is there.
    """

    phase: str
    job: Job
    reference: str = ""
    bundle: str = ""
    name: str = ""
    stage: str = ""
    device: str = ""

    @property
    def ranks(self) -> int:
        """Return how many ranks torchrun starts; 0 for one process without torchrun.

        The phases ``probe`` and ``eager`` run no part of a script, so they have no ranks.
        """
        alone = self.phase in ("probe", "eager")
        return self.job.spec.nproc if self.job.spec.nproc > 1 and not alone else 0


@dataclass(frozen=True, slots=True)
class Times:
    """Holds times of one input set: the seconds of the first call of the process, and later calls of the
    compiled model and of the eager one, measured in turn (``None`` where they were not)."""

    first: float
    steady: Steady | None = None
    eager_steady: Steady | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Describes the model that a process built. ``inputs``: signature by input set. ``weights``: a checksum
    over parameters, buffers and inputs; equal weights have equal checksums."""

    digest: Digest | None
    inputs: dict[str, Any]
    dtype: str
    weights: str


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Describes one place where Dynamo cut a graph. ``where``: ``file.py:line``, the innermost line of the
    model."""

    reason: str
    where: str
    count: int


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """Names a file that a process captured, in portable form, at ``<stage>/<kind>/<path>``. ``ranks``: the
    ranks that produced or used the file; empty means all."""

    kind: str
    path: str
    size: int
    mode: int = 0o644
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return ``kind/path``, as in ``PhaseResult.files_read``."""
        return f"{self.kind}/{self.path}"


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Says what one fresh process did and saw.

    ``error``: one line, if the process could not do its phase. ``error_status``: the exit status of a
    ``CacheSvcError``. ``observation``: what was compiled, tuned and started. ``comparisons``: by input set,
    compiled outputs with eager ones (compile), or restored outputs with the builder's (replay).
    ``capture``: the files that the process copied to the stage. ``keys``: the components of the keys that
    were compiled for. ``why_traced``: why functions were not recorded, or were traced although there is a
    record. ``log_reasons``: what the log of a service says of this start, of a replay from the registry.
    ``tokens``: what an engine generated for each prompt, or the bits of the numbers that it answered with.
    ``graph_requests``: what the compiled graphs were asked for. ``probe``: the reason of
    each check of the conformance probe that failed, by the name of the check.

    ``beyond_level``: why the code is not known to be built for the level of the spec; empty if it is.

    ``untimed``: choices that were made without timing, for a GPU that is not there.

    The fields that begin with ``files_`` name files as ``kind/path``. ``files_read`` were read.
    ``files_required`` had to exist, whether or not they were read. ``files_added`` were produced by this
    process after the bundle was installed. ``files_emitted`` were written by the compiler out of an entry
    that it hit, so they are neither new nor captured. ``files_of_libraries`` were compiled by libraries for
    themselves, which is no work of the model's compile.
    """

    phase: str
    error: str = ""
    error_status: int = 0
    trace: str = ""
    model: ModelFacts | None = None
    times: dict[str, Times] = field(default_factory=dict)
    observation: Observation | None = None
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    comparisons: dict[str, Compared] = field(default_factory=dict)
    files_read: tuple[str, ...] = ()
    files_required: tuple[str, ...] = ()
    files_added: tuple[str, ...] = ()
    files_emitted: tuple[str, ...] = ()
    files_of_libraries: tuple[str, ...] = ()
    capture: tuple[CapturedFile, ...] = ()
    fingerprint: dict[str, FactorValue] = field(default_factory=dict)
    script: Digest | None = None
    scopes: tuple[str, ...] = ()
    graph_requests: dict[str, FactorValue] = field(default_factory=dict)
    keys: KeyFacts | None = None
    why_traced: tuple[str, ...] = ()
    log_reasons: tuple[str, ...] = ()
    probe: dict[str, str] = field(default_factory=dict)
    tokens: tuple[tuple[int, ...], ...] = ()
    untimed: tuple[str, ...] = ()
    beyond_level: str = ""
