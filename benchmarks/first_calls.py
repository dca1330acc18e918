"""Measure what comparing frames and making keys take of a first call without traces.

Each entry is warmed here with recorded frames; each run is a fresh process on a fresh host, without a
compiler on its PATH, that restores it, waits for the restore and calls the model once. What is compared takes
turns, and odd rounds begin with the last. *Comparing* is what cachesvc does to know that a recorded frame
fits: settings, code, operators, and PyTorch's guards read, made and checked. Loading what was compiled,
reading the file and imports are no part of it. `benchmarks/steps.py` names the functions.

Run by ``python benchmarks/guards.py --first-calls``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, gpus, hardware, now
from benchmarks.entries import warm
from benchmarks.hosts import QUICK, ROOT, SERVICE, Failed, Host, Registry, compile_packages, registry
from benchmarks.steps import COMPARING, FUNCTIONS, KEYS

DEVICES = {"llama22": "cuda"}
"""Models that are measured on a GPU; the others on the CPU."""
THIS, OTHER, CANARY = "this", "compared", "canary"
MOST = 0.05
"""The share of a first call that comparing and keys may take together."""
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """Is what takes turns: a checkout whose client and command line are used, and the services' variables.
    ``packages``: the PYTHONPATH that this benchmark was started with."""

    name: str
    root: Path
    registry: Registry
    packages: str
    variables: dict[str, str]

    @property
    def builder(self) -> dict[str, str]:
        """Return the variables of ``cachesvc warm``."""
        return checkout_variables(self.root, self.packages) | self.variables

    @property
    def service(self) -> dict[str, str]:
        """Return the variables of a service."""
        packages = os.environ.get("SERVICE_PACKAGES") or self.packages
        return checkout_variables(self.root, packages) | self.registry.service | self.variables


def checkout_variables(root: Path, packages: str) -> dict[str, str]:
    """Return the variables with which Python imports a checkout, and nothing from its working directory."""
    path = os.pathsep.join(filter(None, (str(root), str(root / "client"), packages)))
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def measure(options: argparse.Namespace, folder: Path, packages: str) -> None:
    """Warm all entries, run the rounds, print the table and write the JSON."""
    models = list(_possible(options.models))
    if options.bytecode:
        compile_packages(folder / "bytecode")
    with ExitStack() as stack:
        sides = _sides(options, folder, packages, stack)
        jobs = options.jobs or max(1, (os.cpu_count() or 1) // 4)
        with ThreadPoolExecutor(jobs) as pool:
            built = [(model, side) for model in models for side in sides if side.name != CANARY]
            warmed = [pair for pair in pool.map(lambda pair: _warm(pair[0], pair[1], folder), built) if pair]
        runs: dict[tuple[str, str], list[Answer]] = {}
        for number in range(options.rounds):
            for model in models:
                for side in sides[::-1] if number % 2 else sides:
                    if (model, side.root) in warmed:
                        answer = _run(model, side, folder, number, options.step)
                        runs.setdefault((model, side.name), []).append(answer)
    result = {
        "date": now(),
        "commits": {side.name: _commit(side.root) for side in sides},
        "hardware": hardware() | {"gpus": gpus()},
        "torch": importlib.metadata.version("torch"),
        "rounds": options.rounds,
        "models": {},
    }
    for (model, name), answers in runs.items():
        result["models"].setdefault(model, {})[name] = summary(answers)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(result)))
    print(f"written: {options.json}")


def _possible(models: Sequence[str]) -> Iterator[str]:
    for model in models:
        if DEVICES.get(model) == "cuda" and not gpus():
            print(f"{model}: left out, there is no GPU")
        else:
            yield model


def _sides(options: argparse.Namespace, folder: Path, packages: str, stack: ExitStack) -> list[Side]:
    """Return what takes turns, each checkout with a registry of its own code."""
    variables = QUICK if options.quick else {}
    roots = {THIS: ROOT} | ({OTHER: options.compare.resolve()} if options.compare else {})
    sides = []
    for name, root in roots.items():
        own = checkout_variables(root, packages)
        running = stack.enter_context(registry(folder / f"registry-{name}", **own))
        sides.append(Side(name, root, running, packages, variables))
    if options.canary:
        with_canary = variables | {"CACHESVC_CANARY": "sample:1"}
        sides.append(Side(CANARY, ROOT, sides[0].registry, packages, with_canary))
    return sides


def _commit(root: Path) -> str:
    if root == ROOT:
        return commit()
    import subprocess

    command = ["git", "-C", str(root), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _name(model: str) -> str:
    return f"first/{model}"


def _command(model: str) -> list[str]:
    return [model, "--device", DEVICES.get(model, "cpu"), "--no-audit"]


def _warm(model: str, side: Side, folder: Path) -> tuple[str, Path] | None:
    """Publish an entry with frames; return the model and the checkout. Where that fails, say why and return
    ``None``: the other side is measured all the same."""
    work = _work(folder, model)
    spec = folder / f"{side.name}-{model}.toml"
    lines = [f'name = "{_name(model)}"', "[[target]]", f'id = "{model}"', "runs = 1", 'tracing = "never"']
    lines += [f"cwd = {json.dumps(str(work))}", f"script = {json.dumps(str(SERVICE))}"]
    lines += [f"args = {json.dumps(_command(model))}"]
    lines += [f"files = {json.dumps([str(ROOT / 'benchmarks' / 'models.py')])}"]
    lines += [f'env.{name} = "{value}"' for name, value in side.variables.items()]
    spec.write_text("\n".join(lines) + "\n")
    print(f"{model}, {side.name}: cachesvc warm", flush=True)
    try:
        warm(spec, side.registry, **side.builder)
    except Failed as error:
        print(f"{model}, {side.name}: left out: {error}", flush=True)
        return None
    return model, side.root


def _work(folder: Path, model: str) -> Path:
    """Return the working directory of builder and services, for what cuDNN compiles holds it."""
    work = folder / f"work-{model}"
    work.mkdir(exist_ok=True)
    return work


def _run(model: str, side: Side, folder: Path, number: int, more: Sequence[str]) -> Answer:
    """Run one process on a host of its own. Raise ``Failed`` where it traced or compiled anything."""
    host = Host(folder / f"{model}-{side.name}-{number}", _work(folder, model))
    options = [*_command(model)[1:], "--steps", *(word for step in more for word in ("--step", step))]
    variables = side.service | {"CACHESVC_NAME": _name(model)}
    answer = host.serve(model, *options, compilers=False, **variables)
    shutil.rmtree(host.folder)
    report, observed = answer["cachesvc"], answer["observed"]
    if report["state"] != "hit" or observed["torch"]["traces"] or answer["called"]:
        raise Failed(f"{model}, {side.name}: {report['state']}: {report['reasons']} {report['why_traced']}")
    print(f"{model}, {side.name}: first call {answer['seconds']['first']:.3f} s", flush=True)
    return answer


# Numbers --------------------------------------------------------------------------------------


def summary(answers: Sequence[Answer]) -> Answer:
    """Return the medians of a model on one side, and all first calls."""
    names = dict.fromkeys((*FUNCTIONS, *(step for one in answers for step in one["steps"]["seconds"])))
    steps = {step: _median([one["steps"]["seconds"].get(step, 0.0) for one in answers]) for step in names}
    firsts = [one["seconds"]["first"] for one in answers]
    taken = [{what: _sum(one, names) for what, names in _PARTS.items()} for one in answers]
    cpu = [one["steps"]["cpu"] for one in answers]
    result: Answer = {
        "first": _median(firsts),
        "firsts": firsts,
        "cpu": _median(cpu),
        "cpus": cpu,
        "steps": steps,
    }
    for what in _PARTS:
        result[what] = _median([one[what] for one in taken])
        shares = (one[what] / first for one, first in zip(taken, firsts, strict=True))
        result[f"{what} / first"] = _median(list(shares))
    result["second"] = _median([one["seconds"]["second call"] for one in answers])
    result["calls"] = answers[-1]["steps"]["calls"]
    result["not there"] = answers[-1]["steps"]["not there"]
    return result


_OWN = tuple(step for step in (*COMPARING, *KEYS) if step != "guards made")
_PARTS = {
    "comparing": COMPARING,
    "keys": KEYS,
    "both": (*COMPARING, *KEYS),
    "both, without PyTorch's making of guards": _OWN,
}
"""What is summed up, and its steps."""


def _sum(answer: Answer, steps: Sequence[str]) -> float:
    return sum(answer["steps"]["seconds"].get(step, 0.0) for step in steps)


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 5)


def table(result: Answer) -> Iterator[str]:
    """Yield the lines of a result as text."""
    yield f"torch {result['torch']}, medians of {result['rounds']} processes, first calls without traces"
    for model, sides in result["models"].items():
        for name, one in sides.items():
            low, high = min(one["firsts"]), max(one["firsts"])
            yield (
                f"{model}, {name} ({result['commits'][name]}): first call {one['first']:.3f} s ({low:.3f} to "
                f"{high:.3f}), its thread's CPU {one['cpu']:.3f} s, second call {1000 * one['second']:.1f} ms"
            )
            parts = ", ".join(
                f"{what} {1000 * one[what]:.1f} ms ({one[f'{what} / first']:.1%})" for what in _PARTS
            )
            yield f"    {parts}; at most {MOST:.0%}"
            steps = ", ".join(f"{step} {1000 * spent:.1f}" for step, spent in one["steps"].items() if spent)
            yield f"    ms of the steps: {steps}"
        for name, one in sides.items():
            if name != THIS and THIS in sides:
                wall, cpu = (one[what] / sides[THIS][what] for what in ("first", "cpu"))
                yield f"{model}: first call of {name} / this: {wall:.3f}, CPU of its thread {cpu:.3f}"
