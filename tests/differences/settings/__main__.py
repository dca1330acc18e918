"""Try every setting on versions of torch: ``python -m tests.differences settings [options] [WORD…]``.

For each version one builder compiles the probes. Services restore its bundle and try the differences whose
group or name holds one of the words. Prints how many differences came to which outcome and what is wrong, and
ends with status 1 if anything is. ``--out`` writes all outcomes as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hosts import QUICK, Failed, Host
from cachesvc_client.bundle.seal import SigningKey

from .trial import WORST_FIRST, count, outcome_of

ROOT = Path(__file__).parents[3]
BAD = ("false hit", "unknown")
SMALL = (
    "none: nothing",
    "context: autocast(cpu, bfloat16)",
    "context: inference_mode",
    "program: closure: float",
    "program: operator: backward",
    "program: forward hook",
    "input: float64",
    "input: transposed memory",
    "torch.set_*: set_default_dtype(torch.float64)",
)
"""The differences that a small run tries."""


def exactly(names: Sequence[str]) -> str:
    """Return the regular expression for ``only`` that matches these differences."""
    return f"^({'|'.join(map(re.escape, names))})$"


def run(
    python: Path,
    place: Path,
    only: str = "",
    probes: Sequence[str] = (),
    plant: str = "",
    under: str = "",
    jobs: int = 1,
    frames: bool = False,
    chosen: Sequence[Any] = (),
    **variables: str,
) -> dict[str, Any]:
    """Build and try differences with one interpreter. Return the rows, and what has no other value.

    ``frames``: record what Dynamo traces too, so that services are given frames.
    ``only``: a regular expression for ``group: name`` of differences. ``probes``: all if empty.
    ``chosen``: more arguments of the service, which choose among those.
    ``plant``: see `service.leave_out`. ``under``: the difference that the builder has. Raises ``Failed`` if
    a process fails.
    """
    place.mkdir(parents=True, exist_ok=True)
    key, bundle = place / "signing.key", place / "probes.cachesvc"
    SigningKey.generate().save(key)
    common = ["--probes", " ".join(probes), "--plant", plant]
    environ = {**variables, "CACHESVC_TRUSTED_KEYS": str(SigningKey.load(key).public)}
    _service(python, place / "builder", environ, "build", bundle, key, *common, "--under", under)
    if frames:
        _service(python, place / "recorder", environ, "record", bundle, key, *common, "--under", under)

    def share(index: int) -> dict[str, Any]:
        out, host = place / f"{index}.json", place / f"service{index}"
        more = ["--share", f"{index}/{jobs}", "--only", only, *chosen]
        _service(python, host, environ, "try", bundle, out, *common, *more)
        return dict(json.loads(out.read_text()))

    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(share, range(jobs)))
    rows = [row for part in parts for row in part["rows"]]
    return {name: parts[0][name] for name in ("torch", "of", "left_out")} | {"rows": rows}


def try_variables(python: Path, place: Path, jobs: int = 1) -> list[dict[str, Any]]:
    """Try each variable that the compiler's sources read, in a process of its own, with the bundle of `run`.

    A variable with which the process does not start is a row that is not applied.
    """
    public = SigningKey.load(place / "signing.key").public
    listed = place / "variables.json"
    _service(python, place / "builder", {}, "variables", place / "probes.cachesvc", listed)

    def one(item: tuple[str, str]) -> dict[str, Any]:
        name, value = item
        out = place / f"{name}.json"
        environ = {name: value, "CACHESVC_TRUSTED_KEYS": str(public)}
        try:
            _service(python, place / name, environ, "try", place / "probes.cachesvc", out, "--variable", name)
        except Failed as error:
            why = str(error).strip().splitlines()[-1][:160]
            return {
                "group": "variable",
                "name": f"{name}={value}",
                "applied": False,
                "probes": {},
                "why": why,
            }
        return dict(json.loads(out.read_text())["rows"][0])

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, sorted(json.loads(listed.read_text()).items())))


def _service(python: Path, folder: Path, environ: dict[str, str], *arguments: Any) -> None:
    """Run the program `service` on a host of its own.

    Compile threads of its own would be threads that a forked child lacks.
    """
    common = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2", **QUICK}
    paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    variables = {**common, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **environ}
    command = [
        str(one) for one in (python, "-W", "ignore", "-m", "tests.differences.settings.service", *arguments)
    ]
    host = Host(folder)
    result = subprocess.run(
        command,
        env=host.environment() | variables,
        cwd=folder / "work",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if "record" in arguments and result.stderr.strip():
        print(result.stderr[-3000:], file=sys.stderr)
    if result.returncode:
        raise Failed(f"{' '.join(command)}: status {result.returncode}\n{result.stderr[-3000:]}")


# The command ----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of the names of differences; all if there is none")
    parser.add_argument(
        "--versions", default="", help="versions of .torch; by default the torch that is here"
    )
    parser.add_argument("--small", action="store_true", help="a few differences")
    parser.add_argument("--frames", action="store_true", help="entries hold what Dynamo traced, too")
    parser.add_argument("--variables", action="store_true", help="the variables too, each in its own process")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--some", type=int, default=0, help="so many, the same share of each group")
    parser.add_argument("--minutes", type=float, help="begin no more for a version after so many minutes")
    parser.add_argument("--rest", action="store_true", help="only those that the JSON of --out does not have")
    parser.add_argument(
        "--out", type=Path, help="the JSON to write; versions and differences that were not tried stay in it"
    )
    options = parser.parse_args()
    results = {}
    for version in options.versions.split() or [""]:
        result = _one_version(version, options)
        results[result["torch"].partition("+")[0]] = result
        print(table(result), flush=True)
        if options.out:
            write(options.out, results)
    return int(any(problems(result["rows"]) for result in results.values()))


def _one_version(version: str, options: argparse.Namespace) -> dict[str, Any]:
    python = ROOT / ".torch" / version / "bin" / "python" if version else Path(sys.executable)
    if not python.exists():
        sys.exit(f"error: no environment with torch {version}: make torch-env VERSION={version}")
    only = exactly(SMALL) if options.small else "|".join(map(re.escape, options.words))
    chosen = ["--some", str(options.some)]
    if options.minutes:
        chosen += ["--seconds", str(options.minutes * 60)]
    if options.rest and options.out.exists():
        before = json.loads(options.out.read_text()).get(version, {"rows": []})["rows"]
        chosen += ["--without", exactly([f"{row['group']}: {row['name']}" for row in before])]
    with tempfile.TemporaryDirectory(prefix="cachesvc-differences-") as folder:
        result = run(python, Path(folder), only, jobs=options.jobs, frames=options.frames, chosen=chosen)
        if options.variables:
            result["rows"] += try_variables(python, Path(folder), options.jobs)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"date": date, **result, "rows": [_short(row) for row in result["rows"]]}


def write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write the results of versions, one line for each difference. Other versions in the file stay, and so do
    other differences of these versions."""
    before = json.loads(path.read_text()) if path.exists() else {}
    versions = []
    for version, result in sorted({**before, **results}.items()):
        every = before.get(version, {"rows": []})["rows"] + result["rows"]
        by_name = {(row["group"], row["name"]): row for row in every}
        rows = ",\n".join(json.dumps(row) for row in by_name.values())
        about = json.dumps({name: value for name, value in result.items() if name != "rows"})
        versions.append(f'{json.dumps(version)}: {about[:-1]}, "rows": [\n{rows}]}}')
    path.write_text("{" + ",\n".join(versions) + "}\n")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the verdicts on its probes, and why for those that need a word."""
    probes = {
        name: probe["verdict"] if probe["verdict"] in ("right", "compiled", "not reached") else probe
        for name, probe in row["probes"].items()
    }
    return {**row, "probes": probes, "outcome": outcome_of(row)}


def problems(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each false hit, each silent compile, and each hit that could not be judged."""
    lines = []
    for row in rows:
        name = f"{row['group']}: {row['name']}"
        for probe, verdict in row["probes"].items():
            if isinstance(verdict, dict) and verdict["verdict"] in BAD:
                lines.append(f"{verdict['verdict']}: {name}, probe {probe}: {verdict['why']}")
        if row.get("silent"):
            lines.append(f"silent: {name}: the report says hit, and something compiled")
    return lines


def table(result: dict[str, Any]) -> str:
    """Return a line for each group with the number of differences of each outcome, and then the problems."""
    rows = result["rows"]
    lines = [f"torch {result['torch']}: {len(rows)} differences, {len(result['left_out'])} left out"]
    for group, outcomes in count(rows).items():
        kinds = [*WORST_FIRST, "not applied"]
        lines.append(
            f"  {group:18}" + ", ".join(f"{outcomes[kind]} {kind}" for kind in kinds if outcomes[kind])
        )
    return "\n".join([*lines, *problems(rows)])


if __name__ == "__main__":
    sys.exit(main())
