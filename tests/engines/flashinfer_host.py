"""Start programs with FlashInfer on fresh hosts, as `engine` starts vLLM. nvcc is real, and there is no
GPU."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.kernel_jits import make_programs, make_toolkit, make_traps
from tests.e2e.harness import environment
from tests.e2e.registries import Served

from .engine import HERE, PROGRAMS, EngineResult, engine_python

PYTHON = HERE.parents[1] / ".torch" / "flashinfer-0.6.14" / "bin" / "python"
NAME = "team/modules"
_SECONDS = 900


def flashinfer_python() -> Path:
    """Return the interpreter that has FlashInfer; skip the test, or fail it, if there is none."""
    nvcc = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "nvcc"
    return engine_python("FlashInfer", PYTHON, nvcc)


@dataclass(frozen=True)
class Toolchain:
    """CUDA's folder and a PATH, whose compilers are counted."""

    cuda: Path
    programs: Path

    @classmethod
    def make(cls, place: Path) -> Toolchain:
        """Make both below a folder."""
        cuda = make_toolkit(place / "cuda")
        return cls(cuda, make_programs(place / "programs", cuda))


def start(
    place: Path,
    registry: Served | None,
    toolchain: Toolchain | None,
    program: str,
    *arguments: str,
    publish: bool = False,
    package: Path | None = None,
    **variables: str,
) -> EngineResult:
    """Run a program to its end on the host ``place``, attached to `NAME`; without a registry it is attached
    to nothing.

    ``toolchain``: without one, there is neither nvcc nor a C++ compiler, and ninja notes that it was called.
    ``publish``: it may publish. ``package``: a folder from which FlashInfer is imported in the place of its
    own."""
    env = environment(place) | {
        "KERNEL_JITS_CALLED": str(place / "called"),
        "CUDA_HOME": str(place / "no-cuda"),
    }
    paths = [*([package] if package else []), PROGRAMS, HERE.parents[1], HERE.parents[1] / "client"]
    env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FLASHINFER_CUDA_ARCH_LIST": "9.0a"}
    if toolchain is not None:
        env |= {"CUDA_HOME": str(toolchain.cuda), "PATH": str(toolchain.programs)}
        env["LD_LIBRARY_PATH"] = str(toolchain.cuda / "lib64")
    else:
        env["PATH"] = str(make_traps(place / "traps"))
        env["LD_LIBRARY_PATH"] = str(_runtime(place / "runtime"))
    if registry is not None:
        env |= {**registry.variables, "CACHESVC_NAME": NAME, "CACHESVC_DEADLINE": "60"}
        if publish:
            env |= {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}
    return _run(place, [str(PYTHON), str(PROGRAMS / program), *arguments], {**env, **variables})


def _runtime(folder: Path) -> Path:
    """Make a folder with CUDA's runtime library alone, which torch brings where it is built for CUDA."""
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    folder.mkdir(parents=True, exist_ok=True)
    for library in (home / "lib64").glob("libcudart.so*"):
        if not (folder / library.name).is_symlink():
            (folder / library.name).symlink_to(library)
    return folder


def _run(place: Path, command: list[str], env: Mapping[str, str]) -> EngineResult:
    log = place / "called"
    log.write_text("")
    result = subprocess.run(
        command, cwd=place / "work", env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    calls = [line for line in log.read_text().splitlines() if "--version" not in line]
    called = [line.split()[0] for line in calls if not line.startswith("ninja -t ")]
    return EngineResult(result.returncode, result.stdout, result.stderr, called, place)


def calls(result: EngineResult) -> tuple[int, int]:
    """Return how often nvcc and ninja were called, as counted from outside."""
    counted: Counter[Any] = Counter(result.compilers)
    return counted["nvcc"], counted["ninja"]
