"""Measure how vLLM starts, from exec to the first token, on hosts with different caches.

``python -m benchmarks.engines --out DIR``, with a Python that has vLLM, torch and what the client needs;
``--registry-python`` names one that can run the registry. `cachesvc warm` publishes the model first. Then
each round starts the engine once by each method, every time in fresh processes. Prints a line for each start
and a table, and writes ``DIR/engines.json`` after each start.

With ``--place FOLDER`` the hosts and the registry's data stay there, and the same command goes on where an
earlier one ended: for machines on which a command may take some minutes only. ``--limit`` ends it by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
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

_BEGAN = time.monotonic()
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
from cachesvc.warm.worker.engine import path_without_compilers  # noqa: E402

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
_OF_RANKS = {"disable_custom_all_reduce": True, "distributed_executor_backend": "mp"}
"""Engine arguments of several ranks: vLLM's own all-reduce is an operator that not every build has."""
_VARIABLES_OF_RANKS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Variables of several ranks: workers start as ``vllm serve`` starts them, and nothing uses multicast of
NVLink, which virtual machines may not have."""


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    use_this_tree()

    def measure(folder: Path) -> None:
        folder = options.place or folder
        folder.mkdir(parents=True, exist_ok=True)
        if options.bytecode:
            compile_packages(folder / "bytecode")
        earlier = folder / "engines.json"
        result: dict[str, Any] = {**_conditions(), "methods": ABOUT, "models": {}}
        if earlier.exists():
            result["models"] = json.loads(earlier.read_text())["models"]

        def keep(name: str, measured: dict[str, Any]) -> None:
            result["models"][name] = measured
            for file in {earlier, options.out / "engines.json"}:
                file.write_text(json.dumps(result, indent=1))

        with registry(folder / "registry", options.registry_python) as served:
            served = _with_credentials(served, folder / "credentials.json")
            for name in options.models:
                bench = EngineBenchmark(name, folder / name, served, options)
                for measured in bench.run(result["models"].get(name, {})):
                    keep(name, measured)
                print(table(name, result["models"][name]), flush=True)

    return exit_status(measure)


def _with_credentials(served: Registry, file: Path) -> Registry:
    """Return the registry with its token and keys, which it tells at its first start alone; ``file`` keeps
    them, readable by this user."""
    if served.token:
        file.touch(mode=0o600)
        file.write_text(json.dumps([served.token, served.trust, served.signing_key]))
        return served
    token, trust, signing_key = json.loads(file.read_text())
    return dataclasses.replace(served, token=token, trust=trust, signing_key=signing_key)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--once", nargs="+", choices=METHODS, default=[], help="methods of the first round alone"
    )
    parser.add_argument("--layers", type=int, default=0, help="another number of layers")
    parser.add_argument("--width", type=int, default=0, help="another hidden size")
    parser.add_argument("--ranks", type=int, default=1, help="tensor parallel size")
    parser.add_argument("--limit", type=float, default=0, help="begin no start that may end after this, in s")
    parser.add_argument("--args", type=json.loads, default={}, help="more engine arguments, as JSON")
    parser.add_argument("--env", type=json.loads, default={}, help="variables of the engine, as JSON")
    parser.add_argument("--registry-python", default=sys.executable, help="interpreter of the registry")
    parser.add_argument("--bytecode", action="store_true", help="compile all packages first")
    parser.add_argument(
        "--place", type=Path, help="folder of the hosts, kept, to go on later (a temporary one)"
    )
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
            **({"tensor_parallel_size": options.ranks, **_OF_RANKS} if options.ranks > 1 else {}),
            **options.args,
        }
        self._variables = {**(_VARIABLES_OF_RANKS if options.ranks > 1 else {}), **options.env}
        self._cold: Path | None = None
        self._end = _BEGAN + options.limit if options.limit else float("inf")
        self._longest = 0.0

    def run(self, earlier: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the report of `cachesvc warm` and the starts by method, after each of them.

        ``earlier``: what an earlier run yielded last; what it has is not measured again."""
        report = earlier.get("warm", {})
        if "cachesvc" in self._options.methods and report.get("status") not in ("warm", "fresh"):
            report = self._warm()
        starts: dict[str, list[dict[str, Any]]] = earlier.get("starts", {})
        conditions = {"layers": self._options.layers, "arguments": self._arguments, "env": self._variables}
        measured = {**conditions, "warm": report, "starts": starts}
        yield measured
        rounds = [
            (method, number)
            for number in range(self._options.rounds)
            for method in self._options.methods
            if number == 0 or method not in self._options.once
        ]
        for method, number in rounds:
            yield from self._measure(starts.setdefault(method, []), measured, method, number)
        if "cachesvc" in starts:
            yield from self._measure(
                starts.setdefault("cachesvc, audited", []), measured, "cachesvc", 0, True
            )

    def _measure(
        self,
        starts: list[dict[str, Any]],
        measured: dict[str, Any],
        method: str,
        number: int,
        audit: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Start the engine, and yield what is measured; unless an earlier run did, or the limit is near."""
        if len(starts) > number:
            self._host(method, number, audit, measured=True)
            return
        if time.monotonic() + self._longest > self._end:
            _say(f"{self._name}: {method}, round {number + 1}: left for the next run, for the limit")
            return
        host = self._host(method, number, audit, measured=False)
        begin = time.monotonic()
        log = self._options.out / f"{self._folder.name}-{_label(method, number, audit)}.log"
        starts.append(self._start(method, host, audit, log))
        self._longest = max(self._longest, time.monotonic() - begin)
        _say(f"{self._name}: {method}, round {number + 1}: {_line(starts[-1])}")
        yield measured

    def _warm(self) -> dict[str, Any]:
        """Warm and publish the model. Return the report of the target."""
        host = Host(self._folder / "warm")
        environment = host.environment() | self._registry.builder
        lines = ", ".join(f"{key} = {_toml(value)}" for key, value in self._arguments.items())
        spec = host.folder / "warm.toml"
        spec.write_text(
            f'name = "{self._name}"\n[[target]]\nid = "llm"\nvllm = "{self._model}"\nargs = {{{lines}}}\n'
            f"env = {_toml(self._variables)}\n"
        )
        command = [sys.executable, "-m", "cachesvc", "warm", str(spec), "--json", "--verbose"]
        log_file = self._options.out / f"{self._name.rpartition('/')[2]}-warm.log"
        _say(f"{self._name}: warm begins; {log_file}")
        begin = time.monotonic()
        with log_file.open("w") as log:
            result = subprocess.run(
                command,
                env=environment,
                cwd=host.folder / "work",
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if not result.stdout.strip():
            raise Failed(log_file.read_text()[-3000:])
        [report] = json.loads(result.stdout)["targets"]
        _say(f"{self._name}: {report['status']} after {time.monotonic() - begin:.0f} s: {report['reasons']}")
        if report["status"] not in ("warm", "fresh"):
            _say(f"{self._name}: {log_file.read_text()[-2000:]}")
        return dict(report)

    def _start(self, method: str, host: Host, audit: bool, log_file: Path) -> dict[str, Any]:
        """Start the engine once by a method. Return its answer, with its log in a file; or the end of its log
        as ``error``."""
        answer = host.folder / "answer.json"
        answer.unlink(missing_ok=True)
        arguments = dict(self._arguments, **({"enforce_eager": True} if method == "eager" else {}))
        words = [PROGRAM, str(answer), str(self._model), json.dumps(arguments)]
        variables = {
            **self._variables,
            "VLLM_NO_USAGE_STATS": "1",
            **({"BENCHMARK_AUDIT": "1"} if audit else {}),
        }
        if method == "cachesvc":
            variables |= self._registry.service | {"CACHESVC_DEADLINE": "60", "CACHESVC_LOG": "info"}
            variables["PATH"] = self._path(host)
            words = ["-m", "cachesvc_client", "run", self._name, "--", sys.executable, *words]
        begin = time.monotonic()
        try:
            _, log = host.run(*words, **variables)
        except Failed as error:
            return {"error": str(error)[-3000:]}
        result: dict[str, Any] = json.loads(answer.read_text())
        called = host.folder / "trap" / "called"
        result["called"] = called.read_text().splitlines() if called.exists() else []
        result["process_seconds"] = round(time.monotonic() - begin, 2)
        result["log"] = [line for line in log.splitlines() if "cachesvc: " in line][-12:]
        log_file.write_text(log)
        return result

    def _host(self, method: str, number: int, audit: bool, measured: bool) -> Host:
        """Return the host of a start: a fresh one, or with what a method has in place. ``measured``: the
        start is over; otherwise an earlier run may have been killed in it, and its host is made anew."""
        host = Host(self._folder / _label(method, number, audit))
        if not measured:
            shutil.rmtree(host.folder, ignore_errors=True)
        if method == "cold" and self._cold is None:
            self._cold = host.folder
        if method in ("in place", "copied") and self._cold is None:
            raise Failed(f"the method {method!r} needs the method 'cold' before it")
        if method == "in place":
            assert self._cold is not None
            return Host(self._cold)
        if method == "copied" and not measured:
            assert self._cold is not None
            host.environment()
            shutil.copytree(self._cold / "home" / ".cache" / "vllm", host.folder / "home" / ".cache" / "vllm")
        return host

    def _path(self, host: Host) -> str:
        """Return a PATH whose compilers only note that they were called."""
        links = host.folder / "links"
        links.mkdir(parents=True, exist_ok=True)
        return f"{trap(host.folder / 'trap')}:{path_without_compilers(os.environ['PATH'], links)}"


def _label(method: str, number: int, audit: bool) -> str:
    """Return the name of a start in names of files and folders. ``number``: of the round, from 0."""
    return f"{method.replace(' ', '-')}-{number}{'-audited' * audit}"


def _line(start: dict[str, Any]) -> str:
    """Return a start in words."""
    if "error" in start:
        return f"failed: {start['error'][-1500:]}"
    observed = start["observed"]
    reports = [worker.get("report", {}) for worker in start.get("workers", [start])]
    outcomes = [f"{one.get('state', 'not attached')} {one.get('reasons', '')}" for one in reports]
    return (
        f"first token after {start['seconds']['first token']:.1f} s, "
        f"vLLM's compile {start['compile_seconds']:.1f} s; "
        f"{observed['compilations']} compilations, {observed['tuning_runs']} tuning runs, "
        f"{max(observed['compiler_processes'], len(start['called']))} compilers; "
        f"{', '.join(outcomes)}; tokens {start['tokens'][-1]}"
    )


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
            lines.append(f"{method:20}  {'failed' if starts else 'not measured'}")
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
    count = torch.cuda.device_count() if gpu else 0
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "gpu": gpu,
        "gpus": count,
        "torch": torch.__version__,
        "vllm": vllm.__version__,
    }


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
