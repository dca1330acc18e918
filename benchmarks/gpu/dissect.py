"""Show where the seconds of a full hit go, and what candidate changes save, in one process of a row.

    python benchmarks/gpu/dissect.py ROW.json --answer FILE [--cut NAME] [--main idle|busy|free] [--sample]

`matrix.py --steps dissect` starts these processes, alternating. ``--main`` is what the main thread does for
two seconds between the import of torch and the model: *idle* waits as for I/O, *busy* computes in Python,
which shares the interpreter's lock with whatever a cut does in the background; *free* is no such time.
``--sample`` looks at the main thread's stack every 2 ms of the first call: seconds by part, and the functions
in which they are spent; it slows the process down, so its seconds are shares, not times to compare.
"""

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
SECONDS = 2.0
EVERY = 0.002
STAY = 0.02
"""Seconds from which one call is reported by itself."""
STAY_FRAMES = 6
IMPORTS = (
    "torch._dynamo.convert_frame",
    "torch._inductor.compile_fx",
    "torch._functorch.aot_autograd",
    "torch._inductor.codecache",
    "torch._inductor.runtime.triton_heuristics",
)
PARTS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("cachesvc: waiting", (("cachesvc_client", "wait"),)),
    ("imports", (("<frozen importlib._bootstrap>", "_find_and_load"),)),
    ("key: torch_key", (("torch/_inductor/codecache", "torch_key"),)),
    ("key: triton_key", (("triton/runtime/cache", "triton_key"), ("utils/_triton", "triton_key"))),
    ("key: triton backend", (("triton/backends", ""), ("utils/_triton", ""))),
    ("schemas of operators", (("torch/_library", ""), ("torch/library", ""), ("fx/operator_schemas", ""))),
    ("CUDA graphs", (("torch/_inductor/cudagraph_trees", ""),)),
    ("guards", (("torch/_dynamo/guards", ""),)),
    ("cubin and launcher load", (("static_", ""), ("triton_heuristics", ""), ("triton/compiler", ""))),
    ("triton bundle", (("triton_bundler", ""),)),
    ("FX load", (("_inductor/codecache", "_lookup_graph"), ("_inductor/output_code", "post_compile"))),
    ("FX key", (("_inductor/codecache", "compiled_fx_graph_hash"), ("_inductor/codecache", "prepare_key"))),
    ("AOT load and key", (("_aot_autograd/autograd_cache", ""), ("_aot_autograd/aot_autograd_result", ""))),
    ("AOT, other", (("_functorch", ""),)),
    ("backend, other", (("torch/_inductor", ""),)),
    ("running the graph", (("torch/_inductor/output_code", "__call__"),)),
    ("trace: fake tensors", (("torch/_subclasses", ""), ("torch/_prims", ""), ("torch/_refs", ""))),
    ("trace: bytecode", (("torch/_dynamo/symbolic_convert", ""), ("torch/_dynamo", ""))),
)
"""Parts, as (piece of the file's path, function; empty: any). A sample goes to the first part of this list
that has a frame on the stack: inner and narrow parts come before the parts around them."""


def main() -> None:
    options = _options()
    row = json.loads(options.row.read_text())
    if options.cut in TAKEN_OUT:
        TAKEN_OUT[options.cut]()
    began = time.perf_counter()
    import cachesvc_client.auto

    attached = time.perf_counter()
    from cachesvc_client.hooks import counters
    from cachesvc_client.wire.codec import plain

    observer = counters.start(audit=options.cut == "audit")
    import torch

    imported = time.perf_counter()
    CUTS.get(options.cut, _nothing)(torch)
    cut = time.perf_counter()
    worked = _between(options.main)
    import outputs
    import workloads

    begin_build = time.perf_counter()
    run = workloads.prepare(row)
    workloads.synchronise()
    built = time.perf_counter()
    _just_before(options.cut)
    sampler = Sampler() if options.sample else None
    collecting = Collecting()
    with sampler or contextlib.nullcontext():
        begin = time.perf_counter()
        run(workloads.compiler(row))
        workloads.synchronise()
        ready = time.perf_counter()
    collecting.end()
    observed = observer.snapshot()
    report, figures = cachesvc_client.report(), metrics()
    answer: dict[str, Any] = {
        "first": ready - begin,
        "collecting": collecting.seconds,
        "second": _again(run, workloads, row),
        "attach": attached - began,
        "import": imported - attached,
        "cut": cut - imported,
        "between": worked,
        "build": built - begin_build,
        "process": ready - began,
        "state": report.state,
        "seconds": report.seconds,
        "counts": {name: plain(observed)[name] for name in ("compilations", "tuning_runs")},
        "torch": figures,
    }
    if sampler is not None:
        answer["samples"] = sampler.seconds_by_part()
    outputs.own(options.answer).write_text(json.dumps(answer))
    workloads.end()
    os._exit(0)  # process.py does the same.


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", type=Path)
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--cut", choices=[*CUTS, *TAKEN_OUT], default="none")
    parser.add_argument("--main", choices=("free", "idle", "busy"), default="free")
    parser.add_argument("--sample", action="store_true")
    return parser.parse_args()


# Candidate changes ------------------------------------------------------------------------------


def _nothing(_: Any) -> None:
    pass


def _in_background(work: Callable[[], None]) -> Callable[[Any], None]:
    def start(_: Any) -> None:
        threading.Thread(target=work, name="cut", daemon=True).start()

    return start


def _import_all() -> None:
    for name in IMPORTS:
        importlib.import_module(name)


def _import_now(_: Any) -> None:
    _import_all()


def _keys() -> None:
    """Compute the parts of every key that the first compile computes: torch's sources, Triton's backend."""
    from torch._inductor import codecache

    codecache.torch_key()
    with contextlib.suppress(Exception):  # There is no Triton.
        from torch.utils import _triton

        _triton.triton_hash_with_backend()


def _prime() -> None:
    import cachesvc_client

    cachesvc_client.prime()


def _one_compile_thread(_: Any) -> None:
    import torch._inductor.config as config

    config.compile_threads = 1


CUTS: dict[str, Callable[[Any], None]] = {
    "none": _nothing,
    "imports in the background": _in_background(_import_all),
    "keys in the background": _in_background(_keys),
    "prime in the background": _in_background(_prime),
    "imports on the main thread": _import_now,
    "no worker pool": _one_compile_thread,
    "no garbage collection": _nothing,
    "frozen garbage": _nothing,
    "audit": _nothing,
}
"""Candidate changes; none changes a key or a result. Those of the garbage collector act just before the first
call. *audit* is the price that `warm` and the tests pay for the list of started processes."""


def _collector_as_it_is() -> None:
    os.environ["CACHESVC_HOLD_COLLECTOR"] = "0"


def _key_when_asked() -> None:
    from cachesvc_client.kinds.triton.key import TritonKey

    TritonKey._begin = lambda _self, _package: None  # type: ignore[method-assign, assignment]


def _without_both() -> None:
    _collector_as_it_is()
    _key_when_asked()


TAKEN_OUT: dict[str, Callable[[], None]] = {
    "collector not held": _collector_as_it_is,
    "key when asked": _key_when_asked,
    "without both": _without_both,
}
"""Cuts that the client makes; each is taken out before the attach."""


def _just_before(cut: str) -> None:
    if cut == "no garbage collection":
        gc.disable()
    if cut == "frozen garbage":
        gc.freeze()


def _between(kind: str) -> float:
    """Run the main thread's work of the time in between. Return its seconds."""
    begin = time.perf_counter()
    if kind == "idle":
        time.sleep(SECONDS)
    elif kind == "busy":
        total = 0
        for number in range(20_000_000):
            total += number & 3
    return time.perf_counter() - begin


def _again(run: Callable[..., Any], workloads: Any, row: dict[str, Any]) -> float:
    """Run the same calls again, compiled anew: this time is spent in every compile, and not once per
    process."""
    import torch

    torch._dynamo.reset()
    begin = time.perf_counter()
    run(workloads.compiler(row))
    workloads.synchronise()
    return time.perf_counter() - begin


# Results ----------------------------------------------------------------------------------------


def metrics() -> dict[str, Any]:
    """Return PyTorch's own metrics: seconds by phase (they nest), and its log of each compilation."""
    import torch._dynamo.utils as utils

    phases = {name: round(sum(times), 4) for name, times in utils.compilation_time_metrics.items()}
    logged = []
    for item in utils.get_compilation_metrics()[:4]:
        facts = vars(item) if hasattr(item, "__dict__") else {}
        logged.append(
            {
                name: value
                for name, value in facts.items()
                if isinstance(value, (int, float))
                and value
                and ("_us" in name or "_s" in name or "time" in name)
            }
        )
    return {"phases": dict(sorted(phases.items(), key=lambda item: -item[1])[:60]), "compilations": logged}


class Collecting:
    """Counts the ``seconds`` that Python's garbage collector takes, by generation, until the end."""

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0, 0.0]
        self._began = 0.0
        gc.callbacks.append(self._called)

    def end(self) -> None:
        gc.callbacks.remove(self._called)
        self.seconds = [round(seconds, 4) for seconds in self.seconds]

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds[info["generation"]] += time.perf_counter() - self._began


class Sampler:
    """Looks at the stack of the thread that enters it, every 2 ms."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.self_time: Counter[str] = Counter()
        self.inclusive: Counter[str] = Counter()
        self.stays: list[tuple[float, float, str]] = []
        self.taken = 0
        self._thread = threading.get_ident()
        self._stop = threading.Event()
        self._before = sys.getswitchinterval()

    def __enter__(self) -> "Sampler":
        sys.setswitchinterval(0.0005)
        self._began = time.perf_counter()
        threading.Thread(target=self._run, name="sampler", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._seconds = time.perf_counter() - self._began
        sys.setswitchinterval(self._before)

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self._stay(frame, time.perf_counter() - self._began)
                self._take(frame)

    def _stay(self, frame: FrameType, now: float) -> None:
        """Note where the thread is and was at the last look: in one call that does not return."""
        where = " < ".join(
            f"{Path(item.f_code.co_filename).name}:{item.f_lineno}"
            for item in itertools.islice(_upwards(frame), STAY_FRAMES)
        )
        if self.stays and self.stays[-1][2] == where:
            self.stays[-1] = (self.stays[-1][0], now, where)
        else:
            self.stays.append((now, now, where))

    def _take(self, frame: FrameType) -> None:
        stack = [(item.f_code.co_filename, item.f_code.co_name) for item in _upwards(frame)]
        self.taken += 1
        self.parts[_part(stack)] += 1
        named = [f"{os.sep.join(file.split(os.sep)[-3:])}:{name}" for file, name in stack]
        self.self_time[named[0]] += 1
        self.inclusive.update(set(named))

    def seconds_by_part(self) -> dict[str, Any]:
        """Return seconds by part; ``taken`` samples stand for the whole first call."""
        each = self._seconds / max(1, self.taken)

        def seconds(counted: Counter[str], most: int) -> dict[str, float]:
            return {name: round(count * each, 3) for name, count in counted.most_common(most)}

        return {
            "taken": self.taken,
            "parts": seconds(self.parts, 40),
            "self": seconds(self.self_time, 60),
            "inclusive": seconds(self.inclusive, 160),
            "stays": [
                {"at": round(begin, 3), "seconds": round(end - begin, 3), "where": where}
                for begin, end, where in self.stays
                if end - begin >= STAY
            ],
        }


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _part(stack: list[tuple[str, str]]) -> str:
    if "cachesvc_client" in stack[0][0]:
        return "cachesvc: hooks"
    for part, marks in PARTS:
        for piece, function in marks:
            for file, name in stack:
                if piece in file and (not function or name == function):
                    return part
    return "the call itself"


if __name__ == "__main__":
    main()
