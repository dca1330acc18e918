"""Show where the host's time of a steady call goes, restored without traces and with PyTorch alone.

``python benchmarks/gpu/steady.py --out DIR [--model llama] [--device cpu]`` takes turns between two processes
of each kind, as `service_start` does: microseconds until a call's kernels are launched, microseconds until
they have run, the Python functions that spend the most, and what launches the kernels. Writes
``DIR/steady.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from benchmarks.conditions import commit, gpus, hardware, now  # noqa: E402
from benchmarks.hosts import exit_status, registry, use_this_tree  # noqa: E402
from benchmarks.service_start import FRAMES, SETTLED, Starts  # noqa: E402

NAMES = {"frames": FRAMES, "frames, again": FRAMES, "pytorch": SETTLED, "pytorch, again": SETTLED}
MEASURES = ("launch", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="of a block")
    options = parser.parse_args()
    use_this_tree()
    return exit_status(lambda folder: _measure(options, folder))


def _measure(options: argparse.Namespace, folder: Path) -> None:
    with registry(folder / "registry") as running:
        starts = Starts(options.model, "default", options.device, folder / "model", running, {})
        starts.prepare([FRAMES])
        result: dict[str, Any] = {"date": now(), "commit": commit(), "hardware": hardware(), "gpus": gpus()}
        result |= {"model": options.model, **_steady(starts, options)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "steady.json").write_text(json.dumps(result, indent=1))
    for name, of_name in result["processes"].items():
        launch, whole = (of_name[key] for key in ("launch", "whole"))
        print(f"{name:16} launched after {launch['median']:8.1f} us, run after {whole['median']:8.1f} us")
        print(f"    {of_name['profile']['results of kernels']} {of_name['profile']['launchers']}")
        for function, calls, own in of_name["profile"]["functions"][:12]:
            print(f"    {own:8.1f} us {calls:6.1f} calls  {function}")


def _steady(starts: Starts, options: argparse.Namespace) -> dict[str, Any]:
    """Return the microseconds of calls, and profiles, of two processes of each kind."""
    with contextlib.ExitStack() as stack:
        served = {name: stack.enter_context(starts.serving(name, method)) for name, method in NAMES.items()}
        for process in served.values():
            process(20)
        values: dict[str, dict[str, list[float]]] = {name: {"launch": [], "": []} for name in served}
        for turn in range(options.turns):
            for name in served if turn % 2 else reversed(served):
                for what in MEASURES:
                    time.sleep(0.01)
                    seconds = served[name](options.calls, what)
                    values[name][what].append(1e6 * seconds / options.calls)
        profiles = {name: process(options.calls, "profile") for name, process in served.items()}
    return {
        "processes": {
            name: {
                "launch": _spread(values[name]["launch"]),
                "whole": _spread(values[name][""]),
                "profile": profiles[name],
            }
            for name in served
        }
    }


def _spread(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "quartiles": statistics.quantiles(values, n=4)}


if __name__ == "__main__":
    sys.exit(main())
