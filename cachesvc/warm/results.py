"""What the fresh processes of `warm` answer, and what comes of it: records between the files of this room."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.numerics import Compared
from cachesvc_client.observe import Observation
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.keyfacts import KeyFacts


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one input set: the first call of the process, and the median of later ones
    (``None`` for a script, which runs once)."""

    first: float
    steady: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """What a process found when it built the target. ``inputs``: signature by input set.
    ``weights``: a checksum over parameters, buffers and inputs: equal weights, equal text."""

    digest: Digest | None
    inputs: dict[str, Any]
    dtype: str
    device: str
    weights: str
    parameters: int


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """``where``: ``file.py:line``, the innermost line of the model."""

    reason: str
    where: str
    count: int


@dataclass(frozen=True, slots=True)
class Captured:
    """A file that a process has captured, in portable form, at ``<stage>/<kind>/<path>``. ``ranks``: those
    that produced or used it; empty is all."""

    kind: str
    path: str
    size: int
    mode: int = 0o644
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """``kind/path``, as in ``PhaseResult.read``."""
        return f"{self.kind}/{self.path}"


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What one fresh process saw. ``error``: one line if it could not do its phase; ``error_status``: the
    exit status of a ``CacheSvcError``.

    Of files, by ``kind/path``: ``read``; ``looked_at``: had to be there, read or not; ``added``: produced by
    this process after the bundle had been installed; ``emitted``: written by the compiler out of an entry
    that it hit, so neither new nor to be captured; ``beside``: what libraries compiled for themselves, which
    is no work of the model's compile. ``compared``: with eager (compile) or with the builder's
    compiled output (replay). ``seconds``: of the whole phase, imports included. ``keys``: what the keys
    that were compiled for were made of.
    """

    phase: str
    error: str = ""
    error_status: int = 0
    trace: str = ""
    model: Model | None = None
    times: dict[str, Times] = field(default_factory=dict)
    observed: Observation | None = None
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    compared: dict[str, Compared] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    read_method: str = ""
    looked_at: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    captured: tuple[Captured, ...] = ()
    fingerprint: dict[str, FactorValue] = field(default_factory=dict)
    script: Digest | None = None
    notes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    asked: dict[str, FactorValue] = field(default_factory=dict)
    restore_seconds: float = 0.0
    seconds: float = 0.0
    keys: KeyFacts | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``warm``: a fresh process that restored the entry compiled, tuned and added nothing, and its
    numbers hold. ``reasons``: why not, in words."""

    warm: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Numbers:
    """Seconds, summed over the input sets; ``None``: not measured (scripts have no eager run).

    ``compile``: what the cold first calls took above steady ones. ``break_even``: calls after which
    compiling here has paid for itself against eager, ``restored_break_even`` the same for a process
    that restored the entry; ``None`` if compiled calls are not faster.
    """

    compile: float | None = None
    first_call: float | None = None
    steady: float | None = None
    eager_first: float | None = None
    eager_steady: float | None = None
    restored_first: float | None = None
    restored_steady: float | None = None
    speed_up: float | None = None
    break_even: int | None = None
    restored_break_even: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """One kind's part of an entry, before compression: as the builder left it (*before*) and as it is
    published (*after* finalising and trimming). ``emitted``: files that a restored process's compiler writes
    out of it."""

    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the report.

    ``status``: *warm* (compiled, proven, delivered; in a check: proven), *fresh* (the registry has it),
    *cold* (a check found no entry, or one that does not spare the work), *failed*, *cancelled*.
    ``replays``: until settled, and one more for the verdict. ``revision``: what was published; ``bundle``:
    the file that was written. ``error_status``: the exit status of an error that was not the target's.
    """

    target: str
    status: str
    reasons: tuple[str, ...] = ()
    numbers: Numbers = field(default_factory=Numbers)
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kinds: dict[str, Share] = field(default_factory=dict)
    pack_bytes: int = 0
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    compared: dict[str, Compared] = field(default_factory=dict)
    observed: Observation | None = None
    replays: int = 0
    finalised: bool = False
    revision: str = ""
    bundle: str = ""
    notes: tuple[str, ...] = ()
    trace: str = ""
    error_status: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status in ("warm", "fresh")
