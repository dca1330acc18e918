"""Start programs with Helion on fresh hosts, as `engine` starts vLLM.

Helion's backend is Pallas in its interpreter, the one that searches without a GPU."""

from __future__ import annotations

from pathlib import Path

from benchmarks.hosts import trap
from tests.e2e.registries import Served

from .engine import HERE, PROGRAMS, EngineResult, engine_python, run_on_host
from .tilelang_host import host_environment

PYTHON = HERE.parents[1] / ".torch" / "helion-1.5.1" / "bin" / "python"
NAME = "team/helion"
PALLAS = {"HELION_BACKEND": "pallas", "HELION_PALLAS_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}


def helion_python() -> Path:
    """Return the interpreter that has Helion; skip the test, or fail it, if there is none."""
    return engine_python("Helion", PYTHON)


def start(
    place: Path,
    registry: Served | None,
    *arguments: str,
    program: Path = PROGRAMS / "helion_kernels.py",
    publish: bool = False,
    **variables: str,
) -> EngineResult:
    """Run a program to its end on the host ``place``, attached to `NAME`; without a registry it is
    attached to nothing.

    ``publish``: it may publish. Its PATH has no compiler, since Pallas needs none."""
    env = host_environment(place) | PALLAS
    if registry is not None:
        env |= {**registry.variables, "CACHESVC_NAME": NAME, "CACHESVC_DEADLINE": "60"}
        if publish:
            env |= {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}
    env["PATH"] = str(trap(place / "trap"))
    return run_on_host([str(PYTHON), str(program), *arguments], place, {**env, **variables})
