"""Try each cache for torch.compile with the same restarts, hosts and differences: ``make bench-field``.

``--caches`` names those of `benchmarks.field.caches`, or others as ``module:Class``. A situation is
tried with all caches before the next, so their seconds compare within a run. ``make pages`` makes a table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, hardware, keep, now
from benchmarks.field import caches, situations
from benchmarks.field.situations import Situation
from benchmarks.hosts import QUICK, Failed, Host, exit_status, use_this_tree
from tests.differences.hunt import batches
from tests.differences.hunt.report import read
from tests.differences.hunt.restored_folder import RestoredFolder
from tools.field_page import PARTS, RESULT

_SECONDS = 300
"""A start that takes longer is broken."""
_KEPT = ("group", "name", "direction", "applied", "visible")


def main() -> int:
    """Try, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field")
    parser.add_argument("--caches", nargs="+", default=caches.ALL, help="names, or module:Class")
    parser.add_argument("--seed", type=int, default=1, help="of the differences")
    parser.add_argument("--groups", default="", help="of differences, with commas; else all")
    parser.add_argument("--only", default="", help="a regular expression for 'group: name' of differences")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="the other stays as noted")
    parser.add_argument("--jobs", type=int, default=2, help="caches at once")
    parser.add_argument("--json", type=Path, default=RESULT)
    options = parser.parse_args()
    use_this_tree()
    tried = {text: caches.named(text) for text in options.caches}
    noted = read(options.json) if options.json.exists() and options.part != PARTS else {"caches": {}}
    report: dict[str, Any] = {**noted, "torch": version("torch"), "hardware": hardware()}
    for one in tried.values():
        told = report["caches"].setdefault(one.name, {part: [] for part in PARTS})
        told |= {"setting": one.setting} | {part: [] for part in options.part}

    def measure(folder: Path) -> None:
        for part, do in zip(PARTS, (try_starts, try_differences), strict=True):
            if part in options.part:
                begin = time.monotonic()
                report[part] = {"date": now(), "commit": commit(), "seed": options.seed}
                try:
                    do(tried, folder / part, report, options)
                finally:  # An interrupted run has what it tried.
                    report[part]["minutes"] = round((time.monotonic() - begin) / 60, 1)
                    report[part]["load"] = round(os.getloadavg()[2], 1)
                    keep(report, options.json)

    return exit_status(measure)


# Starts ---------------------------------------------------------------------------------------


@dataclass
class Tried:
    """Starts the program with one cache, whose servers run."""

    text: str
    cache: caches.Cache
    place: caches.Place
    root: Path
    installed: Path

    def fill(self) -> None:
        """Fill the store; raises ``Failed`` if that does not work."""

        def start(variables: dict[str, str]) -> None:
            told = self._start(Situation("building", ""), "builder", variables, self.place, "--building")
            if told.get("outcome") != "compiled":
                raise Failed(f"{self.cache.name}: {told}")

        self.cache.fill(start, self.place)

    def one(self, situation: Situation, number: int) -> list[dict[str, Any]]:
        """Return what came of each process of a situation, with the store as its builder left it."""
        place = replace(self.place, folder=self.root / f"{number}" / "cache")
        place.folder.mkdir(parents=True)
        self.cache.bring(place)
        pristine = RestoredFolder([self.cache.kept(place)])
        if situation.damage:
            self.cache.damage(place, situation.damage)
        name = f"{number}" if self.cache.moves else "builder"

        def start(_: int) -> dict[str, Any]:
            return self._start(situation, name, self.cache.variables(place), place)

        with ThreadPoolExecutor(situation.processes) as pool:
            told = list(pool.map(start, range(situation.processes)))
        pristine.put_back()
        shutil.rmtree(self.root / f"{number}")
        return told

    def _start(
        self, situation: Situation, host: str, variables: dict[str, str], place: caches.Place, *words: str
    ) -> dict[str, Any]:
        """Return what a process said, with its ``outcome``: hit, compiled, wrong or broken."""
        own = place.folder.parent
        environment = Host(self.root / host).environment() | QUICK | variables
        for name, value in situation.variables.items():
            value = value.replace("$place", str(own)).replace("$installed", str(self.installed))
            if name in ("HOME", "TMPDIR"):
                Path(value).mkdir(parents=True, exist_ok=True)
            paths = [value, os.environ["PYTHONPATH"]] if name == "PYTHONPATH" else [value]
            environment[name] = os.pathsep.join(paths)
        work = own / situation.work if situation.work else self.root / host / "work"
        for folder in (work, own / "free"):
            folder.mkdir(parents=True, exist_ok=True)
        service = [sys.executable, "-m", "benchmarks.field.service", self.text, place.text(), *words]
        command = situation.command(service, used=self.cache.used(place), free=own / "free", place=own)
        return _judged(command, environment, work) | {"situation": situation.name, "kind": situation.kind}


def _judged(command: list[str], environment: dict[str, str], work: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, env=environment, cwd=work, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "broken", "why": f"not over after {_SECONDS} s"}
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):
        told = json.loads(done.stdout.splitlines()[-1])
    if done.returncode or not told:
        said = done.stderr.strip().splitlines() or [""]
        errors = [line for line in said if re.match(r"[\w.]*(Error|Exception)\b", line)]
        error = (errors or said)[-1]
        why = re.sub(r"/[^\s'\":]+", "PATH", error)[:300]
        return {"outcome": "broken", "status": done.returncode, "why": why}
    compiled = told["compilations"] or told["tuning_runs"]
    return told | {"outcome": "wrong" if not told["right"] else "compiled" if compiled else "hit"}


def try_starts(
    tried: dict[str, caches.Cache], folder: Path, report: dict[str, Any], options: argparse.Namespace
) -> None:
    """Try each situation with every cache before the next one."""
    folder.mkdir()
    installed = situations.install_a_package(folder / "installed")
    with ExitStack() as stack, ThreadPoolExecutor(options.jobs) as pool:
        running = []
        for number, (text, cache) in enumerate(tried.items()):
            root = folder / f"{number}"
            (root / "store").mkdir(parents=True)
            reach = stack.enter_context(cache.running(root / "store"))
            place = caches.Place(root / "store", root / "built" / "cache", reach)
            place.folder.mkdir(parents=True)
            running.append(Tried(text, cache, place, root, installed))
        list(pool.map(Tried.fill, running))
        for number, situation in enumerate(situations.ALL):
            if not situation.possible():
                continue
            shared = situation.damage or situation.processes > 1
            able = [one for one in running if not (shared and type(one.cache) is caches.Cache)]
            answers = list(pool.map(Tried.one, able, repeat(situation), repeat(number)))
            for one, told in zip(able, answers, strict=True):
                report["caches"][one.cache.name]["starts"] += told
                said = ", ".join(f"{each['outcome']} {each.get('seconds', '')}" for each in told)
                print(f"{situation.name}: {one.cache.name}: {said}", flush=True)


# Differences ----------------------------------------------------------------------------------


def try_differences(
    tried: dict[str, caches.Cache], folder: Path, report: dict[str, Any], options: argparse.Namespace
) -> None:
    """Try some rows of the hunt for false hits with each cache."""
    chosen = [f"--seed={options.seed}", "--limit=4", "--planted=0"]
    chosen += [f"--groups={options.groups}", f"--only={options.only}"]
    batches.module("plan", Path(sys.executable), folder / "plan", {}, (), [folder / "plan", *chosen])
    rows = quick(read(folder / "plan" / "plan.json")["rows"])

    def one(job: tuple[int, str, caches.Cache]) -> tuple[str, list[dict[str, Any]]]:
        number, text, cache = job
        place = caches.Place(folder / f"{number}" / "store", folder / f"{number}" / "cache")
        place.store.mkdir(parents=True)
        place.folder.mkdir()
        ours = cache.in_hunt == caches.Cachesvc.in_hunt
        with contextlib.nullcontext({}) if ours else cache.running(place.store) as reach:
            asked = {"HUNT_WITH": cache.in_hunt, "FIELD_CACHE": text}
            asked["FIELD_PLACE"] = replace(place, reach=reach).text()
            cases = folder / "plan" / "cases"
            found = batches.run(
                Path(sys.executable), rows, cases, folder / f"{number}" / "batch", ours, also=asked
            )
        print(f"differences: {cache.name}: {len(found)} rows", flush=True)
        return cache.name, found

    with ThreadPoolExecutor(options.jobs) as pool:
        for name, found in pool.map(one, [(number, *job) for number, job in enumerate(tried.items())]):
            for row in found:
                verdicts = {mode: run["verdict"] for mode, run in row["runs"].items()}
                row_kept = {key: row.get(key) for key in _KEPT} | {"verdicts": verdicts}
                report["caches"][name]["differences"].append(row_kept)


def quick(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the first case of each group that needs neither processes of its own nor C++."""
    first: dict[str, str] = {}
    for row in rows:
        if not (row["variables"] or row["flags"] or row["lowered"]):
            first.setdefault(row["group"], row["name"])
    return [row for row in rows if first.get(row["group"]) == row["name"]]


if __name__ == "__main__":
    sys.exit(main())
