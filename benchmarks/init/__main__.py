"""Measure for how many foreign programs ``cachesvc init`` finishes: the first ``warm`` of its spec is green.

The programs are public examples of transformers, diffusers, timm, sentence-transformers and Lightning, each
with one line that compiles; their models are small and have random weights (``hub.py``). For each: ``init``,
``warm`` of the spec as it was written, and a start of the program by ``cachesvc run``. Exit status 1 if fewer
than the aim are green. ``make bench-init`` makes the environment and runs it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from benchmarks.conditions import commit, hardware, keep, now
from benchmarks.hosts import QUICK, ROOT, Host, Registry, exit_status, registry
from benchmarks.init.table import RESULT

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = ROOT / ".torch" / "frameworks" / "bin" / "python"
AIM = 8
SCALAR = {**QUICK, "TORCHINDUCTOR_VEC_ISA_OK": "0"}
"""A compile without vector instructions takes a third of the CPU time less, and says as much about init."""
_SECONDS = 1200


@dataclass
class Row:
    """Says how far one program came. ``targets``: the id of each and what builds it; ``left_out``: what init
    said that the spec lacks; ``verdicts``: warm's, by entry; ``start``: the last line of the service."""

    program: str
    commit: str = ""
    date: str = ""
    init_status: int = -1
    init_seconds: float = 0.0
    targets: dict[str, str] = field(default_factory=dict)
    input_sets: int = 0
    left_out: list[str] = field(default_factory=list)
    warm_status: int = -1
    warm_seconds: float = 0.0
    verdicts: dict[str, str] = field(default_factory=dict)
    start: str = ""

    @property
    def green(self) -> bool:
        """Return whether the first warm of the spec ended with status 0 and made an entry."""
        return self.init_status == 0 and self.warm_status == 0 and bool(self.verdicts)


def main() -> int:
    """Measure, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.init")
    parser.add_argument("programs", nargs="*", help="names of programs, without .py; all by default")
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--keep", type=Path, help="a folder for what each program's run leaves")
    options = parser.parse_args()
    chosen = options.programs or [path.stem for path in PROGRAMS.glob("*.py")]
    files = [PROGRAMS / f"{name}.py" for name in sorted(chosen)]
    kept = json.loads(options.json.read_text())["programs"] if options.json.exists() else []
    rows: dict[str, dict[str, Any]] = {one.pop("program"): one for one in kept}

    def measure(scratch: Path) -> None:
        home = scratch / "huggingface"
        host = Host(scratch / "hub-host")
        _python(host, _variables(home), str(Path(__file__).parent / "hub.py"), str(home / "hub"))
        with registry(scratch / "registry") as served:
            for path in files:
                place = (options.keep or scratch) / path.stem
                row = _measure(path, place, served, _variables(home))
                _print(row)
                rows[path.stem] = {key: value for key, value in asdict(row).items() if key != "program"}
                rows[path.stem]["green"] = row.green
                keep(_report(rows), options.json)

    status = exit_status(measure)
    green = sum(rows[path.stem]["green"] for path in files if path.stem in rows)
    print(f"green: {green} of {len(files)}")
    return status or int(green < min(AIM, len(files)))


def _variables(home: Path) -> dict[str, str]:
    """Return the variables of all processes: the models, and torchvision without CUDA."""
    paths = [str(Path(__file__).parent / "without_cuda"), str(ROOT), str(ROOT / "client")]
    return {**SCALAR, "HF_HOME": str(home), "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}


def _python(host: Host, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    environment = host.environment() | variables
    return subprocess.run(
        [str(PYTHON), *words],
        env=environment,
        cwd=host.work or host.folder / "work",
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _measure(path: Path, place: Path, served: Registry, variables: dict[str, str]) -> Row:
    """Run init, warm and a start of one program in a folder of its own."""
    shutil.rmtree(place, ignore_errors=True)
    project = place / "project"
    project.mkdir(parents=True)
    shutil.copy(path, project)
    row, name = Row(path.stem, commit(), now()), f"team/{path.stem.replace('_', '-')}"
    host = Host(place / "builder", project)

    begin = time.monotonic()
    done = _cachesvc(host, variables, "init", "--name", name, path.name)
    row.init_seconds, row.init_status = round(time.monotonic() - begin, 1), done.returncode
    (place / "init.log").write_text(done.stdout + done.stderr)
    row.left_out = [
        line.removeprefix("not in the spec: ")
        for line in done.stdout.splitlines()
        if "not in the spec" in line
    ]
    if done.returncode:
        return row
    for target in tomllib.loads((project / "warm.toml").read_text()).get("target", []):
        row.targets[target["id"]] = target.get("factory") or f"script {target.get('script')}"
        row.input_sets += len(target.get("inputs", {}))

    begin = time.monotonic()
    builder = served.builder | {"PYTHONPATH": variables["PYTHONPATH"]}
    done = _cachesvc(host, variables | builder, "warm", "warm.toml", "--json")
    row.warm_seconds, row.warm_status = round(time.monotonic() - begin, 1), done.returncode
    (place / "warm.log").write_text(done.stdout + done.stderr)
    row.verdicts = _verdicts(done.stdout)

    service = Host(place / "service", project)
    log = {"CACHESVC_LOG": "info", "CACHESVC_DEADLINE": "120"}
    run = ("run", name, "--", str(PYTHON), path.name)
    done = _cachesvc(service, variables | served.service | log, *run)
    (place / "start.log").write_text(done.stdout + done.stderr)
    said = re.findall(rf"cachesvc: {name}:latest: (.*)", done.stderr)
    row.start = said[-1] if said else f"ended with status {done.returncode}"
    return row


def _cachesvc(host: Host, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return _python(host, variables, "-m", "cachesvc", *words)


def _verdicts(out: str) -> dict[str, str]:
    """Return the verdict of each entry of warm's report, with its first reason where it is not warm."""
    try:
        targets: list[dict[str, Any]] = json.loads(out)["targets"]
    except (ValueError, KeyError):
        return {}
    return {row["target"]: ": ".join([row["status"], *row["reasons"][:1]]) for row in targets}


def _report(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the report: the rows of this run, and those of programs that it did not run."""
    ordered = [{"program": name, **row} for name, row in sorted(rows.items())]
    return {**hardware(), "green": sum(row["green"] for row in ordered), "programs": ordered}


def _print(row: Row) -> None:
    made = ", ".join(f"{ident}: {factory}" for ident, factory in row.targets.items()) or "no target"
    seconds = f"init {row.init_seconds} s, warm {row.warm_seconds} s"
    verdicts = (f"{key}: {verdict}" for key, verdict in row.verdicts.items())
    print(f"{row.program:28} {'green' if row.green else 'RED':6} {seconds}")
    for line in (f"{made}; {row.input_sets} input sets", *row.left_out, *verdicts, f"start: {row.start}"):
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
