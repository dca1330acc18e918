"""``make fuzz``: a long search over every parser, guided by coverage where atheris is there, and the planted
faults. Prints a table, and writes the numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .choices import ByteRandom
from .planted import REPOSITORY, python_environment, search

RESULTS = REPOSITORY / "benchmarks/results/fuzz_2.json"
MAX_BYTES = 600
"""Bytes of choices of one guided input."""
PACKAGES = ("atheris", "cachesvc", "cryptography", "fastapi", "hypothesis", "zstandard")


class Tally:
    """Counts inputs, outcomes and crashes of one parser."""

    def __init__(self, check: Any, runs: int, out: Path) -> None:
        self._check, self._runs, self._out = check, runs, out
        self._inputs, self._outcomes, self._began = 0, set[str](), time.monotonic()
        self._crashes: dict[str, dict[str, str]] = {}

    def one(self, choose: random.Random, origin: str) -> None:
        """Runs one input; writes the counts after the last."""
        if self._inputs >= self._runs:
            return
        self._inputs += 1
        try:
            self._outcomes.add(self._check(choose))
        except Exception as error:  # noqa: BLE001 - every crash counts, and the search goes on
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno} {type(error).__name__}"
            shown = "".join(traceback.format_exception(error))[-3000:]
            self._crashes.setdefault(place, {"input": origin, "shown": shown})
        if self._inputs == self._runs:
            self.write()

    def write(self) -> None:
        """Writes the counts."""
        self._out.write_text(
            json.dumps(
                {
                    "inputs": self._inputs,
                    "outcomes": sorted(self._outcomes),
                    "crashes": self._crashes,
                    "seconds": round(time.monotonic() - self._began, 1),
                }
            )
        )


def _child(name: str, runs: int, out: Path, guided: bool) -> None:
    """Searches one parser in this process. libFuzzer ends the process by itself."""
    if not guided:
        from .parsers import all_parsers, opened

        with opened(all_parsers()[name]) as check:
            tally = Tally(check, runs, out)
            for seed in range(runs):
                tally.one(random.Random(seed), f"seed {seed}")
        return
    import atheris

    with atheris.instrument_imports(include=["cachesvc_client", "cachesvc"], enable_loader_override=False):
        from .parsers import all_parsers, opened

        parser = all_parsers()[name]
    with opened(parser) as check:
        tally = Tally(check, runs, out)
        options = [f"-runs={runs}", f"-max_len={MAX_BYTES}", "-len_control=0", "-seed=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options], lambda data: tally.one(ByteRandom(data), data.hex()))
        atheris.Fuzz()


def _search_parser(name: str, runs: int, guided: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "tests.security.fuzz.run", "--child", name, str(runs), str(out)]
        done = subprocess.run(
            [*command, *(["--guided"] if guided else [])],
            cwd=REPOSITORY,
            # libFuzzer ends the process without cleaning up: its files go with this folder.
            env={**python_environment(), "TMPDIR": folder},
            capture_output=True,
            text=True,
        )
        if not out.exists():
            crash = {"input": "", "shown": done.stderr[-3000:]}
            return {"inputs": 0, "outcomes": [], "crashes": {"the process ended": crash}, "seconds": 0.0}
        return json.loads(out.read_text())


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def main() -> int:
    """Runs the search, and returns the exit status: 1 after a crash, or for a fault that was not found."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--examples", type=int, default=100_000)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--out", type=Path, default=RESULTS)
    arguments.add_argument("--child", nargs=3, metavar=("PARSER", "RUNS", "OUT"))
    arguments.add_argument("--guided", action="store_true")
    chosen = arguments.parse_args()
    if chosen.child:
        _child(chosen.child[0], int(chosen.child[1]), Path(chosen.child[2]), chosen.guided)
        return 0
    from .parsers import all_parsers

    versions, parsers = _versions(), all_parsers()
    guided, total = "atheris" in versions, sum(parser.share for parser in parsers.values())
    with ThreadPoolExecutor(chosen.jobs) as pool:
        searches = {
            name: pool.submit(_search_parser, name, -(-chosen.examples * parser.share // total), guided)
            for name, parser in sorted(parsers.items(), key=lambda item: item[0] not in ("pack", "publish"))
        }
        faults = pool.submit(search)
        found = {name: each.result() for name, each in searches.items()}
        planted = faults.result()
    engine = "atheris (coverage)" if guided else "random.Random"
    _print(found, planted, engine)
    record = {"date": time.strftime("%Y-%m-%d"), "engine": engine, "versions": versions}
    record |= {"inputs": sum(row["inputs"] for row in found.values()), "parsers": found, "planted": planted}
    chosen.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    failed = any(row["crashes"] for row in found.values()) or any(
        row["inputs"] is None or row["control"] for row in planted
    )
    return int(failed)


def _print(found: dict[str, dict[str, Any]], planted: list[dict[str, Any]], engine: str) -> None:
    print(f"{'parser':<10} {'inputs':>8} {'outcomes':>9} {'crashes':>8} {'seconds':>8}   ({engine})")
    for name, row in found.items():
        counts = (row["inputs"], len(row["outcomes"]), len(row["crashes"]), row["seconds"])
        print(f"{name:<10} {counts[0]:>8} {counts[1]:>9} {counts[2]:>8} {counts[3]:>8}")
        for place, crash in row["crashes"].items():
            print(f"  {place}: input {crash['input'][:200]}\n{crash['shown']}")
    print(f"\n{'planted fault':<55} {'parser':<9} found after")
    for row in planted:
        after = "not found" if row["inputs"] is None else f"{row['inputs']} inputs"
        print(f"{row['fault'].replace('_', ' '):<55} {row['parser']:<9} {after}")


if __name__ == "__main__":
    sys.exit(main())
