"""Runs the project's tests of one release of torch after another, and notes what passed.

    python -m tools.versions VERSION...     needs .torch/VERSION: make torch-env VERSION=...

`make versions` runs it for every supported release and then writes docs/reference/versions.md. A release that
is not named keeps what was noted before. The tests are those of hooks, keys and kinds, and two end to end: a
fresh process that restores, and the canary that compares restored code with eager.
"""

from __future__ import annotations

import datetime
import json
import os
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
SUITE = (
    *("tests/kinds", "tests/hooks", "tests/graphs", "tests/environment", "tests/canary"),
    *("tests/e2e/test_canary.py", "tests/e2e/test_restored.py"),
)
ASK = (
    "import json, platform; from cachesvc_client.environment import releases\n"
    "print(json.dumps([platform.python_version(), releases.torch()[0], releases.triton()]))"
)


def run(version: str) -> dict[str, Any]:
    """Run the suite on one release; return what was run and what came of it.

    Raises ``FileNotFoundError`` if there is no environment with that release.
    """
    python = ROOT / ".torch" / version / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"no environment with torch {version}: make torch-env VERSION={version}")
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True, cwd=ROOT)
    interpreter, torch, triton = json.loads(asked.stdout)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
        variables = {**os.environ, "CACHESVC_UNTESTED": "1"}
        subprocess.run([*command, f"--junitxml={report}", *SUITE], cwd=ROOT, env=variables, check=False)
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "python": interpreter,
            "torch": torch,
            "triton": triton,
            **count(report),
        }


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


def main(versions: Sequence[str]) -> int:
    """Run the suite for each release and note the results; return 1 if a test failed."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for version in versions:
        try:
            results[version] = run(version)
        except FileNotFoundError as error:
            print(f"versions: {error}", file=sys.stderr)
            return 1
        ordered = dict(sorted(results.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
        print(f"torch {version}: {results[version]}")
    return int(any(results[version]["failed"] for version in versions))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
