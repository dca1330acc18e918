"""What this process compiled, tuned and read: the one place that counts.

Sessions, `warm` and the tests use the same numbers. PyTorch's own counters cannot see rebuilt
``.so`` files, tuning, or work in compile workers (docs/pytorch.md, 7), so the functions that do the
work are wrapped. Wrappers only count; they run while something compiles and never per call of a
compiled model. With ``audit=True`` (`warm` and tests) every process that is started is listed too, by this
process, its forks and every Python child, such as Inductor's compile workers: an audit hook cannot be taken
off again, so services do not get one.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from . import child_processes, imports

_log = logging.getLogger("cachesvc")

_COUNTED: tuple[tuple[str, str, str], ...] = (
    ("torch._inductor.compile_fx", "fx_codegen_and_compile", "graphs_compiled"),
    ("torch._inductor.cpp_builder", "CppBuilder.build", "cpp_builds"),
    ("torch._inductor.cpp_builder", "run_compile_cmd", "cpp_commands"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.bench", "tuning_benchmarks"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.autotune_to_one_config", "tuning_runs"),
    (
        "torch._inductor.runtime.triton_heuristics",
        "CachingAutotuner._coordinate_descent_tuning",
        "tuning_runs",
    ),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache.benchmark_choices", "tuning_runs"),
    ("torch._inductor.codegen.multi_kernel", "MultiKernelCall.benchmark_sub_kernels", "tuning_runs"),
    ("triton.runtime.autotuner", "Autotuner._bench", "tuning_benchmarks"),
    ("triton.runtime.build", "_build", "cpp_builds"),
    ("triton.runtime.build", "_build", "cpp_commands"),
)
"""(module, function, count). Names of torch 2.11 and 2.13 and of Triton 3.6; a missing one is told
by `missing`."""

_COMPILATIONS = ("graphs_compiled", "cpp_builds", "triton_compilations", "worker_jobs", "extension_builds")
COMPILERS = (
    *("g++", "gcc", "c++", "cc", "cc1plus", "clang", "clang++", "ld", "as", "nvcc", "ptxas", "icpx"),
    "ninja",
)

_LONGEST_WHY, _MOST_WHYS = 200, 8

counts: Counter[str] = Counter()
spent: dict[str, float] = {}
"""Seconds inside what was counted, of the outermost call of each thread."""
_inside = threading.local()
_running: Counter[int] = Counter()
"""Calls of what is counted that have not returned yet, by thread."""
missing: set[str] = set()
bypassed: list[str] = []
"""Why PyTorch cached a graph neither for reading nor for writing, in its words; once each."""
_processes: list[str] = []
_installed = False
_owner = 0
"""The process that lists in memory; its children list in the log."""
_children: Path | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Counts since the observer was started; ``seconds`` by name; JSON-able by `wire.codec.plain`.

    ``compilations``: graphs that Inductor compiled, C++ libraries and extensions built, and Triton kernels
    compiled here or handed to a worker. ``tuning_runs``: kernels or choices that were tuned.
    ``processes``: what was started here, then what Python children started (audit only);
    ``compiler_processes``: those of them that are compilers, or compile commands run. ``seconds``: spent in
    this process, by what is counted. ``bypassed``: why PyTorch caches graphs of this process nowhere, in its
    words, once each: no entry can hold them.
    """

    compilations: int = 0
    tuning_runs: int = 0
    compiler_processes: int = 0
    graphs_compiled: int = 0
    cpp_builds: int = 0
    triton_compilations: int = 0
    worker_jobs: int = 0
    extension_builds: int = 0
    fx_hits: int = 0
    aot_hits: int = 0
    processes: tuple[str, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    bypassed: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing was compiled, tuned or started."""
        return not (self.compilations or self.tuning_runs or self.compiler_processes)


class Observer:
    """Counts from its making on. Several may run at once."""

    def __init__(self) -> None:
        self._before = Counter(counts)
        self._spent_before = dict(spent)
        self._processes_before = len(_processes), len(_started_by_children())
        self._counters_before = _torch_counters()
        self._bypassed_before = len(bypassed)

    def snapshot(self) -> Observation:
        """What happened so far. Imports nothing; microseconds, and under ``audit`` a small file read."""
        now = counts - self._before
        here, by_children = self._processes_before
        processes = (*_processes[here:], *_started_by_children()[by_children:])
        counters = _torch_counters()
        counters.subtract(self._counters_before)
        compilers = sum(Path(name).name.split("-")[0] in COMPILERS for name in processes)
        return Observation(
            compilations=sum(now[name] for name in _COMPILATIONS),
            tuning_runs=now["tuning_runs"] + (now["tuning_benchmarks"] > 0 and not now["tuning_runs"]),
            compiler_processes=max(compilers, now["cpp_commands"]),
            graphs_compiled=now["graphs_compiled"],
            cpp_builds=now["cpp_builds"],
            triton_compilations=now["triton_compilations"],
            worker_jobs=now["worker_jobs"],
            extension_builds=now["extension_builds"],
            fx_hits=counters["inductor.fxgraph_cache_hit"],
            aot_hits=counters["aot_autograd.autograd_cache_hit"],
            processes=processes,
            counters={name: count for name, count in sorted(counters.items()) if count},
            missing=tuple(sorted(missing)),
            seconds={
                name: round(total - self._spent_before.get(name, 0.0), 4)
                for name, total in sorted(spent.items())
                if total > self._spent_before.get(name, 0.0)
            },
            bypassed=tuple(bypassed[self._bypassed_before :]),
        )


def compiling() -> bool:
    """Whether some thread is inside of what is counted. Microseconds."""
    return any(list(_running.values()))


def start(audit: bool = False) -> Observer:
    """Puts the wrappers in place (once per process) and starts to count.

    ``audit``: lists started processes too; from then on PYTHONPATH and CACHESVC_OBSERVE reach children.
    Raises ``OSError`` only if there is no place for the children's log.
    """
    global _installed, _owner, _children
    if not _installed:
        _installed = True
        imports.on_disarm(_not_installed)
        os.register_at_fork(after_in_child=_running.clear)
        for module, path, count in _COUNTED:
            imports.when_imported(module, functools.partial(_put_around, path, counter_of(count)))
        imports.when_imported("torch._inductor.compile_worker.subproc_pool", _count_worker_jobs)
        imports.when_imported("triton.knobs", _count_triton)
        for module, path, body in _BYPASSING:
            imports.when_imported(module, functools.partial(_put_around, path, body))
    if audit and _children is None:
        _owner, _children = os.getpid(), child_processes.open_log()
        sys.addaudithook(_audit)
    return Observer()


def _not_installed() -> None:
    global _installed
    _installed = False


def follow(log: str) -> None:
    """Lists what this process starts in its parent's log; for `bootstrap`. Nothing is counted here."""
    global _children
    if _children is None:
        _children = Path(log)
        child_processes.lead()
        sys.addaudithook(_audit)


def _started_by_children() -> list[str]:
    return child_processes.started(_children) if _children is not None else []


def _saw(program: str) -> None:
    if os.getpid() == _owner:
        _processes.append(program)
    elif _children is not None:
        child_processes.append(_children, program)


def _put_around(path: str, body: imports.Body, module: ModuleType) -> None:
    if not imports.hook(module, path, body):
        missing.add(f"{module.__name__}.{path}")


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
    job = call.args[1] if len(call.args) > 1 else call.kwargs.get("job_fn")
    if getattr(job, "__name__", "") != "_get_ready":
        counts["worker_jobs"] += 1
    return call()


def _count_worker_jobs(module: ModuleType) -> None:
    if not imports.hook(module, "SubprocPool.submit", _submit):
        missing.add("SubprocPool.submit")


def _count_triton(knobs: ModuleType) -> None:
    compilation = getattr(knobs, "compilation", None)
    if compilation is None or not hasattr(compilation, "listener"):
        missing.add("triton.knobs.compilation.listener")
        return
    imports.chain(compilation, "listener", _compiled_by_triton)


def _compiled_by_triton(**event: Any) -> None:
    if event.get("cache_hit"):
        return
    counts["triton_compilations"] += 1
    microseconds = getattr(event.get("times"), "total", 0)  # triton.knobs.CompileTimes, since 3.4
    name = "triton_compilations"
    if isinstance(microseconds, (int, float)):
        spent[name] = spent.get(name, 0.0) + microseconds / 1e6


def _prepare_key(call: imports.Call) -> Any:
    """Answers no key, and why, for a graph that is compiled without a look into any cache."""
    answer = call()
    if isinstance(answer, tuple) and len(answer) == 2 and answer[0] is None:
        _bypass(dict(answer[1]).get("cache_bypass_reason"))
    return answer


def _autograd_key(call: imports.Call) -> Any:
    try:
        return call()
    except Exception as error:
        _bypass(error)
        raise


_BYPASSING: tuple[tuple[str, str, imports.Body], ...] = (
    ("torch._inductor.codecache", "FxGraphCache.prepare_key", _prepare_key),
    ("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", _autograd_key),
)


def _bypass(why: object) -> None:
    text = " ".join(str(why).split())[:_LONGEST_WHY]
    if text not in bypassed and len(bypassed) < _MOST_WHYS:
        bypassed.append(text)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        _saw(_named(_text(arguments[0]), arguments[1]))
    elif event == "os.system":
        _saw(_text(arguments[0]).split(" ")[0])


def _named(program: str, command: Any) -> str:
    """The program; with its argument where Triton asks ptxas, which is a part of its own package, for the
    version that is in every kernel's key (``triton/backends/nvidia/compiler.py``): that compiles nothing."""
    words = [_text(word) for word in command] if isinstance(command, (list, tuple)) else []
    if os.path.basename(program).startswith("ptxas") and words[1:] == ["--version"]:
        return f"{program} --version"
    return program


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _torch_counters() -> Counter[str]:
    """PyTorch's counters that tell of caches, flattened; empty if Dynamo is not imported."""
    utils = sys.modules.get("torch._dynamo.utils")
    flat: Counter[str] = Counter()
    for group in ("inductor", "aot_autograd", "benchmarking", "graph_break", "stats"):
        for name, count in dict(getattr(utils, "counters", {}).get(group, {})).items():
            flat[f"{group}.{str(name)[:200]}"] = count
    return flat


# What was read -------------------------------------------------------------------------------

_IN_ACCESS, _IN_MOVED_TO, _IN_CREATE, _IN_ISDIR = 0x1, 0x80, 0x100, 0x40000000
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")


class ReadWatch:
    """Which files under ``root`` are read, by anybody, C++ and child processes included.

    inotify's IN_ACCESS (IN_OPEN would also tell of lock files), with a self-test; where it does not
    work (a limit, a file system without events), or where the queue overflowed, access times that
    were set back before are compared. Files that are only stat'ed are not seen by either.

    >>> with ReadWatch(root) as watch: ...       # doctest: +SKIP
    >>> watch.read()                             # relative paths
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.method = "inotify"
        self._seen: set[str] = set()
        self._folders: dict[int, str] = {}
        self._fd = -1
        self._stop = threading.Event()
        self._overflow = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ReadWatch:
        self._set_times_back()
        try:
            self._begin()
            self._self_test()
        except OSError as error:
            _log.debug("inotify is not usable here (%s): access times instead", error)
            self.method = "atime"
            self._end()
        self._seen.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._overflow:
            self.method = "atime"

    def read(self) -> set[str]:
        """Relative paths of the regular files that were read while the watch was open."""
        if self.method == "atime":
            return {path for path, entry in self._files() if entry.stat().st_atime > 1.0}
        return {path for path in self._seen if (self.root / path).is_file()}

    def _files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        waiting = [self.root]
        while waiting:
            for entry in os.scandir(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield os.path.relpath(entry.path, self.root), entry

    def _set_times_back(self) -> None:
        for _, entry in self._files():
            facts = entry.stat()
            os.utime(entry.path, (0.0, max(facts.st_mtime, 1.0)))

    def _begin(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._watch(str(self.root))
        self._thread = threading.Thread(target=self._run, name="cachesvc-reads", daemon=True)
        self._thread.start()

    def _watch(self, folder: str) -> None:
        import ctypes

        mask = _IN_ACCESS | _IN_CREATE | _IN_MOVED_TO
        descriptor = self._add_watch(self._fd, os.fsencode(folder), mask)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
        self._folders[descriptor] = folder
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                self._watch(entry.path)

    def _self_test(self) -> None:
        import tempfile

        with tempfile.NamedTemporaryFile(dir=self.root, prefix=".cachesvc-") as probe:
            probe.write(b"x")
            probe.flush()
            Path(probe.name).read_bytes()
            name, end = os.path.basename(probe.name), time.monotonic() + 2
            while name not in self._seen:
                if time.monotonic() > end:
                    raise OSError("no event for a file that was read")
                time.sleep(0.005)

    def _run(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._fd], [], [], 0.05)
            if ready:
                self._take(os.read(self._fd, 1 << 16))
        try:
            while chunk := os.read(self._fd, 1 << 16):
                self._take(chunk)
        except BlockingIOError:
            pass

    def _take(self, chunk: bytes) -> None:
        offset = 0
        while offset < len(chunk):
            descriptor, mask, _, length = _EVENT.unpack_from(chunk, offset)
            name = os.fsdecode(chunk[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0"))
            offset += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                self._overflow = True
                continue
            path = os.path.join(self._folders.get(descriptor, str(self.root)), name)
            if mask & _IN_ISDIR:
                if mask & (_IN_CREATE | _IN_MOVED_TO):
                    self._watch_new(path)
            elif mask & _IN_ACCESS:
                self._seen.add(os.path.relpath(path, self.root))

    def _watch_new(self, folder: str) -> None:
        try:
            self._watch(folder)
        except OSError:
            self._overflow = True

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
