"""Runs the project's tests of one release of torch after another, and notes what passed.

    python -m tools.versions [--only matrix] VERSION...     needs .torch/VERSION: make torch-env VERSION=...

`make versions` runs it for every supported release and then writes docs/reference/versions.md. What is not
run keeps what was noted before. VERSION may name a Python too: 2.13.0-3.13.

There are two groups. ``tests`` are those of hooks, keys and kinds, and two
end to end: a fresh process that restores, and the canary that compares restored code with eager. ``matrix``
are the differences between a builder and a service, each with its outcome.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions_tests.json"
GROUPS = {
    "tests": (
        *("tests/kinds", "tests/hooks", "tests/graphs", "tests/environment", "tests/canary"),
        *("tests/e2e/test_canary.py", "tests/e2e/test_restored.py", "tests/e2e/test_frames.py"),
    ),
    "matrix": ("tests/matrix",),
}
ASK = (
    "import json, platform; from cachesvc_client.environment import releases\n"
    "print(json.dumps([platform.python_version(), releases.torch()[0], releases.triton()]))"
)


def run(version: str, groups: Sequence[str]) -> dict[str, Any]:
    """Run groups of tests on one release; return what was run and what came of each group.

    Raises ``FileNotFoundError`` if there is no environment with that release.
    """
    python = ROOT / ".torch" / version / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"no environment with torch {version}: make torch-env VERSION={version}")
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True, cwd=ROOT)
    interpreter, torch, triton = json.loads(asked.stdout)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results = {"date": date, "python": interpreter, "torch": torch, "triton": triton}
    for group in groups:
        if tests := [one for one in GROUPS[group] if not (client_alone(interpreter) and _needs_server(one))]:
            results[group] = _run_group(python, tests)
    return results


def client_alone(interpreter: str) -> bool:
    """Return whether only the client runs on a version of Python: the server and `warm` need 3.11."""
    return int(interpreter.split(".")[1]) < 11


def _needs_server(tests: str) -> bool:
    return tests.startswith(("tests/e2e", "tests/matrix"))


def _run_group(python: Path, tests: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
        subprocess.run([*command, f"--junitxml={report}", *tests], cwd=ROOT, check=False)
        return count(report)


def count(report: Path) -> dict[str, Any]:
    """Return how many tests a JUnit report has of each outcome, and the names of those that failed.

    Raises ``OSError`` if the tests did not run.
    """
    failed, skipped, passed = [], 0, 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed.append(f"{re.sub(r'^tests[.]', '', case.get('classname', ''))}::{case.get('name')}")
        elif "skipped" in outcomes:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": sorted(failed)}


def main() -> int:
    """Run the groups for each release and note the results; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--only", choices=list(GROUPS), help="one group of tests; otherwise all")
    options = parser.parse_args()
    groups = [options.only] if options.only else list(GROUPS)
    failed = False
    for version in options.versions:
        try:
            result = run(version, groups)
        except FileNotFoundError as error:
            print(f"versions: {error}", file=sys.stderr)
            return 1
        note(version, result)
        print(f"torch {version}: {result}")
        failed = failed or any(result[group]["failed"] for group in groups if group in result)
    return int(failed)


def note(version: str, result: dict[str, Any]) -> None:
    """Note what came of a release, beside what was noted before."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[version] = results.get(version, {}) | result
    ordered = dict(
        sorted(results.items(), key=lambda item: [int(part) for part in re.split("[.-]", item[0])])
    )
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
