"""Run programs that use a framework on fresh hosts: a builder, and another node that restores."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import trap
from tests.e2e.harness import WARMED, ProgramResult, run
from tests.e2e.registries import Served

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PYTHON = HERE.parents[1] / ".torch" / "frameworks" / "bin" / "python"
VARIABLE = "CACHESVC_TEST_FRAMEWORKS"
"""If it is not set, the tests are skipped: they take minutes, and an environment of 2 GB."""
_SECONDS = 1100


def frameworks_python() -> Path:
    """Return the interpreter that has the frameworks; skip the test, or fail it, if there is none."""
    if not os.environ.get(VARIABLE):
        pytest.skip("frameworks take minutes: make test-frameworks starts them")
    if not (PYTHON.parents[1] / ".ready").exists():
        pytest.fail("no environment with the frameworks: make test-frameworks makes it")
    return PYTHON


@dataclass(frozen=True)
class Start:
    """Holds one run of a program: its answer, and what worked in it."""

    result: ProgramResult

    @property
    def answer(self) -> dict[str, Any]:
        """Return the JSON that ``programs/ending.py`` printed."""
        return self.result.answer

    @property
    def work(self) -> tuple[int, int, int]:
        """Return compilations, tuning runs and compilers.

        Compilers are those that the client counted, and those that called a trap on the PATH."""
        observed = self.answer["observed"]
        called = observed["compiler_processes"] + len(self.result.compilers)
        return observed["compilations"], observed["tuning_runs"], called


NOTHING = (0, 0, 0)


def build(place: Path, registry: Served, program: str, *arguments: str, **variables: str) -> Start:
    """Run a program on an empty host with compilers; it publishes under the name of its framework."""
    env = {**_attached(registry, program), **writing(registry), **variables}
    return _start(place, program, arguments, env)


def restore(
    place: Path,
    registry: Served,
    program: str,
    *arguments: str,
    tools: tuple[str, ...] = (),
    **variables: str,
) -> Start:
    """Run a program on an empty host whose PATH has no compiler, attached to the name that `build` published.

    ``tools``: programs that the framework runs, and that an image without compilers has."""
    folder = trap(place / "trap")
    for tool in tools:
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return _start(place, program, arguments, {**_attached(registry, program), **variables}, compilers=False)


def writing(registry: Served) -> dict[str, str]:
    """Return the variables with which a process may publish."""
    return {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}


def _attached(registry: Served, program: str) -> dict[str, str]:
    """Return the variables that attach a program to its name."""
    # The import of a framework takes longer than the default deadline on a busy machine.
    names = {"CACHESVC_NAME": f"team/{program}", "CACHESVC_DEADLINE": "120", "CACHESVC_LOG": "info"}
    return {**registry.variables, **names}


def _start(
    place: Path, program: str, arguments: tuple[str, ...], env: dict[str, str], compilers: bool = True
) -> Start:
    result = run(
        str(PROGRAMS / f"{program}.py"),
        *arguments,
        place=place,
        compilers=compilers,
        timeout=_SECONDS,
        python=str(frameworks_python()),
        HF_HUB_OFFLINE="1",
        **{**WARMED, **env},
    )
    return Start(result)
