"""Test the levels of x86-64 for which one build serves unlike CPUs, against the real compiler and the sources
of the installed torch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cachesvc_client.environment import march
from cachesvc_client.environment.cpu import cpu_flags, cpu_isa, flags_of
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.instruction_sets import X86_FLAG_OF_OPTION
from cachesvc_client.environment.march import for_level, host_flags, level_of, refusal, variables
from cachesvc_client.wire.compare import Compatible, Mismatch, compare
from cachesvc_client.wire.factors import Fingerprint
from tests.environment.test_cpu_flags import ALIASES, X86_ONLY_ON_REQUEST, record
from tests.releases import TORCH

OPTIONS = {
    "INVALID_VEC_ISA": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma",
}
"""What Inductor adds to a compile for each instruction set (``build_arch_flags`` of 2.13 to 2.15)."""


def host(name: str, level: str = "", **environ: str) -> Fingerprint:
    """Return the facts of a recorded CPU, under a level and these variables, with torch 2.13."""
    cpuinfo, given = record(name), {**(variables(level) if level else {}), **environ}
    return {
        "torch": "2.13.0+cpu",
        "platform": "linux-x86_64",
        "cpu_isa": str(cpu_isa("x86_64", flags_of(cpuinfo), given)),
        "cpu_flags": sorted([*cpu_flags("x86_64", cpuinfo), *march.mark("x86_64", given, "2.13.0+cpu")]),
    }


@pytest.mark.skipif(
    shutil.which("g++") is None or os.uname().machine != "x86_64", reason="asks g++ about x86"
)
@pytest.mark.parametrize("isa", OPTIONS)
@pytest.mark.parametrize("level", march.LEVELS)
def test_the_flags_of_a_level_are_all_that_the_compiler_may_use(level: str, isa: str) -> None:
    command = ["g++", f"-march={level}", *OPTIONS[isa].split(), "-Q", "--help=target"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    plain = subprocess.run(["g++", "-march=x86-64", "-Q", "--help=target"], capture_output=True, text=True)
    on = {line.split()[0].removeprefix("-m") for line in done.stdout.splitlines() if "[enabled]" in line}
    base = {line.split()[0].removeprefix("-m") for line in plain.stdout.splitlines() if "[enabled]" in line}
    flags = host_flags(for_level({"cpu_isa": isa, "cpu_flags": [f"march:{level}"]}))
    unknown = {
        one for one in on - base - ALIASES - X86_ONLY_ON_REQUEST if X86_FLAG_OF_OPTION.get(one) not in flags
    }
    assert len(on - base) > 5 and not unknown, "each option of the compile is a flag of the entry"


def test_one_build_fits_unlike_cpus_of_its_level() -> None:
    """The builder has AVX-512; one of the services has not, and the other is of another vendor."""
    entry = for_level(host("emerald-rapids-vm", "x86-64-v3"))
    assert entry["cpu_flags"] == for_level(host("zen3", "x86-64-v3"))["cpu_flags"], (
        "one entry, whoever builds"
    )
    for service in ("haswell", "zen2", "zen5-vm", "granite-rapids", "skylake-sp"):
        assert isinstance(compare(host(service, "x86-64-v3"), entry, ("host",)), Compatible), service


@pytest.mark.parametrize("builder", ["skylake-sp", "zen5-vm", "sapphire-rapids"])
def test_cpus_with_avx512_share_an_entry_whatever_else_they_have(builder: str) -> None:
    """One has no VNNI, one has AMX; PyTorch writes other code for each of them without a level."""
    entry = for_level(host(builder, "x86-64-v4"))
    assert entry["cpu_isa"] == "avx512" != host(builder)["cpu_isa"] or builder == "skylake-sp"
    for service in ("skylake-sp", "icelake-sp", "sapphire-rapids", "granite-rapids", "zen4", "zen5-vm"):
        assert isinstance(compare(host(service, "x86-64-v4"), entry, ("host",)), Compatible), service


@pytest.mark.parametrize(
    ("service", "level", "factor"),
    [
        ("haswell", "", "march:x86-64-v3"),
        ("zen5-vm", "x86-64-v4", "march:x86-64-v3"),
        ("zen5-vm", "x86-64-v2", "march:x86-64-v3"),
    ],
)
def test_another_level_misses(service: str, level: str, factor: str) -> None:
    entry = for_level(host("zen5-vm", "x86-64-v3"))
    verdict = compare(host(service, level, ATEN_CPU_CAPABILITY="avx2"), entry, ("host",))
    assert isinstance(verdict, Mismatch) and len(verdict.differences) == 1
    assert verdict.differences[0].factor == "cpu_flags" and verdict.differences[0].theirs == factor
    assert "CACHESVC_MARCH" in verdict.differences[0].fix


def test_an_old_cpu_is_refused_whatever_it_says() -> None:
    old = host("haswell", "x86-64-v3")
    old["cpu_flags"] = [flag for flag in old["cpu_flags"] if flag != "bmi2"]  # type: ignore[union-attr]
    assert not compare(old, for_level(host("zen5-vm", "x86-64-v3")), ("host",))
    assert not compare(host("haswell", "x86-64-v4"), for_level(host("zen5-vm", "x86-64-v4")), ("host",))


def test_what_is_not_known_counts_as_the_machine() -> None:
    later = {**host("sapphire-rapids", "x86-64-v4"), "cpu_isa": "avx1024"}
    assert for_level(later) is later
    assert level_of(host("haswell", TORCHINDUCTOR_CPP_MARCH="native")) == ""
    assert march.mark("x86_64", variables("x86-64-v3"), "2.12.1") == []
    assert march.mark("x86_64", variables("x86-64-v3"), "2.99.0") == []
    assert march.mark("aarch64", variables("x86-64-v3"), "2.13.0") == []


def test_a_level_that_cannot_be_built_is_one_line() -> None:
    here = host("haswell")
    assert refusal("x86-64-v3", here) is None
    assert "this CPU lacks avx512bw" in str(refusal("x86-64-v4", here))
    assert "torch 2.12.1 compiles for the CPU that it runs on" in str(
        refusal("x86-64-v3", {**here, "torch": "2.12.1"})
    )
    assert "and this is linux-aarch64" in str(refusal("x86-64-v3", {**here, "platform": "linux-aarch64"}))
    assert refusal("x86-64-v3", {**here, "cxx": "g++ 10.2.1"}) == "g++ 10.2.1 knows no levels, g++ 11 does"
    assert refusal("x86-64-v3", {**here, "cxx": "g++ 12.2.0"}) is None
    assert refusal("x86-64-v3", {**here, "cxx": "g++-12 sha256:0123456789abcdef"}) is None


def test_detection_marks_the_level() -> None:
    marked = level_of(detect({**os.environ, **variables("x86-64-v3")}))
    known = os.uname().machine == "x86_64" and f"{TORCH[0]}.{TORCH[1]}" in march.RELEASES
    assert marked == ("x86-64-v3" if known else "")


QUESTIONS = re.compile(
    r"_is_mkldnn_\w+|torch\.cpu\.\w+|torch\._C\._cpu\b|_get_cpu_capability|cpuinfo|\bis_mkldnn_\w+_supported"
)
KNOWN = {
    # What the instruction set is picked by; it is a fact of its own.
    "cpu_vec_isa.py": "torch.cpu._is_avx2_supported torch.cpu._is_avx512_supported "
    "torch.cpu._is_vnni_supported torch.cpu._is_amx_tile_supported torch.cpu._is_avx512_bf16_supported "
    "torch.cpu._is_amx_fp16_supported "
    "torch.cpu._init_amx torch.cpu.get_capabilities cpuinfo",
    # Only of a set with AMX.
    "codegen/cpp_micro_gemm.py": "torch.cpu._is_amx_fp16_supported",
    # For ARM.
    "cpp_builder.py": "torch.cpu.get_capabilities",
    "fx_passes/quantization.py": "_is_mkldnn_acl_supported",
    # 16-bit types: `graphs.hardware`; ACL is for ARM.
    "utils.py": "is_mkldnn_bf16_supported is_mkldnn_fp16_supported _is_mkldnn_bf16_supported "
    "_is_mkldnn_fp16_supported",
    "fx_passes/mkldnn_fusion.py": "is_mkldnn_bf16_supported is_mkldnn_fp16_supported "
    "_is_mkldnn_acl_supported",
    # Sizes of caches, for the speed of a matrix product.
    "codegen/cpp_gemm_template.py": "torch.cpu.get_capabilities",
    "codegen/cpp_grouped_gemm_template.py": "torch.cpu.get_capabilities",
    # Raises on a CPU without AVX2.
    "kernel/flex/flex_cpu.py": "torch.cpu._is_avx2_supported",
}
"""What the sources of Inductor ask the CPU, by file."""


@pytest.mark.skipif(f"{TORCH[0]}.{TORCH[1]}" not in march.RELEASES, reason="has no levels")
def test_inductor_asks_the_cpu_nothing_that_is_not_known() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "_inductor"
    asked = {}
    for path in folder.rglob("*.py"):
        code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        if found := set(QUESTIONS.findall(code)):
            asked[str(path.relative_to(folder))] = found
    assert "fx_passes/mkldnn_fusion.py" in asked
    unknown = {name: words - set(KNOWN.get(name, "").split()) for name, words in asked.items()}
    assert not {name: words for name, words in unknown.items() if words}
