"""Counts what this process compiles and tunes. No other module counts that.

Sessions, `warm` and the tests use the same numbers. PyTorch's own counters cannot see rebuilt ``.so`` files,
tuning, or work in compile workers (docs/pytorch.md, 7), so this module wraps the functions that do the work.
The wrappers only count. They run while something compiles, and never at a call of a compiled model.

With ``audit=True`` (`warm` and tests) `child_processes` lists every process that this process, its forks and
its Python children start, such as Inductor's compile workers. An audit hook cannot be taken off again, so
services do not get one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import child_processes, imports
from .kind_counts import of_kinds
from .table import Hook, Role


def _row(module: str, path: str, what: str, since: str = "") -> Hook:
    role: Role = "gpu" if module.startswith("triton.") else "count"
    if_missing = f"{what} are not counted, and a report says so"
    return Hook(module, path, f"counts {what}", if_missing, since, role=role)


_AUTOTUNER = "torch._inductor.runtime.triton_heuristics"
_COUNTED: tuple[tuple[Hook, str], ...] = (
    (_row("torch._inductor.compile_fx", "fx_codegen_and_compile", "compiled graphs"), "graphs_compiled"),
    (_row("torch._inductor.cpp_builder", "CppBuilder.build", "C++ builds"), "cpp_builds"),
    (_row("torch._inductor.cpp_builder", "run_compile_cmd", "compile commands"), "cpp_commands"),
    (_row(_AUTOTUNER, "CachingAutotuner.bench", "timings of candidates"), "tuning_benchmarks"),
    (_row(_AUTOTUNER, "CachingAutotuner.autotune_to_one_config", "tuned kernels"), "tuning_runs"),
    (_row(_AUTOTUNER, "CachingAutotuner._coordinate_descent_tuning", "descents", "2.9"), "tuning_runs"),
    (
        _row("torch._inductor.select_algorithm", "AlgorithmSelectorCache.benchmark_choices", "choices"),
        "tuning_runs",
    ),
    (
        _row(
            "torch._inductor.codegen.multi_kernel", "MultiKernelCall.benchmark_sub_kernels", "multi-kernels"
        ),
        "tuning_runs",
    ),
    (_row("triton.runtime.autotuner", "Autotuner._bench", "timings of user kernels"), "tuning_benchmarks"),
    (_row("triton.runtime.build", "_build", "builds of host libraries"), "cpp_builds"),
    (_row("triton.runtime.build", "_build", "compile commands of host libraries"), "cpp_commands"),
)
"""Functions of torch 2.8 to 2.15 and of Triton 3.4 to 3.9, and the name of the count of each; `missing` lists
those that a version does not have. 2.8 has no function of its own for a descent."""
_WORKER_JOBS = _row(
    "torch._inductor.compile_worker.subproc_pool", "SubprocPool.submit", "kernels compiled by workers"
)
_TRITON_KERNELS = _row("triton.knobs", "compilation.listener", "Triton kernels compiled here")

_COMPILATIONS = ("graphs_compiled", "cpp_builds", "triton_compilations", "worker_jobs")
"""Names of PyTorch's counts that are compilations together."""
COMPILERS = (
    *("g++", "gcc", "c++", "cc", "cc1plus", "clang", "clang++", "ld", "as", "nvcc", "ptxas", "icpx"),
    "ninja",
)
"""Names of the programs that are compilers, without their versions."""

_LONGEST_REASON, _MOST_REASONS = 300, 8
"""Characters of one entry of `bypassed`, and entries of it, at most."""

counts: Counter[str] = Counter()
"""Calls of the counted functions since the process began, by the name of the count."""
counted_elsewhere: dict[str, Callable[[], int]] = {}
"""Functions that return a count since the process began, by the name of the count: of work that no Python
function does, and that is seen by its files."""
spent: dict[str, float] = {}
"""Seconds inside the counted functions, by the name of the count: of the outermost call in each thread."""
_inside = threading.local()
"""The names of the counts that this thread is inside of, as attributes."""
_running: Counter[int] = Counter()
"""Calls of counted functions that have not returned yet, by thread."""
missing: set[str] = set()
"""Functions that should be counted and that this version of torch or Triton does not have."""
bypassed: list[str] = []
"""Reasons for which PyTorch neither read nor wrote a graph in its caches, in PyTorch's words, each once."""
_installed = False
"""Whether the wrappers are in place."""


@dataclass(frozen=True, slots=True)
class TorchWork:
    """Holds what PyTorch and Triton themselves did.

    Attributes:
        counters: PyTorch's own counters that concern caches.
        bypassed: Reasons for which PyTorch keeps graphs of this process in no cache, in PyTorch's words, each
            once. No entry can hold such graphs.
        traces: Functions, up to a graph break, that Dynamo traced.
    """

    graphs_compiled: int = 0
    cpp_builds: int = 0
    triton_compilations: int = 0
    worker_jobs: int = 0
    fx_hits: int = 0
    aot_hits: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    bypassed: tuple[str, ...] = ()
    traces: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """Holds the counts since an observer began; `wire.codec.plain` makes JSON of it.

    Attributes:
        compilations: Graphs that PyTorch compiled, C++ libraries that were built, kernels of Triton that were
            compiled here or given to a worker, and what kinds count as compiled.
        tuning_runs: Kernels or choices that were tuned, with ``tuned_by_kinds``: what kinds count as tuned.
        compiler_processes: Compilers among ``processes``, or compile commands that ran.
        counts: What kinds count, by kind and event.
        processes: Programs that this process started, then those that Python children started; empty
            without ``audit``.
        missing: Functions that could not be counted in this version.
        seconds: Seconds that this process spent, by the name of the count.
        torch: What PyTorch and Triton themselves did.
    """

    compilations: int = 0
    tuning_runs: int = 0
    compiler_processes: int = 0
    tuned_by_kinds: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    processes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    torch: TorchWork = field(default_factory=TorchWork)

    @property
    def clean(self) -> bool:
        """Return whether nothing was compiled or tuned and no compiler was started."""
        return not (self.compilations or self.tuning_runs or self.compiler_processes)


class Observer:
    """Counts from its construction on. Several observers may count at once."""

    def __init__(self) -> None:
        _count_elsewhere()
        self._before = Counter(counts)
        self._spent_before = dict(spent)
        self._processes_before = self._processes_now()
        self._counters_before = _torch_counters()
        self._bypassed_before = len(bypassed)

    def snapshot(self) -> Observation:
        """Return what was counted so far. Imports nothing; takes microseconds, and under ``audit`` the time
        to read a small file."""
        _count_elsewhere()
        now = counts - self._before
        own, by_children = self._processes_before
        processes = (
            *child_processes.started_here()[own:],
            *child_processes.started_by_children()[by_children:],
        )
        counters = _torch_counters()
        counters.subtract(self._counters_before)
        compilers = sum(map(is_compiler, processes))
        kinds = of_kinds(now)
        return Observation(
            compilations=sum(now[name] for name in _COMPILATIONS) + kinds.compiled,
            tuning_runs=now["tuning_runs"]
            + (now["tuning_benchmarks"] > 0 and not now["tuning_runs"])
            + kinds.tuned,
            compiler_processes=max(compilers, now["cpp_commands"]),
            tuned_by_kinds=kinds.tuned,
            counts=kinds.counts,
            processes=processes,
            missing=tuple(sorted(missing)),
            seconds={
                name: round(total - self._spent_before.get(name, 0.0), 4)
                for name, total in sorted(spent.items())
                if total > self._spent_before.get(name, 0.0)
            },
            torch=TorchWork(
                graphs_compiled=now["graphs_compiled"],
                cpp_builds=now["cpp_builds"],
                triton_compilations=now["triton_compilations"],
                worker_jobs=now["worker_jobs"],
                fx_hits=counters["inductor.fxgraph_cache_hit"],
                aot_hits=counters["aot_autograd.autograd_cache_hit"],
                counters={name: count for name, count in sorted(counters.items()) if count},
                bypassed=tuple(bypassed[self._bypassed_before :]),
                traces=now["frames_traced"],
            ),
        )

    @staticmethod
    def _processes_now() -> tuple[int, int]:
        """Return how many processes are listed, by this process and by its children."""
        return len(child_processes.started_here()), len(child_processes.started_by_children())


def _count_elsewhere() -> None:
    for name, count in list(counted_elsewhere.items()):
        counts[name] = count()


def is_compiler(name: str) -> bool:
    """Return whether a program compiles, by the name that `child_processes` lists."""
    program = Path(name).name
    asked = program.endswith((" --version", f" {child_processes.SYNTAX_ONLY}"))
    return program.split("-")[0] in COMPILERS and not asked


def compiling() -> bool:
    """Return whether some thread is inside a call that is counted. Takes microseconds."""
    return any(list(_running.values()))


def start(audit: bool = False) -> Observer:
    """Put the wrappers in place, once for the process, and begin to count.

    ``audit``: list the processes that are started too, see `child_processes.listen`. Raises ``OSError`` only
    if there is no place for the log of the children.
    """
    global _installed
    if not _installed:
        _installed = True
        imports.on_disarm(_forget_installed)
        os.register_at_fork(after_in_child=_running.clear)
        for hook, count in _COUNTED:
            hook.install(counter_of(count), on_missing=_note_missing)
        _WORKER_JOBS.install(_submit, on_missing=_note_missing)
        _TRITON_KERNELS.chain(_compiled_by_triton, on_missing=_note_missing)
        for hook, body in _BYPASSING:
            hook.install(body, on_missing=None if hook.since else _note_missing)
    if audit:
        child_processes.listen()
    return Observer()


def _forget_installed() -> None:
    global _installed
    _installed = False


def _note_missing(hook: Hook) -> None:
    missing.add(hook.name)


@functools.cache
def counter_of(count: str) -> imports.Body:
    """Answers a body that counts its calls under a name, and their seconds."""

    def counted(call: imports.Call) -> Any:
        counts[count] += 1
        active = _inside.__dict__
        if count in active:
            return call()
        active[count] = True
        thread = threading.get_ident()
        _running[thread] += 1
        begin = time.perf_counter()
        try:
            return call()
        finally:
            del active[count]
            _running[thread] -= 1
            spent[count] = spent.get(count, 0.0) + time.perf_counter() - begin

    return counted


def _submit(call: imports.Call) -> Any:
    from . import worker_jobs  # here and below: `attach` loads nothing that a compile alone needs

    return worker_jobs.submit(call, counts, "worker_jobs")


def _compiled_by_triton(**event: Any) -> None:
    if event.get("cache_hit"):
        return
    counts["triton_compilations"] += 1
    microseconds = getattr(event.get("times"), "total", 0)  # triton.knobs.CompileTimes, since 3.4
    name = "triton_compilations"
    if isinstance(microseconds, (int, float)):
        spent[name] = spent.get(name, 0.0) + microseconds / 1e6


def _prepare_key(call: imports.Call) -> Any:
    """Note the reason where PyTorch makes no key: it compiles such a graph without a look into a cache."""
    answer = call()
    if isinstance(answer, tuple) and len(answer) == 2 and answer[0] is None:
        _note_bypass(dict(answer[1]).get("cache_bypass_reason"))
    return answer


def _autograd_key(call: imports.Call) -> Any:
    try:
        return call()
    except Exception as error:
        _note_bypass(error)
        raise


def _dumps(call: imports.Call) -> Any:
    try:
        return call()
    except Exception as error:
        from . import unpicklable

        unpicklable.note(call, error)
        raise


def _pickle_entry(call: imports.Call) -> Any:
    content = call()
    if content is None:
        from . import unpicklable

        _note_bypass(unpicklable.not_saved(call.args[0]))
    return content


_UNCACHED = "why PyTorch caches a graph nowhere"
_BYPASSING: tuple[tuple[Hook, imports.Body], ...] = (
    (
        Hook(
            "torch._inductor.codecache",
            "FxGraphCache.prepare_key",
            f"notes {_UNCACHED}",
            f"a report does not say {_UNCACHED}",
            role="explain",
        ),
        _prepare_key,
    ),
    (
        Hook(
            "torch._functorch._aot_autograd.autograd_cache",
            "autograd_cache_key",
            f"notes {_UNCACHED}",
            f"a report does not say {_UNCACHED}",
            role="explain",
        ),
        _autograd_key,
    ),
    (
        Hook(
            "torch._inductor.codecache",
            "FxGraphCachePickler.dumps",
            "notes what a key could not be made of",
            "a report does not say which object keeps a graph out of the caches",
            role="explain",
        ),
        _dumps,
    ),
    (
        Hook(
            "torch._functorch._aot_autograd.autograd_cache",
            "AOTAutogradCache._pickle_entry",
            "notes what PyTorch cannot save of a trace",
            "a report does not say which object keeps a trace out of the caches",
            since="2.11",
            role="explain",
        ),
        _pickle_entry,
    ),
)
"""Functions that make keys, and the hook that notes why one makes none."""
HOOKS = (
    *(hook for hook, _ in _COUNTED),
    _WORKER_JOBS,
    _TRITON_KERNELS,
    *(hook for hook, _ in _BYPASSING),
)


def _note_bypass(reason: object) -> None:
    from . import unpicklable

    text = unpicklable.with_cause(" ".join(str(reason).split()))[:_LONGEST_REASON]
    if text not in bypassed and len(bypassed) < _MOST_REASONS:
        bypassed.append(text)


def _torch_counters() -> Counter[str]:
    """Return PyTorch's counters that concern caches, flattened; none if Dynamo is not imported."""
    utils = sys.modules.get("torch._dynamo.utils")
    flat: Counter[str] = Counter()
    for group in ("inductor", "aot_autograd", "benchmarking", "graph_break", "stats"):
        for name, count in dict(getattr(utils, "counters", {}).get(group, {})).items():
            flat[f"{group}.{str(name)[:200]}"] = count
    return flat
