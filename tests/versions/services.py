"""Run the service of these tests, and commands, on any version of torch."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.harness import PROGRAMS, WARMED

HERE = Path(__file__).parent / "programs"
SERVICE = HERE / "service.py"
NOWHERE = "http://127.0.0.1:9"


@dataclass
class ServiceResult:
    """Holds the end of a process: its exit status, the JSON that it printed, and the lines that cachesvc
    logged."""

    code: int
    answer: dict[str, Any]
    log_lines: list[str]
    err: str


def environment(place: Path, **variables: str) -> dict[str, str]:
    """Return an environment that shares no folder and no setting of cachesvc with this process."""
    for name in ("home", "tmp", "work"):
        (place / name).mkdir(parents=True, exist_ok=True)
    environ = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **environ,
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "PYTHONPATH": str(PROGRAMS),
        "OMP_NUM_THREADS": "2",
        **WARMED,
        **variables,
    }


def serve(python: Path | str, place: Path, *arguments: str, **variables: str) -> ServiceResult:
    """Run the service on ``python``."""
    trusted = str(SigningKey.generate().public)
    env = environment(place, **{"CACHESVC_URL": NOWHERE, "CACHESVC_TRUSTED_KEYS": trusted, **variables})
    result = subprocess.run(
        [python, SERVICE, *arguments],
        cwd=place / "work",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    log_lines = [line for line in result.stderr.splitlines() if "team/x" in line or "cachesvc" in line]
    return ServiceResult(result.returncode, json.loads(lines[-1]) if lines else {}, log_lines, result.stderr)


def run_command(
    python: Path | str, place: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``cachesvc`` on ``python``, in ``place``."""
    command = [python, "-m", "cachesvc", *words]
    env = environment(place, **variables)
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
