"""Measure how long a fresh process takes to its first output: PyTorch's own means against cachesvc.

Each run is a process of its own on a host of its own (empty HOME, TMPDIR, working directory and folders);
rounds alternate between the methods; medians are shown. Time is from just before ``torch.compile()`` (for
mega-cache: before its load) to the first output, and from the start of the process to it. Compilations and
compiler processes are counted by audit hook and wrappers, alike in every process
(`cachesvc_client.hooks.counters`).

    cold                    PyTorch alone, nothing there
    local warm, first       PyTorch alone over the cold process's folders, on its host
    local warm, settled     the same once more
    folder copy             TORCHINDUCTOR_CACHE_DIR moved to a fresh host; the first host's is gone
    mega-cache              load_cache_artifacts() on a fresh host
    Redis cache             PyTorch's remote cache, a redis-server of ours, on a fresh host
    cachesvc                from a registry on loopback, on a fresh host with an empty node store
    cachesvc, 2nd process   once more on that node

Usage: ``python benchmarks/cold_start.py [--models bert llama vit] [--rounds 3] [--methods ...] [--quick]``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that `python FILE` works

from benchmarks.conditions import hardware, now  # noqa: E402
from benchmarks.entries import published, warm  # noqa: E402
from benchmarks.hosts import (  # noqa: E402
    QUICK,
    ROOT,
    Failed,
    Host,
    Registry,
    exit_status,
    registry,
    running_process,
)

METHODS = (
    "cold",
    "local warm, first",
    "local warm, settled",
    "folder copy",
    "mega-cache",
    "Redis cache",
    "cachesvc",
    "cachesvc, 2nd process",
)
FILLING = "Redis cache, filling"
MODES = ("default", "max-autotune-no-cudagraphs", "max-autotune")
REDIS_SWITCHES = ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE")
"""PyTorch's remote caches, without BUNDLED_AUTOTUNE, which fails the compile on a machine without Triton
(torch 2.13)."""
ATTACH = """
import json, sys, time
began = time.perf_counter()
import cachesvc_client
cachesvc_client.attach(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - began, "torch": "torch" in sys.modules}))
"""
"""A program that measures an attach. It runs without the .pth bootstrap, which would attach a service before
the program's first line."""
RESULTS = ROOT / "benchmarks" / "results"
Answer = dict[str, Any]


def main() -> int:
    options = _options()
    report: dict[str, Any] = {
        "date": now(),
        "hardware": hardware(),
        "rounds": options.rounds,
        "models": {},
    }
    if status := exit_status(lambda folder: _measure(options, folder, report)):
        return status
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, options.json.with_suffix(".png"))
    print(f"written: {options.json} and {options.json.with_suffix('.png').name}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", default=["bert", "llama", "vit"], help="of benchmarks/models.py"
    )
    parser.add_argument("--modes", nargs="+", default=["default"], choices=MODES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="cold is always run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tiny model, once: to see that this works")
    parser.add_argument("--json", type=Path, default=RESULTS / "cold_start.json")
    options = parser.parse_args()
    options.variables = QUICK if options.quick else {}
    if options.quick:
        options.models, options.rounds = ["tiny"], 1
    return options


def _measure(options: argparse.Namespace, folder: Path, report: dict[str, Any]) -> None:
    has_redis = shutil.which("redis-server") is not None
    if not has_redis and "Redis cache" in options.methods:
        print("Redis cache: left out, there is no redis-server on the PATH (apt-get install redis-server)")
    with registry(folder / "registry") as running:
        for model, mode in itertools.product(options.models, options.modes):
            place = folder / f"{model}-{mode}"
            place.mkdir()
            with redis_server(place) if has_redis else nullcontext() as redis:
                methods = frozenset(options.methods)
                bench = Bench(model, mode, place, running, methods, redis, options.variables)
                bench.prepare()
                for number in range(options.rounds):
                    bench.round(number)
            result = bench.result()
            report["torch"] = bench.runs["cold"][0]["torch"]
            report["models"][f"{model}/{mode}"] = result
            show(f"{model}, mode {mode}", result)


# Runs -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    """Measures the selected methods for one model and mode. ``redis``: the URL of a server, or ``None``.
    ``variables``: the variables of the builder and of all measured processes."""

    model: str
    mode: str
    place: Path
    registry: Registry
    selected_methods: frozenset[str]
    redis: str | None
    variables: dict[str, str]
    runs: dict[str, list[Answer]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    attached: list[Answer] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"bench/{self.model}-{self.mode}"

    def prepare(self) -> None:
        """Publish the entry with ``cachesvc warm``, and fill the Redis cache. This time is not measured."""
        spec = self.place / "warm.toml"
        spec.write_text(
            f'name = "{self.name}"\n[[target]]\nid = "{self.model}"\nmodes = ["{self.mode}"]\n'
            f'factory = "benchmarks.models:{self.model}"\npaths = ["{ROOT}"]\nruns = 1\n'
            + "".join(f'env.{name} = "{value}"\n' for name, value in self.variables.items())
        )
        self._tell("cachesvc warm")
        warm(spec, self.registry)
        self.sizes |= published(self.registry, self.name)
        if self.redis and "Redis cache" in self.selected_methods:
            self._run(FILLING, "redis-fill", **redis_variables(self.redis))
            del self.runs[FILLING]
            self.sizes["redis"] = redis_bytes(self.redis)

    def round(self, number: int) -> None:
        """Run each method once, on hosts of this round, and remove the hosts afterwards."""
        here = f"round-{number}/"
        (self.place / here).mkdir()
        mega, output = self.place / here / "mega", self.place / here / "output.pt"
        cache, moved_cache = self.place / here / "cache", self.place / here / "cache-moved"
        own = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
        options = ("--save", str(mega), "--keep", str(output))
        self._run("cold", here + "first", *options, **own)
        self.sizes |= _pytorch_sizes(mega, cache)
        expect = ("--expect", str(output))
        self._run("local warm, first", here + "first", *expect, **own)
        self._run("local warm, settled", here + "first", *expect, **own)
        cache.rename(moved_cache)
        self._run("folder copy", here + "copy", *expect, TORCHINDUCTOR_CACHE_DIR=str(moved_cache))
        self._run("mega-cache", here + "mega-cache", *expect, "--load", str(mega))
        if self.redis:
            self._run("Redis cache", here + "redis", *expect, **redis_variables(self.redis))
        ours = {"CACHESVC_NAME": self.name, **self.registry.service}
        self._run("cachesvc", here + "node", *expect, **ours)
        self._run("cachesvc, 2nd process", here + "node", *expect, **ours)
        out, _ = Host(self.place / here / "node").run("-c", ATTACH, self.name, **self.registry.service)
        self.attached.append(json.loads(out))
        shutil.rmtree(self.place / here)

    def result(self) -> dict[str, Any]:
        """Return all measurements, for the table, the JSON and the plot."""
        methods = {name: _summary(runs) for name, runs in self.runs.items()}
        report = {"bytes": self.sizes, "attach": self.attached, "methods": methods}
        return {**report, "targets": targets(report) if "cachesvc" in methods else []}

    def _run(self, method: str, host: str, *options: str, **variables: str) -> None:
        if method not in (*self.selected_methods, "cold", FILLING):
            return
        place = Host(self.place / host)
        variables = {**self.variables, **variables}
        answer = place.serve(self.model, "--mode", self.mode, *options, compilers=True, **variables)
        self.runs.setdefault(method, []).append(portable(answer))
        observed = answer["observed"]
        self._tell(
            f"{method}: {answer['seconds']['first']:.2f} s, {observed['compiler_processes']} compilers run"
        )
        last = method in ("folder copy", "mega-cache", "Redis cache", FILLING)
        if last:  # Each folder has 150 MB of precompiled headers.
            shutil.rmtree(place.folder)

    def _tell(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {self.model}/{self.mode}: {text}", file=sys.stderr, flush=True)


def portable(answer: Answer) -> Answer:
    """Return an answer without the paths of this machine: it counts the started processes by name."""
    observed = dict(answer["observed"])
    observed["processes"] = dict(Counter(Path(name).name for name in observed["processes"]))
    return {**answer, "observed": observed}


def _pytorch_sizes(mega: Path, cache: Path) -> dict[str, int]:
    """Return the sizes of mega-cache, which has no ``.so``, and of mega-cache with the kernels' ``.so`` in
    one zstd -3 stream."""
    data = mega.read_bytes()
    libraries = [path.read_bytes() for path in sorted(cache.glob("*/*.main.so"))]
    whole = zstandard.ZstdCompressor(level=3).compress(b"".join([data, *libraries]))
    return {"mega-cache": len(data), "kernels": sum(map(len, libraries)), "zstd -3 of both": len(whole)}


# A real redis-server --------------------------------------------------------------------------


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a redis-server that keeps nothing for the length of the block, and return its URL. It listens on a
    socket in ``folder``, so that no port is guessed."""
    socket = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    with running_process(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        while not socket.exists():
            if process.poll() is not None:
                raise Failed(f"redis-server ended with status {process.returncode}")
            time.sleep(0.02)
        yield f"unix://{socket}"


def redis_variables(url: str) -> dict[str, str]:
    """Return the variables of a process that uses PyTorch's remote caches."""
    switches = {f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "1" for name in REDIS_SWITCHES}
    return {**switches, "TORCHINDUCTOR_REDIS_URL": url}


def redis_bytes(url: str) -> int:
    """Return the bytes of all values that PyTorch has put into Redis."""
    import redis

    with contextlib.closing(redis.Redis.from_url(url)) as client:
        return sum(int(client.strlen(key)) for key in client.keys("pt2:*"))


# Numbers --------------------------------------------------------------------------------------


def _summary(runs: list[Answer]) -> dict[str, Any]:
    first = [run["seconds"]["first"] for run in runs]
    worst: Callable[[str], int] = lambda count: max(run["observed"][count] for run in runs)  # noqa: E731
    return {
        "first": statistics.median(first),
        "first_range": [min(first), max(first)],
        "process": statistics.median(run["seconds"]["process"] for run in runs),
        "compilations": worst("compilations"),
        "tuning_runs": worst("tuning_runs"),
        "compiler_processes": worst("compiler_processes"),
        "processes": max(sum(run["observed"]["processes"].values()) for run in runs),
        "same": all(run.get("same", True) for run in runs),
        "difference": max(run["difference"] for run in runs),
        "runs": runs,
    }


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each target with the measured value. ``value`` must be at most ``limit``."""
    methods, sizes = result["methods"], result["bytes"]
    ours = methods["cachesvc"]
    starts = [methods[name] for name in ("cachesvc", "cachesvc, 2nd process") if name in methods]
    bytes_moved = sizes["pack"] + sizes["resolve answer"]
    work = sum(run[name] for run in starts for name in ("compilations", "tuning_runs", "compiler_processes"))
    others = [("local warm, settled", 0.7), ("mega-cache", 0.3), ("cold", 0.15)]

    def spent(step: str) -> float:
        return statistics.median(float(run["cachesvc"]["seconds"].get(step, 0.0)) for run in ours["runs"])

    rows = [
        *(
            (f"first output / {other}", ours["first"] / methods[other]["first"], limit)
            for other, limit in others
            if other in methods
        ),
        ("compilations, tuning runs and compilers run", work, 0),
        ("outputs that are not PyTorch's own compiled ones", sum(not run["same"] for run in starts), 0),
        ("bytes / mega-cache", bytes_moved / sizes["mega-cache"], 0.5),
        ("bytes / zstd -3 of mega-cache and .so", bytes_moved / sizes["zstd -3 of both"], 1.0),
        ("bytes of packs moved by the 2nd process", sum(map(_moved, starts[1:])), 0),
        ("s, import and attach", statistics.median(run["seconds"] for run in result["attach"]), 0.05),
        ("attaching processes that imported torch", sum(run["torch"] for run in result["attach"]), 0),
        ("s, compile waits for the restore", spent("wait"), 0.05),
        ("time in hooks / first output", spent("hooks") / ours["first"], 0.01),
        ("time of verification / first output", spent("check") / ours["first"], 0.05),
    ]
    return [
        {"what": what, "value": round(value, 4), "limit": limit, "reached": value <= limit}
        for what, value, limit in rows
    ]


def _moved(method: dict[str, Any]) -> int:
    return max(int(run["cachesvc"]["bytes_moved"]) for run in method["runs"])


# Output ---------------------------------------------------------------------------------------


def show(title: str, result: dict[str, Any]) -> None:
    """Print the table of one model, its bytes, its seconds of restore and its targets."""
    methods = result["methods"]
    cold = methods["cold"]["first"]
    print(f"\n{title}")
    print(f"  {'':24}{'first output':>13}{'range':>15}{'of cold':>9}{'process':>10}{'compiled':>10}", end="")
    print(f"{'compilers':>11}{'processes':>11}  output")
    for name, row in methods.items():
        low, high = row["first_range"]
        print(
            f"  {name:24}{row['first']:11.2f} s{f'{low:.2f}-{high:.2f}':>15}{row['first'] / cold:8.2f}x",
            end="",
        )
        print(f"{row['process']:8.2f} s{row['compilations']:10}{row['compiler_processes']:11}", end="")
        print(f"{row['processes']:11}  {'same' if row['same'] else 'DIFFERS'}")
    print("  bytes: " + ", ".join(f"{name} {size:,}" for name, size in result["bytes"].items()))
    for method in ("cachesvc", "cachesvc, 2nd process"):
        steps = [run["cachesvc"]["seconds"] for run in methods.get(method, {"runs": []})["runs"]]
        medians = {
            name: statistics.median(step.get(name, 0.0) for step in steps) for name in itertools.chain(*steps)
        }
        seconds_text = ", ".join(f"{name} {spent:.3f}" for name, spent in medians.items())
        print(f"  {method}, seconds: {seconds_text or '-'}")
    for row in result["targets"]:
        verdict = "pass" if row["reached"] else "FAIL"
        print(f"  {verdict}  {row['value']:10.5g} <= {row['limit']:<5g} {row['what']}")
    sys.stdout.flush()


def plot(report: dict[str, Any], path: Path) -> None:
    """Plot the seconds to the first output, with a group of bars for each model. No display is needed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    models = list(report["models"])
    figure, axes = pyplot.subplots(figsize=(4 + 2.4 * len(models), 4.8))
    for index, method in enumerate(METHODS):
        methods_shown = [
            (at, report["models"][model]["methods"][method]["first"])
            for at, model in enumerate(models)
            if method in report["models"][model]["methods"]
        ]
        at = [place + (index - len(METHODS) / 2) * 0.1 for place, _ in methods_shown]
        bars = axes.bar(at, [seconds for _, seconds in methods_shown], 0.1, label=method)
        axes.bar_label(bars, fmt="%.1f", fontsize=6, padding=2)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("seconds to the first output (log)")
    axes.set_title(
        f"torch {report.get('torch', '')}, {report['hardware']['cpus']} cores, medians", fontsize=9
    )
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
