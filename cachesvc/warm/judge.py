"""Phase results -> verdict and numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.bypassed import explain_bypass
from cachesvc_client.hooks.counters import Observation

from .results import Numbers, PhaseResult, Times, Verdict

FEW = 3
"""Names that a reason lists before it says how many more there are."""


def unsettled(replay: PhaseResult) -> tuple[str, ...]:
    """Why a fresh process with the bundle did work that the bundle should have saved; empty if it
    compiled 0, tuned 0, started no compiler and added 0 files."""
    if replay.error:
        return (f"the replay failed: {replay.error}",)
    if replay.observed is None:
        return ("the replay reported no observation",)
    reasons = _work(replay.observed)
    if replay.added:
        reasons.append(f"added {_count(len(replay.added), 'file')}: {_few(replay.added)}")
    return tuple(reasons)


def verdict(compiled: PhaseResult, replay: PhaseResult) -> Verdict:
    """The last word on a target: ``replay`` is a fresh process with the very bundle to be published."""
    reasons = [*unsettled(replay), *inexact(compiled)]
    if not replay.error:
        reasons += _numeric(replay.compared, "restored output against the builder's")
    return Verdict(not reasons, tuple(reasons))


def inexact(compiled: PhaseResult) -> tuple[str, ...]:
    """Why the compiled outputs are not what eager computes; empty if they are within the tolerance."""
    return tuple(_numeric(compiled.compared, "compiled output against eager"))


def numbers(
    eager: Mapping[str, Times], compiled: Mapping[str, Times], replay: Mapping[str, Times]
) -> Numbers:
    """The figures of the report, from the times of the three processes by input set."""
    first, steady = _total(compiled, "first"), _total(compiled, "steady")
    eager_first, eager_steady = _total(eager, "first"), _total(eager, "steady")
    restored_first, restored_steady = _total(replay, "first"), _total(replay, "steady")
    return Numbers(
        compile=None if first is None else max(0.0, first - (steady or 0.0)),
        first_call=first,
        steady=steady,
        eager_first=eager_first,
        eager_steady=eager_steady,
        restored_first=restored_first,
        restored_steady=restored_steady,
        speed_up=eager_steady / steady if eager_steady and steady else None,
        break_even=_break_even(first, steady, eager_first, eager_steady),
        # The same code runs then: the builder's steady time, which was measured beside eager's.
        restored_break_even=_break_even(
            restored_first, restored_steady if steady is None else steady, eager_first, eager_steady
        ),
    )


def tuned(result: PhaseResult) -> bool:
    """Whether the process tuned anything, so that a finalising compile is worth it."""
    return result.observed is not None and result.observed.tuning_runs > 0


def uncached(compiled: PhaseResult) -> tuple[str, ...]:
    """Why no bundle can hold all that was compiled: PyTorch caches not all of it. Empty if it does."""
    return tuple(map(explain_bypass, compiled.observed.bypassed)) if compiled.observed else ()


def _work(observed: Observation) -> list[str]:
    reasons = []
    if observed.graphs_compiled:
        reasons.append(f"compiled {_count(observed.graphs_compiled, 'graph')} that no entry held")
    if observed.cpp_builds:
        reasons.append(f"built {_count(observed.cpp_builds, 'C++ kernel')}")
    kernels = observed.triton_compilations + observed.worker_jobs
    if kernels:
        reasons.append(f"compiled {_count(kernels, 'Triton kernel')}")
    if observed.extension_builds:
        reasons.append(f"built {_count(observed.extension_builds, 'extension')}")
    if observed.compilations and not reasons:
        reasons.append(f"{_count(observed.compilations, 'compilation')}")
    if observed.tuning_runs:
        reasons.append(f"tuned {_count(observed.tuning_runs, 'kernel')}")
    if observed.compiler_processes:
        names = sorted({PurePosixPath(name).name for name in observed.processes})
        started = f"started {_count(observed.compiler_processes, 'compiler process', 'compiler processes')}"
        reasons.append(started + (f": {_few(names)}" if names else ""))
    return reasons


def _numeric(compared: Mapping[str, Compared], what: str) -> list[str]:
    return [
        f"{what}, inputs {name!r}: differs by {item.difference:.3g} where {item.allowed:.3g} is allowed "
        f"(values up to {item.scale:.3g}; see tolerance)"
        for name, item in compared.items()
        if not item.passed
    ]


def _total(times: Mapping[str, Times], field: str) -> float | None:
    values = [getattr(item, field) for item in times.values()]
    return sum(values) if values and None not in values else None


def _break_even(
    first: float | None, steady: float | None, eager_first: float | None, eager_steady: float | None
) -> int | None:
    """The smallest n with first + (n - 1) * steady <= eager_first + (n - 1) * eager_steady."""
    if first is None or steady is None or eager_first is None or eager_steady is None:
        return None
    if first <= eager_first:
        return 1
    saved = eager_steady - steady
    return 1 + math.ceil((first - eager_first) / saved) if saved > 0 else None


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - FEW} more" if len(listed) > FEW else ""
    return ", ".join(listed[:FEW]) + more
