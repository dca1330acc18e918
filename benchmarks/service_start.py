"""Measure the start of a service as a whole, from exec to its first answer, and its calls after that.

Each start is a fresh process, on a fresh host where nothing else is said (an empty HOME, TMPDIR, working
directory and cache folders); rounds alternate between the methods; medians are shown, with the smallest and
the largest in parentheses. Weights come from a safetensors file. Nothing is audited: what a process traces,
compiles and tunes is counted by wrappers, alike in every process, and the compilers that a restored process
calls by a PATH that has none.

    eager                      no torch.compile
    cold                       PyTorch alone, nothing there (once)
    PyTorch settled            PyTorch alone over its own folders on their host, from the third start on
    cachesvc                   restored from a registry on loopback; this process traces
    cachesvc without traces    the same from an entry warmed with ``tracing = "auto"``
    published itself           the third start of a service in mode ``readwrite``, which nobody warmed

Steps: ``interpreter`` up to the program's first line, ``torch`` and ``libraries`` are imports, ``build``,
``weights``, ``first`` from just before ``torch.compile`` to the first output, and ``whole``, all of them.
The imports of the program that counts are in no step where cachesvc is not in use.

Steady state: two processes without traces and two of PyTorch alone over its folders, the second of each as a
control, on the same CPUs. They take turns, a block of calls each, and the order changes from turn to
turn; a ratio compares two blocks of one turn.

Usage: ``python benchmarks/service_start.py [--models bert llama vit] [--rounds 5] [--quick]``. On a GPU:
``--device cuda --models llama22 vitl resnet101 qwen3``, with the interpreter that has torch for it. The
results of other versions and devices stay in ``benchmarks/results/service_start.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TREE = Path(__file__).resolve().parent.parent
sys.path[0:1] = [
    str(_TREE),
    str(_TREE / "client"),
]  # so that `python FILE` works, also where nothing is installed

from benchmarks.cold_start import MODES, RESULTS  # noqa: E402
from benchmarks.conditions import commit, gpus, hardware, now  # noqa: E402
from benchmarks.demo import aligned, compilers_run  # noqa: E402
from benchmarks.entries import published, warm  # noqa: E402
from benchmarks.hosts import (  # noqa: E402
    QUICK,
    ROOT,
    SERVICE,
    Failed,
    Host,
    Registry,
    compile_packages,
    exit_status,
    registry,
    use_this_tree,
)

EAGER, COLD, SETTLED = "eager", "cold", "PyTorch settled"
TRACING, FRAMES, ITSELF = "cachesvc", "cachesvc without traces", "published itself"
METHODS = (EAGER, COLD, SETTLED, TRACING, FRAMES, ITSELF)
ROUND = (EAGER, SETTLED, TRACING, FRAMES, ITSELF)
"""The methods of a round; the first round is rotated by none, the next one by one, and so on."""
ENTRIES = {TRACING: "always", FRAMES: "auto"}
"""For each method that restores what ``warm`` published, the ``tracing`` of its entry's spec."""
RESTORING = (*ENTRIES, ITSELF)
PUBLISHING = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "5", "CACHESVC_LOG": "json"}
"""Variables of a service that publishes by itself, which says so in its log."""
PUBLISHED = 180.0
"""Seconds after its first answer in which such a service has to publish."""
STEPS = ("interpreter", "import", "libraries", "build", "weights", "first")
"""The steps that the whole consists of, in order. ``import`` is torch's."""
COUNTS = ("traces", "compilations", "tuning_runs")
PACKAGES = ("torch", "triton", "transformers", "safetensors")
OF_SETTLED = {("cpu", ""): 0.15, ("cuda", "default"): 0.25, ("cuda", ""): 0.15}
"""The share of PyTorch's settled first call that a first call without traces may take, by device and mode;
the empty mode is any other."""
STEADY = 1.01
"""What a call without traces may take of PyTorch's own."""
BLOCK_SECONDS = 0.25
"""Seconds that a block of calls takes, about."""
WARMING_CALLS = 10
"""Calls of each process before the first turn, and those that say how many calls a block has."""
PAUSE = 0.02
"""Seconds between two blocks, in which the threads of the process before go to sleep."""
Answer = dict[str, Any]


def main() -> int:
    options = _options()
    use_this_tree()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Each process would compile what an image has compiled.
    if status := exit_status(lambda folder: _measure(options, folder)):
        return status
    print(f"written: {options.json}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", default=["bert", "llama", "vit"], help="of benchmarks/models.py"
    )
    parser.add_argument("--modes", nargs="+", default=["default"], choices=MODES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=40, help="of the steady state's blocks; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--python", help="an interpreter with another torch, such as .torch/2.11.0/bin/python"
    )
    parser.add_argument(
        "--bytecode", action="store_true", help="compile all packages first, as images have them"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, once: to see that this works")
    parser.add_argument("--json", type=Path, default=RESULTS / "service_start.json")
    options = parser.parse_args()
    if options.python:
        here, there = sys.argv.index("--python"), Path(options.python).absolute()
        if not there.exists():
            parser.error(f"--python {there}: no such file (make torch-env VERSION=X.Y.Z makes .torch/X.Y.Z)")
        os.execv(there, [str(there), *sys.argv[:here], *sys.argv[here + 2 :]])
    options.variables = QUICK if options.quick else {}
    if options.quick:
        options.models, options.rounds, options.turns = ["tiny"], 1, 3
    return options


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _measure(options: argparse.Namespace, folder: Path) -> None:
    """Prepare all models, run the rounds of all, then their steady states; show and keep the results."""
    conditions: Answer = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware() | {"gpus": gpus() if options.device != "cpu" else []},
        "versions": _versions(),
        "rounds": options.rounds,
    }
    if options.bytecode:
        compile_packages(folder / "bytecode")
    with registry(folder / "registry") as running:
        starts = [
            Starts(model, mode, options.device, folder / f"{model}-{mode}", running, options.variables)
            for model, mode in itertools.product(options.models, options.modes)
        ]
        for one in starts:
            one.prepare()
        conditions["load before the rounds"] = os.getloadavg()[0]
        for number in range(options.rounds):
            for one in starts:
                one.round(number)
        conditions["load after the rounds"] = os.getloadavg()[0]
        _keep(options, {one.name: one.result() | {"conditions": conditions} for one in starts})
        for one in starts:
            if options.turns:
                one.measure_steady(options.turns)
            result = one.result() | {"conditions": conditions}
            _keep(options, {one.name: result})
            print("\n".join(table(f"{one.model}, mode {one.mode}, {options.device}", result)), flush=True)


def _keep(options: argparse.Namespace, results: Answer) -> None:
    """Write results into the file, beside those of other models, versions and devices."""
    report: Answer = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name, result in results.items():
        kind = f"torch {result['conditions']['versions']['torch']}, {options.device}"
        report.setdefault(kind, {})[name] = result
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")


@dataclass(slots=True)
class Starts:
    """Measures the starts of one model in one mode. ``variables``: of the builder and of all processes."""

    model: str
    mode: str
    device: str
    place: Path
    registry: Registry
    variables: dict[str, str]
    runs: dict[str, list[Answer]] = field(default_factory=dict)
    packs: dict[str, int] = field(default_factory=dict)
    builders: dict[str, Path] = field(default_factory=dict)
    """For each restoring method, the output of the process that compiled its entry."""
    notes: list[str] = field(default_factory=list)
    steady: Answer = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}/{self.mode}"

    def prepare(self, restoring: Iterable[str] = ENTRIES) -> None:
        """Write the weights, publish an entry for each restoring method, and run PyTorch alone twice, the
        first time cold."""
        self._work.mkdir(parents=True)
        weights = str(self.place / "weights.safetensors")
        Host(self.place / "writer").run(*self._command("--save-weights", weights))
        for method in restoring:
            self._warm(method, ENTRIES[method])
        if ENTRIES.keys() <= {*restoring}:
            self._publish_itself()
        self._start(COLD)
        self._start("")

    def round(self, number: int) -> None:
        """Run each method of a round once."""
        first = number % len(ROUND)
        for method in (*ROUND[first:], *ROUND[:first]):
            self._start(method)

    def measure_steady(self, turns: int) -> None:
        """Take turns between two processes without traces and two of PyTorch alone."""
        names = ("frames", "frames-again", "pytorch", "control")
        methods = dict(zip(names, (FRAMES, FRAMES, SETTLED, SETTLED), strict=True))
        with contextlib.ExitStack() as stack:
            served = {name: stack.enter_context(self.serving(name, methods[name])) for name in names}
            for block in served.values():
                block(WARMING_CALLS)
            times = [block(WARMING_CALLS) / WARMING_CALLS for block in served.values()]
            size = max(1, round(BLOCK_SECONDS / min(times)))
            blocks: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(turns):
                for name in names if turn % 2 else reversed(names):
                    time.sleep(PAUSE)
                    blocks[name].append(served[name](size) / size)
        self.steady = {
            "calls in a block": size,
            "seconds of a call": {name: statistics.median(times) for name, times in blocks.items()},
            "without traces / PyTorch": spread(_ratios(blocks["frames"], blocks["pytorch"])),
            "without traces, again / PyTorch": spread(_ratios(blocks["frames-again"], blocks["pytorch"])),
            "control / PyTorch": spread(_ratios(blocks["control"], blocks["pytorch"])),
            "blocks": blocks,
        }
        self._tell("steady state: " + _with_quartiles(self.steady["without traces / PyTorch"]))

    def result(self) -> Answer:
        """Return all measurements, for the table and the JSON."""
        result: Answer = {
            "methods": {method: summary(self.runs[method]) for method in METHODS},
            "packs": self.packs,
            "notes of warm": self.notes,
            "steady": self.steady,
        }
        return result | {"targets": targets(result, self.device, self.mode)}

    @property
    def _work(self) -> Path:
        """Return the working directory of builder and services, for what cuDNN compiles holds it."""
        return self.place / "service"

    def _name(self, method: str) -> str:
        return f"start/{self.model}-{self.mode}-{ENTRIES.get(method, 'itself')}"

    def _command(self, *options: str) -> list[str]:
        return [str(SERVICE), self.model, "--mode", self.mode, "--device", self.device, *options]

    def _warm(self, method: str, tracing: str) -> None:
        """Warm this program as a script, so that the entry's builder keeps its output."""
        self._tell(f'cachesvc warm, tracing = "{tracing}"')
        kept = self.place / f"kept-{tracing}"
        weights = self.place / "weights.safetensors"
        spec = self.place / f"{tracing}.toml"
        arguments = self._command("--weights", str(weights), "--no-audit", "--keep-in", str(kept))[1:]
        lines = [f'name = "{self._name(method)}"', "[[target]]", f'id = "{self.model}"', "runs = 1"]
        lines += [f'tracing = "{tracing}"', f"cwd = {json.dumps(str(self._work))}"]
        lines += [f"script = {json.dumps(str(SERVICE))}", f"args = {json.dumps(arguments)}"]
        lines += [f"files = {json.dumps([str(ROOT / 'benchmarks' / 'models.py')])}"]
        lines += [f'env.{name} = "{value}"' for name, value in self.variables.items()]
        spec.write_text("\n".join(lines) + "\n")
        (target,) = warm(spec, self.registry)
        self.notes += target.get("notes") or []
        self.packs[method] = published(self.registry, self._name(method))["pack"]
        self.builders[method] = kept / ("01.pt" if target.get("finalised") else "00.pt")

    def _publish_itself(self) -> None:
        """Run the first and the second start of a service that publishes by itself: the first compiles, the
        second records its frames."""
        self.builders[ITSELF] = self.place / "itself.pt"
        for number in ("first", "second"):
            variables = self.registry.builder | PUBLISHING
            log = self.place / f"steady-itself-{number}.log"
            with self.serving(f"itself-{number}", ITSELF, **variables):
                until = time.monotonic() + PUBLISHED
                while '"event": "published"' not in log.read_text():
                    if time.monotonic() > until:
                        raise Failed(f"{number} start: nothing published\n{log.read_text()[-3000:]}")
                    time.sleep(0.2)
            self._tell(f"{number} start of the service that publishes by itself")

    def _start(self, method: str) -> None:
        """Run one process of a method to its end. The empty method is a start of PyTorch alone that is not
        kept."""
        host, arguments, variables = self._process(method, f"{len(self.runs.get(method, []))}")
        answer = host.serve(
            self.model, *arguments, compilers=method not in RESTORING, **self.variables, **variables
        )
        if method in (EAGER, *RESTORING):
            shutil.rmtree(host.folder)
        seconds = answer["seconds"]
        # cachesvc's imports are work of its starts. Elsewhere only this benchmark needs them.
        seconds["whole"] = seconds["process"] - (0.0 if method in RESTORING else seconds["client"])
        if method:
            answer["observed"]["compilers"] = compilers_run(answer)
            answer["called"] = [
                words.split()[0] for words in answer["called"]
            ]  # Without this machine's paths.
            self.runs.setdefault(method, []).append(answer)
        self._tell(f"{method or 'PyTorch, second start'}: first {seconds['first']:.2f} s")

    def _process(self, method: str, number: str) -> tuple[Host, list[str], dict[str, str]]:
        """Return the host, the options and the variables of a process of a method."""
        arguments = self._command("--weights", str(self.place / "weights.safetensors"), "--no-audit")[2:]
        if method == EAGER:
            return Host(self.place / f"eager-{number}", self._work), [*arguments, "--eager"], {}
        if method in RESTORING:
            host = Host(self.place / f"{ENTRIES.get(method, 'itself')}-{number}", self._work)
            kept = self.builders[method]  # by the first start of a service that publishes by itself
            arguments += ["--expect" if kept.exists() else "--keep", str(kept)]
            lane = {"CACHESVC_LANE": "unproven"} if method == ITSELF else {}
            return host, arguments, self.registry.service | {"CACHESVC_NAME": self._name(method), **lane}
        own = self.place / "pytorch"
        arguments += ["--keep" if method == COLD else "--expect", str(self.place / "cold.pt")]
        return Host(own, self._work), arguments, {"TORCHINDUCTOR_CACHE_DIR": str(own / "cache")}

    @contextlib.contextmanager
    def serving(self, name: str, method: str, **more: str) -> Iterator[Any]:
        """Run a process that stays after its first answer. Yield a function that has it make so many calls
        and returns the seconds that they took. ``more``: its own variables."""
        host, arguments, variables = self._process(method, f"steady-{name}")
        variables = variables | more
        with (
            (self.place / f"steady-{name}.log").open("w") as log,
            host.running(
                str(SERVICE),
                self.model,
                *arguments,
                "--blocks",
                variables=self.variables | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            ) as process,
        ):

            def line() -> str:
                assert process.stdout
                text: str = process.stdout.readline()
                if not text:
                    raise Failed(f"{name}: {(self.place / f'steady-{name}.log').read_text()[-3000:]}")
                return text

            answer = json.loads(line())
            if method == FRAMES and answer["observed"]["torch"]["traces"]:
                self.notes.append("steady state: the process without traces traced")

            def block(calls: int, what: str = "") -> Any:
                print(what, calls, file=process.stdin, flush=True)
                return json.loads(line())

            yield block

    def _tell(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {self.name}: {text}", file=sys.stderr, flush=True)


# Numbers --------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> Answer:
    """Return the median, the quartiles, the smallest and the largest of some values."""
    quartiles = statistics.quantiles(values, method="inclusive") if len(values) > 1 else [*values] * 3
    return {
        "median": round(statistics.median(values), 4),
        "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "range": [round(min(values), 4), round(max(values), 4)],
    }


def _ratios(ones: Iterable[float], others: Iterable[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def summary(runs: Sequence[Answer]) -> Answer:
    """Return the seconds of each step and of the whole over a method's runs, the largest counts, and how the
    outputs compare."""
    return {
        "seconds": {
            step: spread([run["seconds"].get(step, 0.0) for run in runs]) for step in (*STEPS, "whole")
        },
        **{name: max(int(run["observed"][name]) for run in runs) for name in (*COUNTS, "compilers")},
        "same": all(run.get("same", True) for run in runs),
        "difference": max(run["difference"] / run["scale"] for run in runs),
        "runs": list(runs),
    }


def targets(result: Answer, device: str, mode: str) -> list[Answer]:
    """Return each target with the measured value, which must be at most ``limit``.

    ``reached`` is ``None`` for a steady state whose control varies by more than the target allows: this run
    cannot tell."""
    methods, packs = result["methods"], result["packs"]
    ours, eager, settled = methods[FRAMES], methods[EAGER], methods[SETTLED]

    def median(method: Answer, step: str) -> float:
        return float(method["seconds"][step]["median"])

    kind = device.partition(":")[0]
    limit = OF_SETTLED.get((kind, mode)) or OF_SETTLED[kind, ""]
    work = sum(ours[name] for name in (*COUNTS, "compilers"))
    rows = [
        ("first call / PyTorch settled", median(ours, "first") / median(settled, "first"), limit),
        ("whole / eager's whole", median(ours, "whole") / median(eager, "whole"), 1.15),
        ("traces, compilations, tuning runs and compilers", work, 0),
        ("methods whose output is not the builder's", sum(not one["same"] for one in methods.values()), 0),
        ("pack / the pack without frames", packs[FRAMES] / packs[TRACING], 2.0),
    ]
    judged: list[Answer] = [
        {"what": what, "value": round(value, 4), "limit": limit, "reached": value <= limit}
        for what, value, limit in rows
    ]
    if steady := result["steady"]:
        value = steady["without traces / PyTorch"]["median"]
        low, high = steady["control / PyTorch"]["quartiles"]
        decides = high - low <= 2 * (STEADY - 1)
        reached = value <= STEADY if decides else None
        judged.append(
            {"what": "a steady call / PyTorch's", "value": value, "limit": STEADY, "reached": reached}
        )
    return judged


# Output ---------------------------------------------------------------------------------------


def table(title: str, result: Answer) -> list[str]:
    """Return the lines of one model's table, its packs, its steady state and its targets."""
    heads = ("interpreter", "torch", "libraries", "build", "weights", "first call", "whole")
    rows: list[tuple[str, ...]] = [("", *heads, "traced", "compiled", "compilers", "output")]
    for method, row in result["methods"].items():
        steps = [row["seconds"][step] for step in STEPS[:-1]]
        whole = [row["seconds"][step] for step in ("first", "whole")]
        cells = (*(f"{step['median']:.2f}" for step in steps), *(_with_range(step) for step in whole))
        counts = (str(row[name]) for name in ("traces", "compilations", "compilers"))
        rows.append((method, *cells, *counts, "same" if row["same"] else "DIFFERS"))
    lines = ["", title, *(f"  {line}" for line in aligned(rows))]
    packs = ", ".join(f"{method} {size:,}" for method, size in result["packs"].items())
    differences = max(row["difference"] for row in result["methods"].values())
    lines += [f"  bytes of packs: {packs}; largest difference from eager: {differences:.1e}"]
    if steady := result["steady"]:
        milliseconds = 1000 * steady["seconds of a call"]["pytorch"]
        names = ("without traces", "without traces, again", "control")
        ratio, again, control = (_with_quartiles(steady[f"{name} / PyTorch"]) for name in names)
        lines.append(
            f"  a call: {milliseconds:.3f} ms, {steady['calls in a block']} in a block; "
            f"without traces / PyTorch {ratio}, another process {again}, control {control}"
        )
    for row in result["targets"]:
        verdict = {True: "met", False: "NOT MET", None: "unknown"}[row["reached"]]
        lines.append(f"  {verdict:8}{row['value']:8.4g} <= {row['limit']:<5g} {row['what']}")
    return [*lines, *(f"  note of warm: {note}" for note in result["notes of warm"])]


def _with_range(values: Answer) -> str:
    low, high = values["range"]
    return f"{values['median']:.2f} ({low:.2f}-{high:.2f})"


def _with_quartiles(values: Answer) -> str:
    low, high = values["quartiles"]
    return f"{values['median']:.4f} (quartiles {low:.4f}-{high:.4f})"


if __name__ == "__main__":
    sys.exit(main())
