"""Test that a service runs on every version of torch as it runs without cachesvc, whether cachesvc refuses
that version, tries it untested, or does not know it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.harness import PROGRAMS, SCALAR

from .environments import python_of

SERVICE = Path(__file__).parent / "programs" / "service.py"
NOWHERE = "http://127.0.0.1:9"
OLD = ("2.6.0", "2.7.1")
"""Versions for which no hook was ever made."""


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
        **SCALAR,
        **variables,
    }


def serve(python: Path | str, place: Path, *arguments: str, **variables: str) -> ServiceResult:
    """Run the service on ``python``."""
    trusted = str(SigningKey.generate().public)
    env = environment(place, CACHESVC_URL=NOWHERE, CACHESVC_TRUSTED_KEYS=trusted, **variables)
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


def assert_untouched(service: ServiceResult) -> None:
    """Assert that the service worked, and that no hook was in it."""
    assert service.code == 0, service.err[-4000:]
    assert service.answer.get("right"), service.answer
    assert service.answer["status"] == "failed"
    assert service.answer["ours"] == [] == service.answer["ours after it"]
    assert service.answer["pending after it"] == []
    assert "Traceback" not in service.err
    [line] = service.log_lines
    assert "not restored, this process compiles" in line and "is not tested with this client" in line


@pytest.mark.parametrize("version", OLD)
def test_a_refused_version_has_no_hook_in_it(version: str, tmp_path: Path) -> None:
    service = serve(python_of(version), tmp_path, "attach-first")
    assert_untouched(service)
    assert service.answer["pending"] == [], "no hook waits for the import of torch"
    assert f"torch {version}" in service.log_lines[0]


@pytest.mark.parametrize("version", OLD)
def test_an_untested_version_serves_as_without_cachesvc(version: str, tmp_path: Path) -> None:
    """Nothing can be restored here: the service compiles under all hooks, as a start without an entry
    does."""
    service = serve(python_of(version), tmp_path, "attach-first", CACHESVC_UNTESTED="1")
    assert service.code == 0, service.err[-4000:]
    assert service.answer.get("right"), service.answer
    assert service.answer["ours"], "the hooks are in place"
    assert "Traceback" not in service.err
    [line] = service.log_lines
    assert "not restored, this process compiles" in line


def test_hooks_are_removed_after_a_late_refusal(tmp_path: Path) -> None:
    """torch 2.11 was tested on a GPU alone, and the client learns only by detection that there is none."""
    service = serve(python_of("2.11.0"), tmp_path, "torch-first")
    assert service.answer["changed"] == []
    assert_untouched(service)


@pytest.mark.parametrize("version", ["2.7.1", "2.11.0"])
def test_strict_makes_a_refusal_an_error_of_the_first_compile(version: str, tmp_path: Path) -> None:
    service = serve(python_of(version), tmp_path, "attach-first", "wait", CACHESVC_STRICT="1")
    assert service.code == 0, service.err[-4000:]
    assert service.answer["raised by wait"] == "Unsupported"
    assert "Unsupported: torch" in service.answer["raised by the compile"]
    assert service.answer["ours"] == ["torch._inductor.compile_fx.compile_fx"]


SPEC = """\
name = "team/x"
[[target]]
id = "x"
script = "script.py"
"""


def test_warm_and_doctor_refuse_what_a_service_refuses(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "warm.toml").write_text(SPEC)
    (tmp_path / "script.py").write_text("raise SystemExit('nothing runs on a refused version')\n")
    python = python_of("2.7.1")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "cachesvc", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    warmed = run("warm", "warm.toml", "--out", "out")
    assert warmed.returncode == 8, warmed.stdout + warmed.stderr
    assert "torch 2.7.1" in warmed.stdout and "is not tested with this client" in warmed.stdout
    doctor = run("doctor")
    assert doctor.returncode == 1
    assert sum("is not tested with this client" in line for line in doctor.stdout.splitlines()) == 1


@pytest.fixture
def future(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Copy the torch of this environment with a version that does not exist yet: all files but ``version.py``
    are links."""
    installed = Path(sysconfig.get_path("purelib")) / "torch"
    copy = tmp_path / "site" / "torch"
    copy.mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name not in ("version.py", "__pycache__"):
            (copy / entry.name).symlink_to(entry)
    # Python finds a package where its link is, so the modules of the copy find each other in the copy.
    lines = (installed / "version.py").read_text().splitlines()
    changed = ["__version__ = '9.9.0'" if line.startswith("__version__ =") else line for line in lines]
    assert changed != lines
    (copy / "version.py").write_text("\n".join(changed) + "\n")
    return Path(sys.executable), {"PYTHONPATH": f"{copy.parent}{os.pathsep}{PROGRAMS}"}


def test_a_version_that_does_not_exist_yet_is_refused(
    future: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    python, variables = future
    service = serve(python, tmp_path, "attach-first", **variables)
    assert_untouched(service)
    assert "torch 9.9.0" in service.log_lines[0] and service.answer["pending"] == []
