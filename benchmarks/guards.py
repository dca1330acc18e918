"""Measure what the checks before each call of a compiled model cost, with recorded frames and without.

A frame that was given has PyTorch's own guards, made from a record, and no check of cachesvc's beside them.
Two of Dynamo's settings differ while they are made: which parameters are one tensor is compared too. So the
guards of a model of 300 parameters are timed in fresh processes that alternate: one that was given frames,
and one of PyTorch alone. Each takes the median of ten blocks of checks, without the call that follows.

Usage: ``python benchmarks/guards.py [--rounds 5] [--quick]``. Prints a table and writes
``benchmarks/results/guards.json``.

With ``--first-calls`` it measures instead what comparing frames and making keys take of a first call without
traces, see `benchmarks/first_calls.py`: BERT on the CPU, and Llama of 22 layers where there is a GPU. With
``--compare PATH`` the client of another checkout takes turns with this one's; with ``--canary`` a start of
this one with ``CACHESVC_CANARY=sample:1`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_TREE = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(_TREE), str(_TREE / "client")]  # so that `python FILE` works

from benchmarks import first_calls  # noqa: E402
from benchmarks.cold_start import RESULTS  # noqa: E402
from benchmarks.conditions import commit, hardware, now  # noqa: E402
from benchmarks.entries import warm  # noqa: E402
from benchmarks.hosts import QUICK, Failed, Host, Registry, exit_status, registry, use_this_tree  # noqa: E402

LAYERS = 150
"""Linear layers of the model; each has two parameters."""
BLOCKS = 10
CHECKS = 2000
"""Checks in a block."""
FRAMES, PYTORCH = "recorded frames", "PyTorch alone"
PLACES = {FRAMES: "frames", PYTORCH: "pytorch"}
"""Names of folders: a store in a path with a space is not used."""
NAME = "guards/linear"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round: to see that this works")
    parser.add_argument("--json", type=Path, help="default: guards.json or first_calls.json of the results")
    parser.add_argument("--first-calls", action="store_true", help="measure first calls without traces")
    parser.add_argument("--models", nargs="+", default=["bert", "llama22"], help="of the first calls")
    parser.add_argument("--compare", type=Path, help="another checkout, whose first calls are measured too")
    parser.add_argument("--canary", action="store_true", help="measure first calls with a canary too")
    parser.add_argument("--step", action="append", default=[], help="a further function: STEP=module:name")
    parser.add_argument("--jobs", type=int, help="entries warmed at once; default: a fourth of the CPUs")
    parser.add_argument("--bytecode", action="store_true", help="compile all packages first")
    parser.add_argument("--service", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.service:
        print(json.dumps(service()))
        return 0
    packages = os.environ.get("PYTHONPATH", "")
    use_this_tree()
    if options.quick:
        options.rounds = 1
    options.json = options.json or RESULTS / ("first_calls.json" if options.first_calls else "guards.json")
    if options.first_calls:
        return exit_status(lambda folder: first_calls.measure(options, folder, packages))
    return exit_status(lambda folder: measure(options, folder))


def service() -> dict[str, Any]:
    """Compile the model, call it once, and time its guards."""
    import torch
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    import cachesvc_client

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(LAYERS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 8)
    with torch.no_grad():
        torch.compile(model)(x)
        (entry,) = _debug_get_cache_entry_list(Model.forward.__code__)
        scope = {"self": model, "x": x}
        if not entry.guard_manager.check(scope):
            raise SystemExit("the guards do not hold for the call that was timed")
        seconds = [_block(entry.guard_manager, scope) for _ in range(BLOCKS)]
    report = cachesvc_client.report()
    return {
        "state": report.state if report else "",
        "parameters": len(list(model.parameters())),
        "microseconds": 1e6 * statistics.median(seconds),
    }


def _block(guards: Any, scope: dict[str, Any]) -> float:
    """Return the seconds of one check, on average over a block."""
    begin = time.perf_counter()
    for _ in range(CHECKS):
        guards.check(scope)
    return (time.perf_counter() - begin) / CHECKS


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Warm the model, alternate the processes, print the table and write the JSON."""
    runs: dict[str, list[dict[str, Any]]] = {FRAMES: [], PYTORCH: []}
    with registry(folder / "registry") as running:
        _warm(running, folder)
        for number in range(options.rounds):
            for method in (FRAMES, PYTORCH) if number % 2 else (PYTORCH, FRAMES):
                runs[method].append(_run(method, running, folder / f"{PLACES[method]}-{number}"))
    values = {method: [run["microseconds"] for run in of] for method, of in runs.items()}
    medians = {method: statistics.median(of) for method, of in values.items()}
    result = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware(),
        "parameters": runs[FRAMES][0]["parameters"],
        "microseconds": values,
        "more with frames": medians[FRAMES] - medians[PYTORCH],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"guards of a model of {result['parameters']} parameters, microseconds for each call:")
    for method, of in values.items():
        print(f"  {method:16} {medians[method]:6.1f} ({min(of):.1f} to {max(of):.1f})")
    print(f"  more with frames {result['more with frames']:6.1f} (at most 20)")
    print(f"written: {options.json}")


def _warm(running: Registry, folder: Path) -> None:
    """Publish the entry with frames. Raise ``Failed`` where they were not recorded."""
    work = folder / "service"
    work.mkdir()
    spec = folder / "warm.toml"
    lines = [f'name = "{NAME}"', "[[target]]", 'id = "linear"', "runs = 1", 'tracing = "never"']
    lines += [f"cwd = {json.dumps(str(work))}", f"script = {json.dumps(str(Path(__file__).resolve()))}"]
    lines += ['args = ["--service"]', *(f'env.{name} = "{value}"' for name, value in QUICK.items())]
    spec.write_text("\n".join(lines) + "\n")
    warm(spec, running)


def _run(method: str, running: Registry, folder: Path) -> dict[str, Any]:
    """Run one process of a method on a host of its own. Raise ``Failed`` if it was not given frames."""
    variables = running.service | {"CACHESVC_NAME": NAME} if method == FRAMES else {}
    out, _ = Host(folder).run(str(Path(__file__).resolve()), "--service", **QUICK, **variables)
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    if (answer["state"] == "hit") is not (method == FRAMES):
        raise Failed(f"{method}: the report says {answer['state'] or 'nothing'}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
