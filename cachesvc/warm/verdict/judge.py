"""Judge the results of phases: verdict and numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from .. import kinds_used
from ..worker.phase import Compared, Observation, PhaseResult, Times
from ..worker.steady import Steady, faster
from .results import Numbers, Verdict

LISTED_NAMES = 3
"""Number of names that a reason lists before it says how many more there are."""


def remaining_work(replay: PhaseResult) -> tuple[str, ...]:
    """Return what work a fresh process did that the bundle should have saved.

    Empty if the process compiled 0, tuned 0, started no compiler and added 0 files.
    """
    if replay.error:
        return (f"the replay failed: {replay.error}",)
    if replay.observation is None:
        return ("the replay reported no observation",)
    reasons = _work(replay.observation)
    if replay.files_added:
        reasons.append(f"added {_count(len(replay.files_added), 'file')}: {_list(replay.files_added)}")
    return tuple(reasons)


def compiles(result: PhaseResult) -> tuple[str, ...]:
    """Return what a process compiled and tuned."""
    return tuple(_work(result.observation)) if result.observation else ()


def traces(replay: PhaseResult) -> tuple[str, ...]:
    """Return what a fresh process traced, which recorded frames should have saved."""
    count = replay.observation.torch.traces if replay.observation else 0
    return (f"traced {_count(count, 'function')}",) if count else ()


def verdict(compiled: PhaseResult, replay: PhaseResult) -> Verdict:
    """Return the verdict on a target. ``replay``: a fresh process with the very bundle to be published."""
    reasons = [*remaining_work(replay), *output_differences(compiled)]
    if not replay.error:
        reasons += _other_tokens(compiled.tokens, replay.tokens)
        reasons += _differences(replay.comparisons, "restored output against the builder's")
    return Verdict(not reasons, tuple(reasons))


def output_differences(compiled: PhaseResult) -> tuple[str, ...]:
    """Return where compiled outputs differ from eager ones; empty if all are within the tolerance."""
    return tuple(_differences(compiled.comparisons, "compiled output against eager"))


def numbers(
    eager: Mapping[str, Times], compiled: Mapping[str, Times], replay: Mapping[str, Times]
) -> Numbers:
    """Return the numbers of the report, from the times of the three processes by input set. A check compiles
    nothing, so its replay has the steady times."""
    first, eager_first, restored_first = _first_calls(compiled), _first_calls(eager), _first_calls(replay)
    steady, eager_steady = _steady(compiled or replay, "steady"), _steady(compiled or replay, "eager_steady")
    cost = None if first is None else max(0.0, first - (steady.median if steady else 0.0))
    pays = faster(steady, eager_steady)
    # A restored process runs the same code as the builder, so the builder's steady times count for it too.
    return Numbers(
        compile=cost,
        first_call=first,
        steady=steady.median if steady else None,
        eager_first=eager_first,
        eager_steady=eager_steady.median if eager_steady else None,
        restored_first=restored_first,
        steady_spread=steady,
        eager_spread=eager_steady,
        speed_up=eager_steady.median / steady.median if steady and eager_steady else None,
        faster=pays,
        break_even=_break_even(first, steady, eager_first, eager_steady),
        restored_break_even=_break_even(restored_first, steady, eager_first, eager_steady),
    )


def needs_finalise(result: PhaseResult) -> bool:
    """Return whether the process tuned a graph, so that a finalising compile is worth it. What a kind
    tuned by itself is in no graph's key."""
    observed = result.observation
    return observed is not None and observed.tuning_runs > observed.tuned_by_kinds


def unproven(compiled: PhaseResult, *, without_gpu: bool) -> list[str]:
    """Return what nobody has seen of an entry that was built without its GPU."""
    if not without_gpu:
        return []
    notes = [
        "built without a GPU: nothing was run, and no output was compared; unproven until its first start"
    ]
    if compiled.untimed:
        count = _count(len(compiled.untimed), "choice")
        notes.append(f"{count} made without timing, by PyTorch's first candidate: {_list(compiled.untimed)}")
    return notes


def uncacheable_graphs(compiled: PhaseResult) -> tuple[str, ...]:
    """Return why PyTorch does not cache all graphs, so that no bundle can hold them; empty if it does."""
    return kinds_used.explain_uncached(compiled.observation.torch.bypassed) if compiled.observation else ()


def _work(observation: Observation) -> list[str]:
    reasons = []
    if observation.torch.graphs_compiled:
        reasons.append(f"compiled {_count(observation.torch.graphs_compiled, 'graph')} that no entry held")
    if observation.torch.cpp_builds:
        reasons.append(f"built {_count(observation.torch.cpp_builds, 'C++ kernel')}")
    kernels = observation.torch.triton_compilations + observation.torch.worker_jobs
    if kernels:
        reasons.append(f"compiled {_count(kernels, 'Triton kernel')}")
    of_kinds = list(kinds_used.counted(observation.counts))
    reasons += [f"{declared.done} {_count(count, declared.noun)}" for declared, count in of_kinds]
    if observation.compilations and not reasons:
        reasons.append(f"{_count(observation.compilations, 'compilation')}")
    if tuned := observation.tuning_runs - sum(count for declared, count in of_kinds if declared.tunes):
        reasons.append(f"tuned {_count(tuned, 'kernel')}")
    if observation.compiler_processes:
        names = sorted({PurePosixPath(name).name for name in observation.processes})
        count = _count(observation.compiler_processes, "compiler process", "compiler processes")
        reasons.append(f"started {count}" + (f": {_list(names)}" if names else ""))
    return reasons


def _differences(comparisons: Mapping[str, Compared], what: str) -> list[str]:
    return [
        f"{what}, inputs {name!r}: differs by {item.difference:.3g} where {item.allowed:.3g} is allowed "
        f"(values up to {item.scale:.3g}; see tolerance)"
        for name, item in comparisons.items()
        if not item.passed
    ]


def _other_tokens(builder: Sequence[Sequence[int]], restored: Sequence[Sequence[int]]) -> list[str]:
    """Return where a restored engine generated other tokens than the builder's."""
    if len(builder) != len(restored):
        return [f"the restored engine answered {len(restored)} prompts, and the builder's {len(builder)}"]
    return [
        f"prompt {index} has other tokens than in the builder's engine: {_first(here, there)}"
        for index, (here, there) in enumerate(zip(builder, restored, strict=True), 1)
        if list(here) != list(there)
    ]


def _first(builder: Sequence[int], restored: Sequence[int]) -> str:
    """Return the first difference of two lists of tokens."""
    for index, (here, there) in enumerate(zip(builder, restored, strict=False), 1):
        if here != there:
            return f"token {index} is {there}, not {here}"
    return f"{_count(len(restored), 'token')}, not {len(builder)}"


def _first_calls(times: Mapping[str, Times]) -> float | None:
    return sum(item.first for item in times.values()) if times else None


def _steady(times: Mapping[str, Times], field: str) -> Steady | None:
    parts = [getattr(item, field) for item in times.values()]
    return Steady.total(parts) if parts and None not in parts else None


def _break_even(
    first: float | None, steady: Steady | None, eager_first: float | None, eager_steady: Steady | None
) -> int | None:
    """Return the smallest n with first + (n - 1) * steady <= eager_first + (n - 1) * eager_steady; ``None``
    where the compiled model is not faster by more than the spread."""
    if first is None or steady is None or eager_first is None or eager_steady is None:
        return None
    if faster(steady, eager_steady) != "compiled":
        return None
    missing = max(0.0, first - eager_first)
    return 1 + math.ceil(missing / (eager_steady.median - steady.median))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _list(names: Iterable[str]) -> str:
    every = list(names)
    more = f", and {len(every) - LISTED_NAMES} more" if len(every) > LISTED_NAMES else ""
    return ", ".join(every[:LISTED_NAMES]) + more
