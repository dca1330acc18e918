"""Measure what a steady call takes in code for a level of x86-64, against code for this CPU.

One ``cachesvc warm`` makes an entry for each level that this CPU has. Then one process for each level, which
restores its entry and compiles nothing, and two of PyTorch alone, which compile for this CPU; the second of
these is a control, over the first one's cache. They take turns, a block of calls each, and the order changes
from turn to turn; a ratio compares two blocks of one turn. Each process has one thread, and its seconds on
a CPU count, as the kernel says: other work of the machine is not in them, except for its use of caches.

Usage: ``python -m benchmarks.levels [--models bert llama vit] [--turns 40] [--quick]``. Prints a table and
writes ``benchmarks/results/levels.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cold_start import RESULTS
from benchmarks.conditions import commit, hardware, keep, now
from benchmarks.demo import aligned
from benchmarks.entries import warm
from benchmarks.hosts import ROOT, SERVICE, Failed, Host, Registry, exit_status, registry, use_this_tree
from benchmarks.service_start import BLOCK_SECONDS, PAUSE, WARMING_CALLS, spread
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.march import LEVELS, refusal

NATIVE, CONTROL = "native", "control"
"""The processes of PyTorch alone."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
Block = Callable[[int], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", default=["bert", "llama", "vit"], help="of benchmarks/models.py"
    )
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="a tiny model: to see that this works")
    parser.add_argument("--json", type=Path, default=RESULTS / "levels.json")
    options = parser.parse_args()
    if options.quick:
        options.models, options.turns = ["tiny"], 3
    use_this_tree()
    return exit_status(lambda folder: measure(options, folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure each model, print its table and write the JSON."""
    here = detect()
    levels = [level for level in LEVELS if refusal(level, here) is None]
    if not levels:
        raise Failed(f"no level is built here: {refusal('x86-64-v2', here)}")
    report: dict[str, Any] = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware(),
        "torch": here["torch"],
        "cxx": here.get("cxx"),
        "models": {},
    }
    with registry(folder / "registry") as running:
        for model in options.models:
            report["models"][model] = measured = _measure(
                model, levels, options.turns, running, folder / model
            )
            print("\n".join(["", *table(model, measured)]), flush=True)
            keep(report, options.json)


def _measure(model: str, levels: list[str], turns: int, running: Registry, place: Path) -> dict[str, Any]:
    """Warm a model for all levels at once, and have the processes take turns."""
    place.mkdir()
    _warm(model, levels, running, place)
    before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        served = {
            name: stack.enter_context(_serving(model, name, running, place))
            for name in (NATIVE, CONTROL, *levels)
        }
        for block in served.values():
            block(WARMING_CALLS)
        size = max(1, round(BLOCK_SECONDS * WARMING_CALLS / served[NATIVE](WARMING_CALLS)))
        blocks: dict[str, list[float]] = {name: [] for name in served}
        for turn in range(turns):
            for name in served if turn % 2 else reversed(served):
                time.sleep(PAUSE)
                blocks[name].append(served[name](size) / size)
    native = blocks[NATIVE]
    return {
        "calls in a block": size,
        "load": [before, os.getloadavg()[0]],
        "seconds of a call": {name: statistics.median(times) for name, times in blocks.items()},
        "ratio to native": {
            name: spread([one / other for one, other in zip(times, native, strict=True)])
            for name, times in blocks.items()
            if name != NATIVE
        },
        "blocks": {name: [round(one, 7) for one in times] for name, times in blocks.items()},
    }


def _warm(model: str, levels: list[str], running: Registry, place: Path) -> None:
    """Publish an entry for each level under the model's name."""
    spec = place / "warm.toml"
    lines = [f'name = "levels/{model}"', "[[target]]", f'id = "{model}"', f"march = {json.dumps(levels)}"]
    lines += [
        f'env = {{OMP_NUM_THREADS = "{ONE_THREAD["OMP_NUM_THREADS"]}"}}',
        'tracing = "always"',
        f"script = {json.dumps(str(SERVICE))}",
        f'args = ["{model}", "--no-audit"]',
    ]
    lines += [f"files = {json.dumps([str(ROOT / 'benchmarks' / 'models.py')])}"]
    spec.write_text("\n".join(lines) + "\n")
    begin = time.monotonic()
    warm(spec, running)
    print(f"{model}: {len(levels)} levels warm in {time.monotonic() - begin:.0f} s", flush=True)


@contextlib.contextmanager
def _serving(model: str, name: str, running: Registry, place: Path) -> Iterator[Block]:
    """Run a process that stays after its first answer. Yield a function that has it make so many calls and
    returns the seconds on a CPU that they took."""
    restores = name in LEVELS
    alone = {"TORCHINDUCTOR_CACHE_DIR": str(place / "pytorch")}
    ours = {**running.service, "CACHESVC_NAME": f"levels/{model}", "CACHESVC_MARCH": name}
    with (
        (place / f"{name}.log").open("w") as log,
        Host(place / name).running(
            *(str(SERVICE), model, "--no-audit", "--blocks"),
            variables=ONE_THREAD | (ours if restores else alone),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):

        def line() -> Any:
            assert process.stdout
            text = process.stdout.readline()
            if not text:
                raise Failed(f"{name}: {(place / f'{name}.log').read_text()[-3000:]}")
            return json.loads(text)

        def block(calls: int) -> float:
            begin = _seconds_on_cpu(process.pid)
            print(calls, file=process.stdin, flush=True)
            line()
            return _seconds_on_cpu(process.pid) - begin

        answer = line()
        if restores and (answer["cachesvc"]["state"] != "hit" or answer["observed"]["compilations"]):
            raise Failed(f"{model} for {name} is no hit: {answer['cachesvc']}")
        if answer["difference"] > 1e-3 * answer["scale"]:
            raise Failed(f"{model} for {name} differs from eager by {answer['difference']}")
        yield block


def _seconds_on_cpu(process: int) -> float:
    """Return how long the first thread of a process ran, which makes the calls (proc_pid_schedstat)."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def table(model: str, measured: dict[str, Any]) -> list[str]:
    """Return the lines of one model's table."""
    rows: list[tuple[str, ...]] = [(model, "ms a call", "/ native", "quartiles", "range")]
    for name, seconds in measured["seconds of a call"].items():
        ratio = measured["ratio to native"].get(name)
        cells = (
            ()
            if ratio is None
            else (
                f"{ratio['median']:.3f}",
                *(f"{ratio[one][0]:.2f} to {ratio[one][1]:.2f}" for one in ("quartiles", "range")),
            )
        )
        rows.append((name, f"{1e3 * seconds:.3f}", *(cells or ("", "", ""))))
    return [*aligned(rows)]


if __name__ == "__main__":
    raise SystemExit(main())
