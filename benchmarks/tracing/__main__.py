"""Measure what a start without tracing would take and keep: ``python -m benchmarks.tracing``.

For each model, a builder records what Dynamo made of its frames (`frames`). Then fresh processes start in
turn, ``--rounds`` times: with the recorded frames, and with PyTorch's own caches as an earlier process left
them. The table has the medians of the first call. Then a service differs from the builder in 18 ways, one at
a time: a frame that is used with other numbers than eager's would be a false hit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, Host
from benchmarks.tracing.differences import DIFFERENCES

PROGRAM = Path(__file__).parent / "process.py"
RESULTS = ROOT / "benchmarks" / "results" / "tracing.json"
MODELS = ("bert", "llama", "vit")
Answer = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--versions", nargs="+", default=[""], help="of .torch; by default the torch here")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--machine", help="words for the results, such as the name of the GPU")
    parser.add_argument("--differences", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: Answer = json.loads(options.json.read_text()) if options.json.exists() else {}
    for version in options.versions:
        python = str(ROOT / ".torch" / version / "bin" / "python") if version else sys.executable
        told = subprocess.check_output([python, "-c", "import torch; print(torch.__version__)"], text=True)
        result = results.setdefault(f"{told.strip()} {options.device}", {"models": {}})
        result["date"] = time.strftime("%Y-%m-%d")
        result["machine"] = options.machine or f"{os.cpu_count()} cores, {platform.machine()}"
        for name in options.models:
            with tempfile.TemporaryDirectory(prefix="cachesvc-tracing-") as folder:
                result["models"][name] = measure(python, name, Path(folder), options)
            options.json.write_text(json.dumps(results, indent=1) + "\n")
            print(row(name, result["models"][name]), flush=True)
    return int(any(false_hits(model) for result in results.values() for model in result["models"].values()))


def measure(python: str, model: str, folder: Path, options: argparse.Namespace) -> Answer:
    """Return what was recorded, the answers of each way in the order of their runs, and the differences."""
    host, file = Host(folder / model), folder / f"{model}.frames"

    def run(way: str, *caches: str) -> Answer:
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder.joinpath(model, *caches))}
        done = subprocess.run(
            [python, "-W", "ignore", str(PROGRAM), model, way, str(file), options.device],
            env=host.environment() | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{model}, {way}: {done.stderr[-3000:]}")
        answer: Answer = json.loads(done.stdout.splitlines()[-1])
        return answer

    recorded = run("record", "builder")
    for _ in range(2):
        run("pytorch", "own")
    ways: dict[str, list[Answer]] = {"frames": [], "pytorch": []}
    for _ in range(options.rounds):
        ways["frames"].append(run("frames", "builder"))
        ways["pytorch"].append(run("pytorch", "own"))
    if not options.differences:
        return {"recorded": recorded, **ways, "differences": {}}
    if options.device == "cpu":
        return {"recorded": recorded, **ways, **run("differences", "builder")}
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda name: run(f"difference {name}", "builder"), DIFFERENCES)
        return {"recorded": recorded, **ways, "differences": dict(zip(DIFFERENCES, answers, strict=True))}


def median(answers: list[Answer], name: str) -> float:
    return statistics.median(answer[name] for answer in answers)


def false_hits(model: Answer) -> list[str]:
    """Return the differences under which a frame was used and the numbers are not eager's."""
    tried = model["differences"].items()
    return [name for name, answer in tried if answer.get("used") and not answer["right"]]


def row(name: str, model: Answer) -> str:
    """Return a model's line of the table."""
    ours, theirs = model["frames"], model["pytorch"]
    first, own = median(ours, "first"), median(theirs, "first")
    graphs = statistics.median(answer["seconds"].get("graphs", 0) for answer in ours)
    recorded, tried = model["recorded"], [one for one in model["differences"].values() if "used" in one]
    used = sum(bool(one["used"]) for one in tried)
    traced = sum(answer["traced"] for answer in ours)
    same = all(answer["same"] for answer in ours)
    steady = median(ours, "steady") / median(theirs, "steady")
    return (
        f"{name:9} first call {first:.2f} s ({graphs:.2f} of it loads the graphs), "
        f"PyTorch {own:.2f} s: {first / own:.2f}; traces {traced}; "
        f"builder's bits: {'yes' if same else 'NO'}; steady {steady:.2f}; "
        f"{recorded['guards']} guards, {recorded['by identity']} of them by identity; "
        f"{recorded['bytes'] / 1e6:.1f} MB; "
        f"{len(tried)} differences, {used} used, {len(false_hits(model))} false hits"
    )


if __name__ == "__main__":
    sys.exit(main())
