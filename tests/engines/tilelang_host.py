"""Start programs with TileLang on fresh hosts, as `engine` starts vLLM."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.hosts import trap
from tests.e2e.harness import environment
from tests.e2e.registries import Served

from .engine import HERE, PROGRAMS, EngineResult, engine_python, run_on_host

PYTHON = HERE.parents[1] / ".torch" / "tilelang-0.1.15" / "bin" / "python"
NVCC = HERE.parents[1] / ".torch" / "nvcc-13.0" / "nvidia" / "cu13"
"""The toolkit that ``make test-engines`` downloads for kernels for CUDA."""
NAME = "team/kernels"


def tilelang_python(cuda: bool = False) -> Path:
    """Return the interpreter that has TileLang; skip the test, or fail it, if there is none.

    ``cuda``: the test needs nvcc too, and is skipped without it."""
    return engine_python("TileLang", PYTHON, cuda_home() / "bin" / "nvcc" if cuda else None)


def cuda_home() -> Path:
    """Return the folder of CUDA that kernels are compiled with: the one that the variable names, else the one
    that was downloaded, else this machine's."""
    named = os.environ.get("CUDA_HOME")
    return Path(named) if named else NVCC if NVCC.exists() else Path("/usr/local/cuda")


def start(
    place: Path,
    registry: Served | None,
    program: str,
    *arguments: str,
    publish: bool = False,
    compilers: bool = True,
    **variables: str,
) -> EngineResult:
    """Run a program to its end on the host ``place``, attached to `NAME`; without a registry it is
    attached to nothing.

    ``publish``: it may publish. ``compilers``: else its PATH has no C++ compiler, and the other compilers on
    it only record that they were called."""
    env = host_environment(place)
    if registry is not None:
        env |= {**registry.variables, "CACHESVC_NAME": NAME, "CACHESVC_DEADLINE": "60"}
        if publish:
            env |= {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}
    if not compilers:
        env["PATH"] = str(without_compiler(place / "trap"))
    return run_on_host([str(PYTHON), str(PROGRAMS / program), *arguments], place, {**env, **variables})


def build(place: Path, registry: Served, program: str, **variables: str) -> EngineResult:
    """Compile a program's kernels on an empty host and publish them; then the host is gone."""
    result = start(place, registry, program, f"publish={NAME}", publish=True, **variables)
    shutil.rmtree(place)
    return result


def work(result: EngineResult) -> tuple[int, int, int]:
    """Return TileLang's compilations, the compilers that it started, and those that were called from
    outside."""
    observed = result.answer["observed"]
    assert observed["compilations"] == observed["counts"].get("tilelang", {}).get("compilations", 0)
    return observed["compilations"], observed["compiler_processes"], len(result.compilers)


def host_environment(place: Path) -> dict[str, str]:
    """Return the variables of a process on the host ``place``; it imports this tree, also where the
    environment was made from another one."""
    paths = [PROGRAMS, HERE.parents[1], HERE.parents[1] / "client"]
    return {**environment(place), "PYTHONPATH": os.pathsep.join(map(str, paths))}


def without_compiler(folder: Path) -> Path:
    """Make a PATH with none of the compilers that TileLang looks for."""
    trap(folder)
    for name in ("clang++", "c++"):
        (folder / name).unlink(missing_ok=True)
    assert not any(shutil.which(name, path=str(folder)) for name in ("g++", "clang++", "c++"))
    return folder
