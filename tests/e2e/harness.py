"""Run programs in fresh processes: with empty cache folders, another home, another TMPDIR and another working
directory.

Without compilers, the PATH has no C++ compiler, and the other tools on it only record that they were
called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hosts import QUICK, trap
from tests.prepared import COMPILES, USER, prepared_python, share_headers

PROGRAMS = Path(__file__).parent / "programs"
SCALAR = {"TORCHINDUCTOR_VEC_ISA_OK": "0"}
"""Variables of a compile without vector instructions, which saves half of its CPU time: PyTorch does not
probe the instructions of newer CPUs, and the compiler reads fewer headers. For tests whose processes all have
them and that ask nothing of the CPU's instructions, which are in the fingerprint."""
WARMED = {**QUICK, **SCALAR}
"""The same where processes have a TMPDIR of their own, as jobs of ``warm`` have: each would make the
precompiled header. For their services too."""
_INHERITED = ("PIP_FIND_LINKS", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHON_COLLECT_RARELY")


@dataclass
class ProgramResult:
    """Holds what a process printed.

    ``compilers``: the compilers that the process, or a child of it, called."""

    code: int
    out: str
    err: str
    compilers: list[str]

    @property
    def answer(self) -> dict[str, Any]:
        """Return the JSON of the last line."""
        assert self.code == 0, self.err[-4000:]
        return json.loads(self.out.strip().splitlines()[-1])


def environment(place: Path, **variables: str) -> dict[str, str]:
    """Return an environment that shares nothing with this process except what Python needs to find torch."""
    for name in ("home", "tmp", "work"):
        (place / name).mkdir(parents=True, exist_ok=True)
    share_headers(place / "tmp")
    environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    paths = [str(PROGRAMS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **environ,
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "2",
        "USER": USER,
        **variables,
    }


def run(
    program: str,
    *arguments: str,
    place: Path,
    compilers: bool = True,
    timeout: float = 300,
    python: str = sys.executable,
    before: tuple[str, ...] = (),
    launcher: tuple[str, ...] = (),
    prepared: bool = False,
    **variables: str,
) -> ProgramResult:
    """Run a program of ``programs/`` in ``place``; without ``compilers``, on a PATH of traps.

    ``prepared``: in an interpreter that has imported torch already, see `tests.prepared`."""
    env = {**environment(place), **variables}
    called = place / "trap" / "called"
    if not compilers:
        env["PATH"] = str(trap(place / "trap"))
    if prepared:
        assert (before, python, launcher) == ((), sys.executable, ())
        start = prepared_python(COMPILES, env)
    else:
        start = [*before, python, *launcher]
    result = subprocess.run(
        [*start, str(PROGRAMS / program), *arguments],
        cwd=place / "work",
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    names = called.read_text().splitlines() if called.exists() else []
    return ProgramResult(result.returncode, result.stdout, result.stderr, names)
