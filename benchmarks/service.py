"""Run the service of the demo and the benchmarks: build a model, compile it, answer one request.

    python benchmarks/service.py bert            # PyTorch alone
    CACHESVC_NAME=demo/models python benchmarks/service.py bert

The first import is all that it knows of cachesvc, and does nothing unless CACHESVC_NAME is set. It is
told how else to start (mega-cache, eager, weights from a file) by options and prints one JSON line: seconds,
what was compiled, and how the output compares. ``first`` is from just before ``torch.compile`` (before the
load of a mega-cache) to the first output; ``process`` from the parent's start of this process (NaN if it did
not tell). The other seconds are those of consecutive steps: ``interpreter`` (up to this program's first
line), ``client`` (what counts the work of this process, and cachesvc's own imports), ``import`` (torch),
``libraries``, ``build``, ``weights``. Eager runs after the measurement, so that it warms nothing up.
"""

# ruff: noqa: E402  -- the clock begins before the imports
import time

BEGAN = time.monotonic()

import cachesvc_client.auto  # This import comes first: it works while the others are imported.

# isort: split
import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cachesvc_client
from cachesvc_client.hooks import counters

STARTED = "BENCHMARK_STARTED"
"""The variable with the parent's ``time.monotonic()``, which all processes of a machine share."""


def main() -> None:
    options = _options()
    started = float(os.environ.get(STARTED, "nan"))
    observer = _counting(options)
    seconds = {"interpreter": BEGAN - started}
    clock = _Clock(seconds, BEGAN)
    clock.took("client")
    import torch

    clock.took("import")
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    models = importlib.import_module("benchmarks.models")
    models.import_libraries(options.model)
    clock.took("libraries")
    with torch.device(options.device):
        model, inputs = getattr(models, options.model)()
    _synchronise()
    clock.took("build")
    if options.save_weights:
        _save_weights(model, options.save_weights)
        return
    if options.weights:
        _load_weights(model, options.weights, options.device)
        clock.took("weights")
    steps = _steps(options)
    begin = time.monotonic()
    if options.load:
        torch.compiler.load_cache_artifacts(options.load.read_bytes())
        clock.took("load")
    served = model if options.eager else torch.compile(model, mode=options.mode)
    with torch.no_grad():
        output = _tensor(served(**inputs))
        _synchronise()
        ready = time.monotonic()
        steps = steps and steps.answer()
        observed = observer.snapshot()
        output = output.clone()  # The next call of a CUDA graph overwrites it.
        seconds["first"] = ready - begin
        seconds["process"] = ready - started
        clock.took("first call")
        _tensor(served(**inputs))
        _synchronise()
        clock.took("second call")
        eager = _tensor(model(**inputs))
        if options.save:
            artifacts = torch.compiler.save_cache_artifacts()
            options.save.write_bytes(artifacts[0] if artifacts else b"")
        answer = _answer(options, seconds, observed, output, eager)
        print(json.dumps(answer | ({"steps": steps} if steps is not None else {})), flush=True)
        if options.blocks:
            _serve_blocks(lambda: served(**inputs))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a factory of benchmarks/models.py")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", type=Path, help="load the model's weights from this safetensors file")
    parser.add_argument("--save-weights", type=Path, help="write such a file, and do nothing else")
    parser.add_argument("--load", type=Path, help="a mega-cache to load before compiling")
    parser.add_argument("--save", type=Path, help="write the mega-cache of this process here")
    parser.add_argument("--keep", type=Path, help="write the output here")
    parser.add_argument("--keep-in", type=Path, help="write it into this folder, under the next number")
    parser.add_argument("--expect", type=Path, help="compare the output with a kept one")
    parser.add_argument(
        "--no-audit",
        action="store_true",
        help="do not list the started processes: Python's audit events make a trace up to twice as long",
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="wait for the restore first, and print what comparisons and keys take of the first call",
    )
    parser.add_argument("--step", action="append", default=[], help="a further function: STEP=module:name")
    parser.add_argument(
        "--blocks",
        action="store_true",
        help="then make as many calls as each line of stdin says, and print the seconds that they took; "
        "'launch N': without waiting for the GPU at the end; 'profile N': print a profile as JSON",
    )
    return parser.parse_args()


def _counting(options: argparse.Namespace) -> counters.Observer:
    """Begin to count what this process does. cachesvc and ``warm`` count traces where they attach; a measured
    process of PyTorch alone does it here."""
    observer = counters.start(audit=not options.no_audit)
    if STARTED in os.environ and not cachesvc_client.named():
        from cachesvc_client.kinds.frames.names import FRAME

        FRAME.install(counters.counter_of("frames_traced"))
    return observer


def _steps(options: argparse.Namespace) -> Any:
    """Wait for the restore and return what measures the steps of the first call, where that is asked for."""
    if not options.steps:
        return None
    from benchmarks.steps import Steps

    cachesvc_client.wait(60)
    steps = Steps(tuple(options.step))
    steps.wrap()
    return steps


class _Clock:
    """Measures the seconds of consecutive steps."""

    def __init__(self, seconds: dict[str, float], began: float) -> None:
        self._seconds, self._last = seconds, began

    def took(self, step: str) -> None:
        now = time.monotonic()
        self._seconds[step], self._last = now - self._last, now


def _synchronise() -> None:
    """Wait for the GPU, if this process uses one."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _save_weights(model: Any, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(model, str(path))


def _load_weights(model: Any, path: Path, device: str) -> None:
    from safetensors.torch import load_model

    load_model(model, path, device=device)
    _synchronise()


def _tensor(output: Any) -> Any:
    """Return the first tensor of the model's output."""
    return output if hasattr(output, "shape") else output[0]


def _serve_blocks(call: Callable[[], Any]) -> None:
    for line in sys.stdin:
        *what, count = line.split()
        if what == ["profile"]:
            print(json.dumps(_profile(call, int(count))), flush=True)
            continue
        begin = time.perf_counter()
        for _ in range(int(count)):
            call()
        launched = time.perf_counter()
        _synchronise()
        ended = launched if what == ["launch"] else time.perf_counter()
        print(ended - begin, flush=True)


def _profile(call: Callable[[], Any], count: int) -> dict[str, Any]:
    """Return the Python functions in which ``count`` calls spent the most, and what launches the kernels."""
    import cProfile
    import gc
    import pstats
    from collections import Counter

    profiler = cProfile.Profile()
    profiler.runcall(lambda: [call() for _ in range(count)])
    _synchronise()
    spent = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    most = sorted(spent.items(), key=lambda item: -item[1][2])[:30]
    tuners = [each for each in gc.get_objects() if type(each).__name__ == "CachingAutotuner"]
    kinds = (
        type(result).__name__ for each in tuners for result in getattr(each, "compile_results", ()) or ()
    )
    return {
        "functions": [
            [f"{Path(file).name}:{line} {name}", calls / count, 1e6 * own / count]
            for (file, line, name), (_, calls, own, _, _) in most
        ],
        "all": sum(entry[2] for entry in spent.values()) * 1e6 / count,
        "results of kernels": Counter(kinds),
        "launchers": Counter(len(each.launchers) for each in tuners),
    }


def _answer(
    options: argparse.Namespace, seconds: dict[str, float], observed: Any, output: Any, eager: Any
) -> dict[str, Any]:
    import torch

    from cachesvc_client.wire.codec import plain

    answer = {
        "model": options.model,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds": {step: round(spent, 4) for step, spent in seconds.items()},
        "observed": plain(observed),
        "difference": float((output - eager).abs().max()),
        "scale": float(eager.abs().max()),
    }
    keep = options.keep
    if options.keep_in:
        options.keep_in.mkdir(parents=True, exist_ok=True)
        keep = options.keep_in / f"{len(list(options.keep_in.iterdir())):02d}.pt"
    if keep:
        torch.save(output, keep)
    if options.expect:
        answer["same"] = bool(torch.equal(output, torch.load(options.expect)))
    if os.environ.get("CACHESVC_NAME"):
        from cachesvc_client.process.process import process

        report = cachesvc_client.report()
        answer["cachesvc"] = {
            "state": report.state,
            "reasons": list(report.reasons),
            "why_traced": list(process().all_kinds.explain(())),
            "seconds": report.seconds,
            "bytes_moved": report.bytes_moved,
            "files": sum(use.files for use in report.revisions),
        }
    return answer


if __name__ == "__main__":
    main()
