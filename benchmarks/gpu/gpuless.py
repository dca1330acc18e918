"""Prove on a GPU what was compiled without one.

    benchmarks/gpu/gpuless.sh FOLDER DESCRIPTION                 makes the bundles, on a machine without a GPU
    python benchmarks/gpu/gpuless.py --bundles FOLDER --out DIR  restores them, on the GPU

For each bundle one process on an empty host restores it, with a PATH without compilers, compiles and calls
the row's model, and counts compilations, tuning runs and compilers; its outputs are compared with eager ones
of the same process. A cold process has nothing: its steady times say what choices without timing cost. One
more process starts in the folders that the first one left. ``other_gpu`` is a bundle for another GPU: it must
not be restored. Writes ``gpuless.json``. Exit status 0 if all is so.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path[0:1] = [str(HERE), str(TREE), str(TREE / "client")]

OTHER = "other_gpu"
"""Name of the bundle for another GPU; its row is `OTHER_ROW`."""
OTHER_ROW = "mlp"
STEPS = ("restored", "cold", "again")
STEP_SECONDS = 45
"""Seconds that a step needs at most: it is not begun with less left."""
COUNTS = ("compilations", "tuning_runs", "compiler_processes")
RANDOM = ("dropout",)
"""Rows whose outputs are random."""
TURNS, CALLS = 30, 20
"""Number of timed turns of calls, and of calls in each turn."""
TOLERANCE = {"float32": (1e-4, 1e-4), "bfloat16": (2e-2, 2e-2)}
"""Relative and absolute tolerance against eager, by the dtype of an output."""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--bundles", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=540, help="seconds")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", default="", help=argparse.SUPPRESS)
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options.bundle, options.reference)))
        sys.stdout.flush()
        os._exit(0)  # at exit PyTorch waits for its compile workers
    return prove(options)


def prove(options: argparse.Namespace) -> int:
    """Measure all bundles, and say which are as they should be."""
    from benchmarks.conditions import gpus
    from benchmarks.hosts import compile_packages, use_this_tree

    use_this_tree()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpus": gpus(),
        "python": sys.version,
        "rows": {},
    }
    bundles = sorted(options.bundles.resolve().glob("*.cachesvc"))
    rows = result["rows"] = {bundle.stem: {"bundle": bundle.stat().st_size} for bundle in bundles}
    with tempfile.TemporaryDirectory() as folder:
        compile_packages(Path(folder, "bytecode"))
        for step in STEPS:  # what matters most for all bundles first, since the time may end
            for bundle in bundles:
                left = options.budget - (time.monotonic() - begin)
                if left > STEP_SECONDS and (bundle.stem != OTHER or step == "restored"):
                    rows[bundle.stem] |= run_step(Path(folder, bundle.stem), bundle, step)
                    print(bundle.stem, step, short(rows[bundle.stem][step]), flush=True)
                    (options.out / "gpuless.json").write_text(json.dumps(result, indent=1))
    result["problems"] = [f"{name}: {reason}" for name, row in rows.items() for reason in judge(name, row)]
    (options.out / "gpuless.json").write_text(json.dumps(result, indent=1))
    print(*result["problems"] or ["all as it should be"], sep="\n")
    return 1 if result["problems"] else 0


def run_step(folder: Path, bundle: Path, step: str) -> dict[str, Any]:
    """Run one process of a bundle. Return its answer by the name of the step."""
    from benchmarks.hosts import Failed, Host, trap

    host = Host(folder / ("cold" if step == "cold" else "fresh"))
    arguments = ["--row", OTHER_ROW if bundle.stem == OTHER else bundle.stem]
    arguments += ["--reference", str(folder / "outputs.pt")]
    variables = {name: os.environ[name] for name in ("CC", "CXX") if name in os.environ}  # CXX is in keys
    traps = folder / f"traps-{step}"
    if step != "cold":
        arguments += ["--bundle", str(bundle)]
        variables |= {"CACHESVC_TRUSTED_KEYS": (bundle.parent / "key").read_text().strip()}
        variables |= {"CACHESVC_LANE": "unproven", "CACHESVC_KEEP_OWN": "0"}
        if bundle.stem != OTHER:  # that process has to compile
            variables["PATH"] = str(trap(traps))
    try:
        out, errors = host.run(__file__, *arguments, **variables)
        answer = json.loads(out.splitlines()[-1])
        answer["log"] = [line[-300:] for line in errors.splitlines() if "cachesvc" in line][-6:]
        called = traps / "called"
        answer["compilers_called"] = called.read_text().splitlines()[:9] if called.exists() else []
        return {step: answer}
    except (Failed, ValueError, IndexError) as error:
        return {step: {"error": str(error)[-1500:]}}


def judge(name: str, row: dict[str, Any]) -> list[str]:
    """Return what is not as it should be."""
    missing = "restored" not in row
    errors = [f"{step}: {row[step]['error'][-200:]}" for step in STEPS if "error" in row.get(step, {})]
    if errors or missing:
        return errors or ["the budget was over"]
    restored = row["restored"]
    if name == OTHER:
        return [] if restored["compilations"] and restored["close_to_eager"] else ["restored for another GPU"]
    reasons = []
    for step in (step for step in ("restored", "again") if step in row):
        part = row[step]
        reasons += [f"{step}: {part[key]} {key}" for key in COUNTS if part[key]]
        reasons += [f"{step} called {line}" for line in part["compilers_called"] if "--version" not in line]
        reasons += [] if part["close_to_eager"] or name in RANDOM else [f"{step}: other numbers than eager"]
    return reasons


def short(part: dict[str, Any]) -> str:
    """Return the numbers of a step on one line."""
    if "error" in part:
        return str(part["error"])[-300:]
    counts = "/".join(str(part[key]) for key in COUNTS)
    times = f"steady {part['steady_us']:.0f} us, eager {part['eager_us']:.0f} us"
    return f"{part['first']:.2f} s, {counts}, close {part['close_to_eager']}, {times}"


def measure(name: str, bundle: str, reference: Path) -> dict[str, Any]:
    """Compile and call one row in this process, restored where there is a bundle."""
    import cachesvc_client
    from cachesvc_client.hooks import counters

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    observer = counters.start(audit=True)
    session = cachesvc_client.attach(bundle=bundle) if bundle else None
    import gpuless_models
    import torch

    factory, how, grad = gpuless_models.ROWS[name]
    torch.manual_seed(0)
    module, inputs = getattr(gpuless_models, factory)()
    module.eval().to("cuda")
    inputs = {key: value.to("cuda") for key, value in inputs.items()}
    mode = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[grad]
    with mode():
        eager = tensors(module(**inputs))
        torch.cuda.synchronize()
        if session is not None:
            session.wait(60)
        begin = time.perf_counter()
        compiled = torch.compile(module, **how)
        first = [item.clone() for item in tensors(compiled(**inputs))]
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        counts = observer.snapshot()
        answer = {
            "first": seconds,
            "compilations": counts.compilations,
            "tuning_runs": counts.tuning_runs,
            "compiler_processes": counts.compiler_processes,
            "counts": {
                part: getattr(counts.torch, part)
                for part in ("graphs_compiled", "triton_compilations", "worker_jobs", "cpp_builds", "traces")
            },
            "hits": [counts.torch.aot_hits, counts.torch.fx_hits],
            "processes": [item[-80:] for item in counts.processes],
            **compare(first, eager, reference),
            "steady_us": steady(lambda: compiled(**inputs)),
            "eager_us": steady(lambda: module(**inputs)),
        }
    if bundle:
        report = cachesvc_client.report()
        answer["report"] = {"state": report.state, "reasons": list(report.reasons)[:6]}
    return answer


def compare(outputs: list[Any], eager: list[Any], reference: Path) -> dict[str, Any]:
    """Compare outputs with eager ones, and with those of the row's first process, which are kept."""
    import torch

    differences, close = [], len(outputs) == len(eager)
    for here, other in zip(outputs, eager, strict=False):
        relative, absolute = TOLERANCE.get(str(here.dtype).removeprefix("torch."), (1e-4, 1e-4))
        differences.append(float((here.double() - other.double()).abs().max()))
        close = close and torch.allclose(here.double(), other.double(), rtol=relative, atol=absolute)
    digests = [
        hashlib.sha256(item.cpu().contiguous().view(torch.uint8).numpy()).hexdigest() for item in outputs
    ]
    answer: dict[str, Any] = {"close_to_eager": close, "differences": differences}
    if reference.exists():
        kept = torch.load(reference, map_location="cuda")
        answer["same_bits_as_restored"] = kept["digests"] == digests
        pairs = zip(outputs, kept["outputs"], strict=True)
        answer["from_restored"] = [
            float((here.double() - other.double()).abs().max()) for here, other in pairs
        ]
    else:
        torch.save({"digests": digests, "outputs": [item.cpu() for item in outputs]}, reference)
    return answer


def steady(call: Any) -> float:
    """Return the median of microseconds of a call, over turns of several calls."""
    import torch

    times = []
    with contextlib.suppress(StopIteration):
        for _ in range(TURNS):
            torch.compiler.cudagraph_mark_step_begin()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(times)


def tensors(value: Any) -> list[Any]:
    """Return the tensors of an output."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if hasattr(value, "values") else value
    return [inner for item in items if item is not None for inner in tensors(item)]


if __name__ == "__main__":
    sys.exit(main())
