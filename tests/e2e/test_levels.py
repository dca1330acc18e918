"""Build for a level of x86-64 on this machine, and start services on CPUs that have less: what is restored
there has no instruction that they lack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.cpu import flags_of, read_cpuinfo
from cachesvc_client.environment.march import LEVELS, RELEASES, variables
from tests.releases import TORCH

from .conftest import Built, built_once, folder_of_the_run
from .harness import PROGRAMS, ProgramResult, environment, run

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(f"{TORCH[0]}.{TORCH[1]}" not in RELEASES, reason="this torch has no levels"),
    pytest.mark.skipif(not LEVELS["x86-64-v4"] <= flags_of(read_cpuinfo()), reason="needs AVX-512"),
]
V3 = variables("x86-64-v3")
CPUS = Path(__file__).parent.parent / "environment" / "cpuinfo"
ALL = ",".join(LEVELS)
AVX512 = r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2[0-9]|3[01])\b"
"""Matches operands that only AVX-512 has."""
BEYOND = {
    "x86-64-v2": rf"{AVX512}|%ymm|\tv(?!er[rw])|\t(?:andn|bextr|bls|bzhi|mulx|pdep|pext|lzcnt|movbe)"
    r"|\t(?:sar|shl|shr|ror)x",
    "x86-64-v3": AVX512,
    "x86-64-v4": r"\tvpdp|\tvdpbf16|\tvcvtne|\tt(?:dp|ile)|tilecfg|\tvp(?:opcnt|sh[lr]d|madd52|2intersect)"
    r"|\tvp(?:compress|expand)[bw]|\tvgf2p8|%xmm.*\taes|ph\b.*%zmm",
}
"""Matches the instructions of a level's later sets, as objdump shows them."""


@pytest.fixture(scope="module")
def level(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A function, built for x86-64-v3 on a machine with AVX-512."""
    return built_once(folder_of_the_run(request, tmp_path_factory), "level", "small", **QUICK, **V3)


def compile_all(place: Path, *settings: str, **environ: str) -> ProgramResult:
    return run("level.py", *settings, place=place, **environ)


def instructions(paths: list[str], beyond: str = AVX512) -> list[str]:
    """Return the instructions of these libraries that match."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump (binutils)")
    found: list[str] = []
    for path in paths:
        text = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True).stdout
        assert ".text" in text
        found += [line for line in text.splitlines() if re.search(beyond, line)]
    return found


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_code_for_a_level_has_no_instruction_beyond_it(tmp_path: Path, level: str) -> None:
    built = compile_all(tmp_path / "level", **variables(level)).answer
    assert built["beyond"] == "" and set(built["flags"]) == {*LEVELS[level], f"march:{level}"}
    assert len(built["kernels"]) >= 2 and instructions(built["kernels"], BEYOND[level]) == []
    # oneDNN computes with bfloat16 on some CPUs of a level alone, and each graph that could call it says so.
    assert built["plain"] == ["none"] and built["short"] != ["none"] and built["autocast"] != ["none"]
    native = compile_all(tmp_path / "native").answer
    assert "avx512f" in native["flags"] and instructions(native["kernels"]), "else nothing was shown"
    assert level == "x86-64-v3" or instructions(built["kernels"]), "AVX-512 itself is used"


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


def on(cpu: str | Path) -> tuple[str, ...]:
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


def start(
    place: Path, built: Built, cpu: str | Path, compilers: bool = False, **environ: str
) -> ProgramResult:
    given = {**QUICK, "CACHESVC_TRUSTED_KEYS": built.trusted, **environ}
    arguments = ("small=1", f"bundle={built.bundle}")
    return run("serve.py", *arguments, place=place, compilers=compilers, before=on(cpu), **given)


def is_hit(answer: dict[str, Any]) -> None:
    assert answer["state"] == "hit", answer
    assert answer["observed"]["compilations"] == 0 and answer["eager_difference"] < 1e-5


@pytest.mark.parametrize(("cpu", "environ"), [("haswell", {"CACHESVC_MARCH": ALL}), ("zen3", V3)])
def test_a_service_on_a_cpu_without_avx512_hits(
    tmp_path: Path, level: Built, cpu: str, environ: dict[str, str]
) -> None:
    answer = start(tmp_path, level, cpu, **environ).answer
    is_hit(answer)
    assert answer["level"] == "x86-64-v3" and answer["reasons"] == []


def lesser(path: Path, lacks: frozenset[str]) -> Path:
    """Write a Haswell that lacks flags."""
    head, _, flags = (CPUS / "haswell").read_text().partition("flags\t\t:")
    path.write_text(f"{head}flags\t\t: {' '.join(flag for flag in flags.split() if flag not in lacks)}\n\n")
    return path


def test_a_service_below_every_level_compiles_for_its_cpu_and_says_why(tmp_path: Path, level: Built) -> None:
    cpu = lesser(tmp_path / "cpu", frozenset({"bmi2"}))
    ended = start(tmp_path, level, cpu, compilers=True, CACHESVC_MARCH="x86-64-v3, x86-64-v4")
    line = "CACHESVC_MARCH=x86-64-v3, x86-64-v4 does nothing: x86-64-v3: this CPU lacks bmi2"
    assert ended.err.count("does nothing") == 1 and line in ended.err
    assert ended.answer["level"] == "" and ended.answer["eager_difference"] < 1e-5
    assert ended.answer["state"] == "miss" and len(ended.answer["reasons"]) == 1


SPEC = f"""\
name = "team/levels"
[defaults]
device = "cpu"
runs = 2
tracing = "always"
paths = ["{PROGRAMS}"]
march = {list(LEVELS)}
env = {{OMP_NUM_THREADS = "2", {", ".join(f'{name} = "{value}"' for name, value in QUICK.items())}}}
[[target]]
id = "blocks"
factory = "model:make"
inputs = {{a = {{"*" = [{{shape = [4, 32]}}]}}}}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Warm `SPEC`, and return the variables of a service that restores what came of it."""
    place = tmp_path_factory.mktemp("warm")
    key = SigningKey.generate()
    key.save(place / "signing.key")
    (place / "warm.toml").write_text(SPEC)
    command = [sys.executable, "-m", "cachesvc", "warm", "warm.toml", "--json", "--out", "bundles"]
    env = environment(place / "builder", CACHESVC_SIGNING_KEY=str(place / "signing.key"))
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-2000:]
    made = json.loads(done.stdout)["targets"]
    statuses = {one["target"]: one["status"] for one in made}
    assert statuses == {f"blocks/default/{level}": "warm" for level in LEVELS}, made
    assert not [note for one in made for note in one["notes"] if "not known to be built" in note]
    return {**QUICK, "CACHESVC_BUNDLE": str(place / "bundles"), "CACHESVC_TRUSTED_KEYS": str(key.public)}


def cpu_of(level: str, folder: Path) -> str | Path:
    """Return a recorded CPU whose best level this is."""
    if level == "x86-64-v2":
        return lesser(folder / "cpu", LEVELS["x86-64-v3"] - LEVELS["x86-64-v2"])
    return {"x86-64-v3": "haswell", "x86-64-v4": "sapphire-rapids"}[level]


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_one_warm_serves_each_cpu_by_its_best_level(
    tmp_path: Path, bundles: dict[str, str], level: str
) -> None:
    before, march = on(cpu_of(level, tmp_path)), {"CACHESVC_MARCH": ALL}
    answer = run("serve.py", place=tmp_path, compilers=False, before=before, **bundles, **march).answer
    is_hit(answer)
    assert (answer["level"], answer["installed"]) == (level, 1), "and a reason for each other level"
    kernels = [str(path) for path in tmp_path.rglob("*.so")]
    assert kernels and instructions(kernels, BEYOND[level]) == []


def emulated(
    place: Path, model: str, cpu: str | Path, bundles: dict[str, str], **environ: str
) -> ProgramResult:
    """Start a service on a CPU of qemu, which raises SIGILL for what the CPU lacks."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("no qemu-x86_64 (qemu-user)")
    given = {**bundles, "CACHESVC_DEADLINE": "600", **environ}
    before = (*on(cpu), qemu, "-cpu", model)
    # MKL sees one core there, and the number of threads is in the keys.
    return run("serve.py", "threads=2", place=place, compilers=False, before=before, timeout=1200, **given)


@pytest.mark.long
@pytest.mark.parametrize(("level", "model"), [("x86-64-v2", "Nehalem"), ("x86-64-v3", "Haswell")])
def test_a_service_on_an_emulated_cpu_of_the_level_hits(
    tmp_path: Path, bundles: dict[str, str], level: str, model: str
) -> None:
    cpu = cpu_of(level, tmp_path)
    answer = emulated(tmp_path, model, cpu, bundles, CACHESVC_MARCH=ALL).answer
    is_hit(answer)
    assert answer["level"] == level


@pytest.mark.long
def test_the_emulator_ends_a_service_whose_code_is_above_its_cpu(
    tmp_path: Path, bundles: dict[str, str]
) -> None:
    """The service pretends to be a Haswell, and PyTorch's own kernels are those of the emulated CPU."""
    march = {"TORCHINDUCTOR_CPP_MARCH": "x86-64-v3"}
    ended = emulated(tmp_path, "Nehalem", "haswell", bundles, **march)
    assert ended.code != 0 and "signal 4 (Illegal instruction)" in ended.err, ended.err[-2000:]


@pytest.mark.parametrize(
    ("march", "words"), [("", "march:x86-64-v3"), ("x86-64-v2", "march:x86-64-v3"), ("x86-64-v3", "cpu_isa")]
)
def test_another_level_misses_with_one_reason(
    tmp_path: Path, level: Built, small: Built, march: str, words: str
) -> None:
    environ = {**V3, "TORCHINDUCTOR_CPP_MARCH": march} if march else {"ATEN_CPU_CAPABILITY": "avx2"}
    built = small if words == "cpu_isa" else level
    answer = start(tmp_path, built, "haswell", compilers=True, **environ).answer
    assert answer["state"] == "miss" and len(answer["reasons"]) == 1, answer["reasons"]
    assert words in answer["reasons"][0] and answer["eager_difference"] < 1e-5, answer["reasons"]
