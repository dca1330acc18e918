"""Try every case of the hunt on versions of torch: ``python -m tests.differences.hunt [options]``.

Prints a line for each group and one for each problem. Ends with status 1 if there is a false hit, a silent
compile, or a planted hole that was not found. ``--out`` writes the rows as JSON and a report beside it.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hosts import Failed

from . import batches, report

SMALL = 1
"""Cases of each group in a small run."""
FIRST_WITH_FRAMES = (2, 11)
LAST_WITH_FRAMES = (2, 15)


def main() -> int:
    options = _options()
    results = {}
    for version in options.versions.split() or [""]:
        begin, spent = time.monotonic(), _cpu_seconds()
        result = one_version(version, options)
        result["minutes"] = round((time.monotonic() - begin) / 60, 1)
        result |= {"date": f"{datetime.date.today()}", "client": batches.commit_of_client()}
        result["cpu_minutes"] = round((_cpu_seconds() - spent) / 60, 1)
        results[result["torch"].partition("+")[0]] = result
        print(report.text(result), flush=True)
        if options.out:
            report.write(options.out, results)
    return int(any(report.problems(result) for result in results.values()))


def _cpu_seconds() -> float:
    """Return the CPU time of all processes that ended: other work on the machine makes them wait."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", default="", help="versions of .torch; else the torch that is here")
    parser.add_argument("--groups", default="", help="beginnings of names of groups, with commas; else all")
    parser.add_argument("--only", default="", help="a regular expression for 'group: name'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0, help="so many cases of each group, by the seed")
    parser.add_argument("--small", action="store_true", help="one case of each group")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth case of each group, from the Ith")
    parser.add_argument("--planted", type=int, default=3, help="planted holes of each group")
    parser.add_argument("--without-frames", action="store_true")
    parser.add_argument("--as-you-go", action="store_true", help="services record frames, and not warm")
    parser.add_argument("--jobs", type=int, default=2, help="batches at once")
    parser.add_argument("--size", type=int, default=100, help="rows of a batch")
    parser.add_argument("--keep", type=Path, help="a new folder that keeps what the processes wrote")
    parser.add_argument("--out", type=Path, help="the JSON to write; the report goes beside it, as .md")
    return parser.parse_args()


def one_version(version: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan and try the rows with one torch."""
    python = batches.ROOT / ".torch" / version / "bin" / "python" if version else Path(sys.executable)
    if not python.exists():
        sys.exit(f"error: no environment with torch {version}: make torch-env VERSION={version}")
    with tempfile.TemporaryDirectory(prefix="cachesvc-hunt-") as scratch:
        place = options.keep / (version or "here") if options.keep else Path(scratch)
        return _try_all(python, place, options)


def _try_all(python: Path, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    limit = SMALL if options.small else options.limit
    names = {"seed": options.seed, "groups": options.groups, "only": options.only, "limit": limit}
    names |= {"planted": options.planted, "part": options.part}
    arguments = [f"--{name}={value}" for name, value in names.items()]
    batches.module("plan", python, place / "plan", {}, (), [place, *arguments])
    plan = report.read(place / "plan.json")
    frames = has_frames(plan["torch"]) and not options.without_frames
    groups = list(batches.batches(plan["rows"], options.size))
    rows, failed = [], []

    def one(item: tuple[int, Any]) -> list[dict[str, Any]]:
        number, members = item
        try:
            folder, serving = place / f"batch{number}", options.as_you_go
            found = batches.run(python, members, place / "cases", folder, frames, serving)
        except Failed as error:
            failed.append(str(error))
            print(f"a batch failed: {error}", file=sys.stderr)
            return []
        wrong = report.problems({"rows": found})
        print("\n".join([f"batch {number + 1} of {len(groups)}: {len(found)} rows", *wrong]), file=sys.stderr)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(one, enumerate(groups)):
            rows += found
    return {"torch": plan["torch"], "seed": options.seed, "frames": frames, "failed": failed, "rows": rows}


def has_frames(version: str) -> bool:
    """Return whether frames are recorded with a torch."""
    number = tuple(map(int, version.split(".")[:2]))
    return FIRST_WITH_FRAMES <= number <= LAST_WITH_FRAMES


if __name__ == "__main__":
    sys.exit(main())
