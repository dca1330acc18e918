"""Compare the speed of two commits by the ratios of the demo's starts, of the restore and of the registry.

Each commit gets a worktree and an environment of its own (``make venv``). A round runs the benchmarks of each
commit once; odd rounds begin with the second commit, so that no commit always has the quieter half. A ratio
compares two numbers of one run, so that a machine which becomes slower changes both.

    cachesvc / cold                first output, from a registry on an empty host, to PyTorch alone
    cachesvc / PyTorch warm        the same to PyTorch alone over the folders of its cold process
    2nd process / PyTorch warm     a second process of that host, to the same
    first fill / cp -r             a bundle of 4,000 files into an empty node, to a copy of the files
    second process / cp -r         the same with the node store filled

With ``--parts registry``, of the embedded registry, each to a bare FastAPI endpoint or to FastAPI's files, in
requests or bytes a second (more is better), and in CPU of the server for one request (less is better):

    cached, uncached               a resolve that was answered in the last 5 s, and one that was not
    download                       packs of 1 MiB

The ratios of a commit are *within noise* of the other's if their ranges over the rounds overlap.

Usage: ``python benchmarks/compare_commits.py OLD NEW [--rounds 3] [--models bert] [--place FOLDER]``. A round
takes minutes for each model and commit, and half a minute for the registry. ``--place`` keeps worktrees and
environments, and takes those that are there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that `python FILE` works

from benchmarks.hosts import ROOT, Failed, clean_environment, running_process  # noqa: E402
from cachesvc.cli.signals import interruptible  # noqa: E402

STARTS = {
    "cachesvc / cold": ("cachesvc", "cold"),
    "cachesvc / PyTorch warm": ("cachesvc", "local warm, first"),
    "2nd process / PyTorch warm": ("cachesvc, 2nd process", "local warm, first"),
}
"""The methods of `cold_start.py` whose first outputs are compared, by ratio."""
PARTS = ("starts", "fills", "registry")
"""What can be compared."""
FILLS = ("first fill", "second process")
"""The methods of `restore.py` that are compared with ``cp -r``."""
Ratios = dict[str, float]


def main() -> int:
    options = _options()
    try:
        with interruptible(), _place(options.place) as place:
            report = _compared(options, place)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(table(report)))
    print(f"written: {options.json}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a commit, as git names it")
    parser.add_argument("new", help="the commit that is compared with it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--models", nargs="+", default=["bert", "llama", "vit"], help="of benchmarks/models.py"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:2], help="default: starts fills")
    parser.add_argument(
        "--place", type=Path, help="folder of worktrees that are kept; default: a temporary one"
    )
    results = ROOT / "benchmarks" / "results"
    parser.add_argument("--json", type=Path, default=results / "compare_commits.json")
    return parser.parse_args()


def _place(folder: Path | None) -> Any:
    """Return a context of the folder for the worktrees."""
    if folder is None:
        return tempfile.TemporaryDirectory(prefix="cachesvc-commits-")
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext(folder)


def _compared(options: argparse.Namespace, place: str | Path) -> dict[str, Any]:
    with (
        _checkout(options.old, Path(place, "old"), options.place is not None) as old,
        _checkout(options.new, Path(place, "new"), options.place is not None) as new,
    ):
        loads = []
        for number in range(options.rounds):
            loads.append(os.getloadavg()[0])
            for checkout in order(old, new, number):
                print(f"round {number + 1} of {options.rounds}: {checkout.commit[:10]}", flush=True)
                checkout.measure(options.parts, options.models)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hardware": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "loads": loads,
        "commits": {"old": old.about, "new": new.about},
        "ratios": compared(old.rounds, new.rounds),
    }


# One commit -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Checkout:
    """Is a commit in a worktree with an environment of its own, and holds the ratios of each round."""

    folder: Path
    commit: str
    subject: str
    rounds: list[Ratios] = field(default_factory=list)

    @property
    def about(self) -> dict[str, str]:
        return {"commit": self.commit, "subject": self.subject}

    def measure(self, parts: Sequence[str], models: Sequence[str]) -> None:
        """Run the benchmarks of this commit once and keep their ratios. Raise ``Failed`` if one fails."""
        ratios: Ratios = {}
        if "starts" in parts:
            methods = sorted({method for pair in STARTS.values() for method in pair})
            options = ("--rounds", "1", "--models", *models, "--methods", *methods)
            ratios |= ratios_of_starts(self._run("benchmarks/cold_start.py", *options))
        if "fills" in parts:
            ratios |= ratios_of_fills(self._run("benchmarks/restore.py", "--rounds", "3"))
        if "registry" in parts:
            options = ("--quick", "--columns", "embedded", "--parts", "rates", "transfers")
            ratios |= ratios_of_registry(self._run("-m", "benchmarks.registry", *options))
        self.rounds.append(ratios)

    def _run(self, *program: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="cachesvc-report-") as folder:
            path = Path(folder, "report.json")
            _finish([str(self.folder / ".venv/bin/python"), *program, "--json", str(path)], self.folder)
            report: dict[str, Any] = json.loads(path.read_text())
            return report


@contextmanager
def _checkout(name: str, folder: Path, keep: bool) -> Iterator[Checkout]:
    """Check a commit out and install it for the length of the block. ``keep``: leave the worktree there
    afterwards."""
    commit = _git("rev-parse", "--verify", f"{name}^{{commit}}")
    if not folder.exists():
        _git("worktree", "add", "--detach", str(folder), commit)
    elif subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip() != commit:
        raise Failed(f"{folder} has another commit than {name}: remove it with git worktree remove")
    try:
        _finish(["make", "--no-print-directory", "venv"], folder)
        yield Checkout(folder, commit, _git("log", "-1", "--format=%s", commit))
    finally:
        if not keep:
            _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> str:
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failed(f"git {' '.join(words)}: {result.stderr.strip()}")
    return result.stdout.strip()


def _finish(command: Sequence[str], folder: Path) -> None:
    """Run a command in ``folder`` to its end. Its output goes to this process's stderr."""
    with running_process(command, cwd=folder, env=clean_environment(), stdout=2) as process:
        if process.wait():
            raise Failed(f"{' '.join(command)} ended with status {process.returncode} in {folder}")


# Numbers --------------------------------------------------------------------------------------


def order(old: Checkout, new: Checkout, number: int) -> tuple[Checkout, Checkout]:
    """Return both commits in the order of the round ``number``, which counts from 0."""
    return (new, old) if number % 2 else (old, new)


def ratios_of_starts(report: dict[str, Any]) -> Ratios:
    """Return the ratios of each model in a report of `cold_start.py`."""
    return {
        f"{model}: {what}": result["methods"][ours]["first"] / result["methods"][theirs]["first"]
        for model, result in report["models"].items()
        for what, (ours, theirs) in STARTS.items()
    }


def ratios_of_fills(report: dict[str, Any]) -> Ratios:
    """Return the ratios on each file system in a report of `restore.py`."""
    return {
        f"{run['filesystem']}: {method} / cp -r": run["ratio_to_cp"][method]
        for run in report["runs"]
        for method in FILLS
    }


def ratios_of_registry(report: dict[str, Any]) -> Ratios:
    """Return the ratios of a report of `registry.py`."""
    column = report["columns"]["embedded"]
    ratios = {}
    for name, row in column["requests"].items():
        if name != "bare":
            ratios[f"{name}: requests a second / bare"] = row["of_bare"]
            ratios[f"{name}: CPU of a request / bare"] = row["cpu_of_bare"]
    for row in column["transfers"]:
        ratios[f"download of {row['MiB']} MiB / plain"] = row["download_ratio"]
    return ratios


def compared(old: Sequence[Ratios], new: Sequence[Ratios]) -> dict[str, dict[str, Any]]:
    """Return the values of each ratio in all rounds of both commits, and whether their ranges overlap."""
    comparison = {}
    for name in old[0]:
        before, after = ([ratios[name] for ratios in rounds] for rounds in (old, new))
        comparison[name] = {
            "old": before,
            "new": after,
            "change": statistics.median(after) / statistics.median(before) - 1,
            "within_noise": min(after) <= max(before) and min(before) <= max(after),
        }
    return comparison


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report as text: the median of each ratio and its range in both commits."""
    for which, about in report["commits"].items():
        yield f"{which}  {about['commit'][:10]}  {about['subject']}"
    for name, values in report["ratios"].items():
        ranges = "   ".join(_range(values[which]) for which in ("old", "new"))
        verdict = "within noise" if values["within_noise"] else "DIFFERENT"
        yield f"  {name:45} {ranges}   {values['change']:+7.1%}   {verdict}"


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    sys.exit(main())
