"""Measure how vLLM starts, from exec to the first token, on hosts with different caches.

``python -m benchmarks.engines --out DIR``, with a Python that has vLLM, torch and what the client needs;
``--registry-python`` names one that can run the registry. `cachesvc warm` publishes the model first. Then
each round starts the engine once by each method, every time in fresh processes. Prints a table and writes
``DIR/engines.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from benchmarks.engines.model import MODELS, write_model  # noqa: E402
from benchmarks.hosts import (  # noqa: E402
    Failed,
    Host,
    Registry,
    compile_packages,
    exit_status,
    registry,
    trap,
    use_this_tree,
)
from cachesvc.warm.engine import path_without_compilers  # noqa: E402

PROGRAM = str(ROOT / "benchmarks" / "engines" / "process.py")
METHODS = ("eager", "cold", "in place", "copied", "cachesvc")
ABOUT = {
    "eager": "enforce_eager: nothing is compiled by torch.compile",
    "cold": "a fresh host",
    "in place": "the host of a cold start again, with all its folders",
    "copied": "a fresh host with a copy of vLLM's folder of a cold start",
    "cachesvc": "a fresh host without compilers, cachesvc run",
}
STEPS = ("import", "engine", "first token")


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    use_this_tree()

    def measure(folder: Path) -> None:
        folder = options.place or folder
        if options.bytecode:
            compile_packages(folder / "bytecode")
        result: dict[str, Any] = {**_conditions(), "methods": ABOUT, "models": {}}
        with registry(folder / "registry", options.registry_python) as served:
            for name in options.models:
                bench = EngineBenchmark(name, folder / name, served, options)
                result["models"][name] = bench.run()
                (options.out / "engines.json").write_text(json.dumps(result, indent=1))
                print(table(name, result["models"][name]), flush=True)

    return exit_status(measure)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=0, help="another number of layers")
    parser.add_argument("--width", type=int, default=0, help="another hidden size")
    parser.add_argument("--args", type=json.loads, default={}, help="more engine arguments, as JSON")
    parser.add_argument("--registry-python", default=sys.executable, help="interpreter of the registry")
    parser.add_argument("--bytecode", action="store_true", help="compile all packages first")
    parser.add_argument("--place", type=Path, help="folder of the hosts, kept (a temporary one)")
    return parser.parse_args()


class EngineBenchmark:
    """Warms one model, starts it by each method, and gathers what the starts answered."""

    def __init__(self, name: str, folder: Path, served: Registry, options: argparse.Namespace) -> None:
        self._name, self._folder, self._registry, self._options = f"bench/{name}", folder, served, options
        self._model = write_model(name, folder / "model", options.layers, options.width)
        self._arguments: dict[str, Any] = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": 2048,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 2048,
            "seed": 0,
            **options.args,
        }
        self._cold: Path | None = None

    def run(self) -> dict[str, Any]:
        """Return the report of `cachesvc warm`, and the starts by method."""
        report = self._warm() if "cachesvc" in self._options.methods else {}
        _say(f"{self._name}: warm: {report.get('status')} {report.get('reasons')}")
        starts: dict[str, list[dict[str, Any]]] = {method: [] for method in self._options.methods}
        for number in range(self._options.rounds):
            for method in self._options.methods:
                starts[method].append(self._start(method, number))
        if "cachesvc" in starts:
            starts["cachesvc, audited"] = [self._start("cachesvc", 0, audit=True)]
        return {
            "layers": self._options.layers,
            "arguments": self._arguments,
            "warm": report,
            "starts": starts,
        }

    def _warm(self) -> dict[str, Any]:
        """Warm and publish the model. Return the report of the target."""
        host = Host(self._folder / "warm")
        environment = host.environment() | self._registry.builder
        lines = ", ".join(f"{key} = {_toml(value)}" for key, value in self._arguments.items())
        spec = host.folder / "warm.toml"
        spec.write_text(
            f'name = "{self._name}"\n[[target]]\nid = "llm"\nvllm = "{self._model}"\nargs = {{{lines}}}\n'
        )
        command = [sys.executable, "-m", "cachesvc", "warm", str(spec), "--json", "--verbose"]
        with (self._folder / "warm.log").open("w") as log:
            result = subprocess.run(
                command,
                env=environment,
                cwd=host.folder / "work",
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if not result.stdout.strip():
            raise Failed((self._folder / "warm.log").read_text()[-3000:])
        [report] = json.loads(result.stdout)["targets"]
        if report["status"] not in ("warm", "fresh"):
            _say(f"{self._name}: {(self._folder / 'warm.log').read_text()[-2000:]}")
        return dict(report)

    def _start(self, method: str, number: int, audit: bool = False) -> dict[str, Any]:
        """Start the engine once by a method. Return its answer, or the end of its log as ``error``."""
        host = self._host(method, number, audit)
        answer = host.folder / "answer.json"
        answer.unlink(missing_ok=True)
        arguments = dict(self._arguments, **({"enforce_eager": True} if method == "eager" else {}))
        words = [PROGRAM, str(answer), str(self._model), json.dumps(arguments)]
        variables = {"VLLM_NO_USAGE_STATS": "1", **({"BENCHMARK_AUDIT": "1"} if audit else {})}
        if method == "cachesvc":
            variables |= self._registry.service | {"CACHESVC_DEADLINE": "60", "CACHESVC_LOG": "info"}
            variables["PATH"] = self._path(host)
            words = ["-m", "cachesvc_client", "run", self._name, "--", sys.executable, *words]
        begin = time.monotonic()
        try:
            _, log = host.run(*words, **variables)
        except Failed as error:
            _say(f"{self._name}: {method}: {str(error)[-1500:]}")
            return {"error": str(error)[-3000:]}
        result: dict[str, Any] = json.loads(answer.read_text())
        called = host.folder / "trap" / "called"
        result["called"] = called.read_text().splitlines() if called.exists() else []
        result["process_seconds"] = round(time.monotonic() - begin, 2)
        result["log"] = [line for line in log.splitlines() if line.startswith("cachesvc")][-8:]
        _say(f"{self._name}: {method}: first token after {result['seconds']['first token']:.1f} s")
        return result

    def _host(self, method: str, number: int, audit: bool) -> Host:
        """Return the host of a start: a fresh one, or with what a method has in place."""
        host = Host(self._folder / f"{method.replace(' ', '-')}-{number}{'-audited' * audit}")
        if method == "cold" and self._cold is None:
            self._cold = host.folder
        if method in ("in place", "copied") and self._cold is None:
            raise Failed(f"the method {method!r} needs the method 'cold' before it")
        if method == "in place":
            assert self._cold is not None
            return Host(self._cold)
        if method == "copied":
            assert self._cold is not None
            host.environment()
            shutil.copytree(self._cold / "home" / ".cache" / "vllm", host.folder / "home" / ".cache" / "vllm")
        return host

    def _path(self, host: Host) -> str:
        """Return a PATH whose compilers only note that they were called."""
        links = host.folder / "links"
        links.mkdir(parents=True, exist_ok=True)
        return f"{trap(host.folder / 'trap')}:{path_without_compilers(os.environ['PATH'], links)}"


def table(name: str, measured: dict[str, Any]) -> str:
    """Return the starts of a model as a table, medians over the rounds."""
    lines = [
        f"\n{name}: seconds from exec, medians (range)",
        f"{'':20}"
        + "".join(f"{step:>22}" for step in (*STEPS, "vLLM's compile"))
        + "  compiled compilers tokens",
    ]
    expected = next((start["tokens"] for start in _good(measured["starts"].get("cold", []))), None)
    for method, starts in measured["starts"].items():
        good = list(_good(starts))
        if not good:
            lines.append(f"{method:20}  failed")
            continue
        cells = [_cell([start["seconds"][step] for start in good]) for step in STEPS]
        cells.append(_cell([start["compile_seconds"] or 0.0 for start in good]))
        observed = [start["observed"] for start in good]
        compiled = max(each["compilations"] for each in observed)
        compilers = max(
            max(each["compiler_processes"], len(start["called"]))
            for each, start in zip(observed, good, strict=True)
        )
        same = "same" if all(start["tokens"] == expected for start in good) else "other"
        lines.append(
            f"{method:20}" + "".join(f"{cell:>22}" for cell in cells) + f"  {compiled:8} {compilers:9} {same}"
        )
    return "\n".join(lines)


def _good(starts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (start for start in starts if "error" not in start)


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _conditions() -> dict[str, Any]:
    import torch
    import vllm

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "gpu": gpu,
        "torch": torch.__version__,
        "vllm": vllm.__version__,
    }


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
