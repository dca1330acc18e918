"""Start vLLM on fresh hosts: another HOME, TMPDIR and working directory, empty folders, and compilers or
none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import trap
from tests.e2e.harness import environment
from tests.e2e.registries import Served

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PYTHON = HERE.parents[1] / ".torch" / "vllm-0.32.0" / "bin" / "python"
PYTHON_OF_GPUS = HERE.parents[1] / ".torch" / "vllm-0.26.0" / "bin" / "python"
"""The releases of vLLM and torch that ran on GPUs."""
VARIABLE = "CACHESVC_TEST_ENGINES"
"""If it is not set, the tests are skipped: they take minutes, and an environment of 3 GB."""
_TOOLS = ("lscpu", "sh", "uname")
"""Programs that vLLM runs on a CPU, and that an image without compilers has."""
_SECONDS = 600


@dataclass(frozen=True)
class EngineResult:
    """Holds what an engine printed.

    ``compilers``: the compilers that a process of the engine called, where the PATH had none."""

    code: int
    out: str
    err: str
    compilers: list[str]
    place: Path

    @property
    def answer(self) -> dict[str, Any]:
        """Return the JSON of the last line that is JSON."""
        assert self.code == 0, self.err[-5000:] + self.out[-3000:]
        lines = [line for line in self.out.splitlines() if line.startswith("{")]
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    @property
    def worker(self) -> dict[str, Any]:
        """Return the report of the only worker."""
        [worker] = self.answer["workers"]
        assert isinstance(worker, dict)
        return worker

    @property
    def work(self) -> tuple[int, int, int]:
        """Return compilations, tuning runs and compilers, of all workers and as counted from outside."""
        workers = [worker["observed"] for worker in self.answer["workers"]]
        compilers = sum(observed["compiler_processes"] for observed in workers) + len(self.compilers)
        return (
            sum(observed["compilations"] for observed in workers),
            sum(observed["tuning_runs"] for observed in workers),
            compilers,
        )


def vllm_python() -> Path:
    """Return the interpreter that has vLLM; skip the test, or fail it, if there is none."""
    return engine_python("vLLM", PYTHON)


def engine_python(engine: str, python: Path, compiler: Path | None = None) -> Path:
    """Return the interpreter that has an engine; skip the test, or fail it, if there is none.

    ``compiler``: the program that the engine compiles with, without which the test is skipped."""
    if not os.environ.get(VARIABLE):
        pytest.skip("engines take minutes: make test-engines starts them")
    if compiler is not None and not compiler.exists():
        pytest.skip(f"no {compiler.name}: {engine} compiles with it")
    if not (python.parents[1] / ".ready").exists():
        pytest.fail(f"no environment with {engine}: make test-engines makes it")
    return python


def make_model(python: Path, folder: Path) -> Path:
    """Write the configuration and the tokenizer of a tiny Llama into a folder."""
    subprocess.run([str(python), str(PROGRAMS / "make_model.py"), str(folder)], check=True)
    return folder


def start(
    place: Path,
    registry: Served | None,
    model: Path,
    name: str,
    *arguments: str,
    publish: bool = False,
    piecewise: bool = False,
    compilers: bool = True,
    python: Path = PYTHON,
    **variables: str,
) -> EngineResult:
    """Run ``generate.py`` to its end on the host ``place``, attached to a name.

    ``publish``: the worker publishes under the name. ``piecewise``: on the platform of
    ``programs/piecewise.py``. ``python``: the interpreter."""
    env = engine_environment(place, registry, name, piecewise=piecewise, compilers=compilers)
    words = [f"model={model}", *arguments]
    if publish:
        assert registry is not None
        env |= {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}
        words.append(f"publish={name}")
    return run_on_host([str(python), str(PROGRAMS / "generate.py"), *words], place, {**env, **variables})


def run_on_host(command: list[str], place: Path, env: dict[str, str]) -> EngineResult:
    """Run a program to its end on the host ``place``."""
    result = subprocess.run(
        command,
        cwd=place / "work",
        env=env,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return EngineResult(result.returncode, result.stdout, result.stderr, called(place), place)


def engine_environment(
    place: Path, registry: Served | None, name: str, *, piecewise: bool = False, compilers: bool = True
) -> dict[str, str]:
    """Return the variables of an engine on the host ``place``; without a registry it is not attached."""
    env = environment(place, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    paths = [str(PROGRAMS)]
    if piecewise:
        paths.append(str(_plugin(place)))
    env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    if registry is not None:
        # An import of vLLM takes longer than the default deadline on a busy machine.
        env |= {**registry.variables, "CACHESVC_NAME": name, "CACHESVC_DEADLINE": "60"}
        env["CACHESVC_LOG"] = "info"
    if not compilers:
        env["PATH"] = str(trap(place / "trap"))
        for tool in _TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            if not (place / "trap" / tool).exists():
                (place / "trap" / tool).symlink_to(found)
    return env


def called(place: Path) -> list[str]:
    """Return the compilers that were called on the host ``place``."""
    file = place / "trap" / "called"
    return file.read_text().splitlines() if file.exists() else []


def _plugin(place: Path) -> Path:
    """Make the package data with which vLLM finds the platform of ``programs/piecewise.py``."""
    folder = place / "plugin" / "cachesvc_piecewise-0.dist-info"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cachesvc-piecewise\nVersion: 0\n")
        points = "[vllm.platform_plugins]\npiecewise = piecewise:register\n"
        (folder / "entry_points.txt").write_text(points)
    return folder.parent
