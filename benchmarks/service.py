"""Run the service of the demo and the benchmarks: build a model, compile it, answer one request.

    python benchmarks/service.py bert            # PyTorch alone
    CACHESVC_NAME=demo/models python benchmarks/service.py bert

The first import is all that it knows of cachesvc, and does nothing unless CACHESVC_NAME is set. It is
told how else to start (mega-cache) by options and prints one JSON line: seconds, what was compiled, and
how the output compares. ``first`` is from just before ``torch.compile`` (before the load of a mega-cache)
to the first output; ``process`` from the parent's start of this process (NaN if it did not tell). Eager
runs after the measurement, so that it warms nothing up.
"""

import cachesvc_client.auto  # This import comes first: it works while the others are imported.

# isort: split
import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import cachesvc_client
from cachesvc_client.hooks import counters
from cachesvc_client.wire.codec import plain

STARTED = "BENCHMARK_STARTED"
"""The variable with the parent's ``time.monotonic()``, which all processes of a machine share."""


def main() -> None:
    options = _options()
    observer = counters.start(audit=True)
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    import torch

    clock.took("import")
    model, inputs = _built(options.model)
    clock.took("build")
    begin = time.monotonic()
    if options.load:
        torch.compiler.load_cache_artifacts(options.load.read_bytes())
        clock.took("load")
    compiled = torch.compile(model, mode=options.mode)
    with torch.no_grad():
        output = _tensor(compiled(**inputs))
        ready = time.monotonic()
        observed = observer.snapshot()
        seconds["first"] = ready - begin
        seconds["process"] = ready - float(os.environ.get(STARTED, "nan"))
        clock.took("first call")
        _tensor(compiled(**inputs))
        clock.took("second call")
        eager = _tensor(model(**inputs))
    if options.save:
        artifacts = torch.compiler.save_cache_artifacts()
        options.save.write_bytes(artifacts[0] if artifacts else b"")
    print(json.dumps(_answer(options, seconds, plain(observed), output, eager)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a factory of benchmarks/models.py")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--load", type=Path, help="a mega-cache to load before compiling")
    parser.add_argument("--save", type=Path, help="write the mega-cache of this process here")
    parser.add_argument("--keep", type=Path, help="write the output here")
    parser.add_argument("--expect", type=Path, help="compare the output with a kept one")
    return parser.parse_args()


class _Clock:
    """Measures the seconds of consecutive steps."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def took(self, step: str) -> None:
        now = time.monotonic()
        self._seconds[step], self._last = now - self._last, now


def _built(name: str) -> tuple[Any, dict[str, Any]]:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    models = importlib.import_module("benchmarks.models")
    model_and_inputs: tuple[Any, dict[str, Any]] = getattr(models, name)()
    return model_and_inputs


def _tensor(output: Any) -> Any:
    """Return the first tensor of the model's output."""
    return output if hasattr(output, "shape") else output[0]


def _answer(
    options: argparse.Namespace, seconds: dict[str, float], observed: Any, output: Any, eager: Any
) -> dict[str, Any]:
    import torch

    answer = {
        "model": options.model,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds": {step: round(spent, 4) for step, spent in seconds.items()},
        "observed": observed,
        "difference": float((output - eager).abs().max()),
        "scale": float(eager.abs().max()),
    }
    if options.keep:
        torch.save(output, options.keep)
    if options.expect:
        answer["same"] = bool(torch.equal(output, torch.load(options.expect)))
    if os.environ.get("CACHESVC_NAME"):
        report = cachesvc_client.report()
        answer["cachesvc"] = {
            "state": report.state,
            "reasons": list(report.reasons),
            "seconds": report.seconds,
            "bytes_moved": report.bytes_moved,
            "files": sum(use.files for use in report.revisions),
        }
    return answer


if __name__ == "__main__":
    main()
