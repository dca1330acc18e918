"""Build for a level of x86-64 on this machine, and start services on CPUs that have less: what is restored
there has no instruction that they lack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.environment.cpu import flags_of, read_cpuinfo
from cachesvc_client.environment.march import LEVELS, RELEASES, variables
from tests.releases import TORCH

from .conftest import Built, built_once, folder_of_the_run
from .harness import QUICK, ProgramResult, run

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(f"{TORCH[0]}.{TORCH[1]}" not in RELEASES, reason="this torch has no levels"),
    pytest.mark.skipif(not LEVELS["x86-64-v4"] <= flags_of(read_cpuinfo()), reason="needs AVX-512"),
]
V3 = variables("x86-64-v3")
CPUS = Path(__file__).parent.parent / "environment" / "cpuinfo"
AVX512 = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2[0-9]|3[01])\b")
"""Matches operands that only AVX-512 has."""


@pytest.fixture(scope="module")
def level(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A function, built for x86-64-v3 on a machine with AVX-512."""
    return built_once(folder_of_the_run(request, tmp_path_factory), "level", "small", **QUICK, **V3)


def compile_all(place: Path, *settings: str, **environ: str) -> ProgramResult:
    return run("level.py", *settings, place=place, **environ)


def instructions(paths: list[str]) -> list[str]:
    """Return the instructions of these libraries that only a CPU with AVX-512 has."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump (binutils)")
    found: list[str] = []
    for path in paths:
        text = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True).stdout
        assert ".text" in text
        found += [line for line in text.splitlines() if AVX512.search(line)]
    return found


def test_code_for_a_level_has_no_instruction_beyond_it(tmp_path: Path) -> None:
    built = compile_all(tmp_path / "level", **V3).answer
    assert built["beyond"] == "" and "march:x86-64-v3" in built["flags"] and "avx512f" not in built["flags"]
    assert len(built["kernels"]) >= 2 and instructions(built["kernels"]) == []
    # oneDNN computes with bfloat16 on some CPUs of a level alone, and each graph that could call it says so.
    assert built["plain"] == ["none"] and built["short"] != ["none"] and built["autocast"] != ["none"]
    native = compile_all(tmp_path / "native").answer
    assert "avx512f" in native["flags"] and instructions(native["kernels"]), "else nothing was shown"


@pytest.mark.parametrize(
    ("setting", "why"),
    [("march=native", "for the target native"), ("simdlen=512", "compiled with avx512"), ("cxx=clang++", "")],
)
def test_code_that_is_built_otherwise_counts_as_the_machines(tmp_path: Path, setting: str, why: str) -> None:
    if setting.startswith("cxx"):
        wrapper = tmp_path / "g++"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -march=native "$@"\n')
        wrapper.chmod(0o755)
        built = compile_all(tmp_path, **V3, CXX=str(wrapper)).answer
        why = "another compiler than gcc itself"
    else:
        built = compile_all(tmp_path, setting, **V3).answer
    assert why in built["beyond"] and "avx512f" in built["flags"] and "march:x86-64-v3" in built["flags"]


def on(cpu: str) -> tuple[str, ...]:
    """Return how a program is started whose ``/proc/cpuinfo`` is that of a recorded CPU; skip the test where
    that is not allowed."""
    unshare, mount, shell = (str(shutil.which(name)) for name in ("unshare", "mount", "sh"))
    script = f'{mount} --bind {CPUS / cpu} /proc/cpuinfo && exec "$@"'
    start = (unshare, "--mount", shell, "-c", script, "sh")
    if (
        os.geteuid() != 0
        or subprocess.run([*start, "true"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("needs the right to mount")
    return start


def start(place: Path, built: Built, cpu: str, compilers: bool = False, **environ: str) -> dict[str, Any]:
    given = {**QUICK, "CACHESVC_TRUSTED_KEYS": built.trusted, **environ}
    arguments = ("small=1", f"bundle={built.bundle}")
    return run("serve.py", *arguments, place=place, compilers=compilers, before=on(cpu), **given).answer


@pytest.mark.parametrize("cpu", ["haswell", "zen3"])
def test_a_service_on_a_cpu_without_avx512_hits(tmp_path: Path, level: Built, cpu: str) -> None:
    answer = start(tmp_path, level, cpu, **V3)
    assert answer["state"] == "hit" and answer["reasons"] == [], answer
    assert answer["observed"]["compilations"] == 0 and answer["eager_difference"] < 1e-5


@pytest.mark.parametrize(
    ("march", "words"), [("", "march:x86-64-v3"), ("x86-64-v2", "march:x86-64-v3"), ("x86-64-v3", "cpu_isa")]
)
def test_another_level_misses_with_one_reason(
    tmp_path: Path, level: Built, small: Built, march: str, words: str
) -> None:
    environ = {**V3, "TORCHINDUCTOR_CPP_MARCH": march} if march else {"ATEN_CPU_CAPABILITY": "avx2"}
    built = small if words == "cpu_isa" else level
    answer = start(tmp_path, built, "haswell", compilers=True, **environ)
    assert answer["state"] == "miss" and len(answer["reasons"]) == 1, answer["reasons"]
    assert words in answer["reasons"][0] and answer["eager_difference"] < 1e-5, answer["reasons"]
