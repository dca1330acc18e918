"""Test ``cpu_flags`` and ``cpu_isa`` for recorded CPUs, against the real compiler and PyTorch's own choice.

``cpuinfo/README.md`` says where the records come from. ``cpuinfo/march.json`` holds the options that g++ 13.3
turned on, for CPUs that an older g++ does not know, and for two machines on which it ran with
``-march=native``."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc_client.environment.cpu import cpu_flags, cpu_isa
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.instruction_sets import (
    X86_FLAG_OF_OPTION,
    X86_WITHOUT_FLAG,
)
from tests.releases import TORCH

X86_ONLY_ON_REQUEST = frozenset(
    """
    prefetchi prefetchwt1 uintr ptwrite hreset kl widekl sgx pconfig enqcmd waitpkg serialize tsxldtrk shstk
    hle rtm rdseed rdrnd mwait
    """.split()
)
"""Options that the kernel may hide (RDSEED on a Zen 5 with its erratum, HLE and RTM where they are switched
off, shadow stacks before 6.6) or never shows. Without a flag they do no harm: the compiler uses these
instructions only where a program names them, which generated kernels do not."""
FOLDER = Path(__file__).with_name("cpuinfo")
MARCH = {
    "haswell": "haswell",
    "skylake-sp": "skylake-avx512",
    "icelake-sp": "icelake-server",
    "sapphire-rapids": "sapphirerapids",
    "granite-rapids": "graniterapids",
    "zen2": "znver2",
    "zen3": "znver3",
    "zen4": "znver4",
}
NATIVE = ("emerald-rapids-vm", "zen5-vm")
"""Records of machines on which ``-march=native`` was used."""
NOT_IN_THE_CPU = {"sapphire-rapids": {"avx512vp2intersect"}, "granite-rapids": {"avx512vp2intersect"}}
"""Options that ``-march=CPU`` of GCC up to 13 turns on although the CPU lacks them; ``native`` does not turn
them on."""
ALIASES = frozenset({"sse4", "crc32", "abm", "vzeroupper", "stv", "align-stringops"}) | {
    "accumulate-outgoing-args",
    "avx256-split-unaligned-load",
    "avx256-split-unaligned-store",
}
"""Other names of SSE4.2, and of LZCNT with POPCNT; and tuning options."""

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None or os.uname().machine != "x86_64", reason="asks g++ about x86"
)


def record(name: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in (FOLDER / name).read_text().splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@functools.cache
def gcc_options(march: str) -> frozenset[str]:
    """Return the options that g++ turns on beyond its default; empty for a CPU that g++ does not know or that
    has no 64 bits."""
    options_on = []
    for value in (march, "x86-64"):
        result = subprocess.run(
            ["g++", f"-march={value}", "-Q", "--help=target"], capture_output=True, text=True
        )
        if "error" in result.stderr:
            return frozenset()
        lines = [line.split() for line in result.stdout.splitlines() if line.endswith("[enabled]")]
        options_on.append({words[0].removeprefix("-m") for words in lines})
    return frozenset(options_on[0] - options_on[1])


def options(name: str) -> frozenset[str]:
    """Return the compiler's options for a recorded CPU, without those that it uses on request only."""
    known = gcc_options(MARCH[name]) if name in MARCH else frozenset()
    if not known:
        known = frozenset(json.loads((FOLDER / "march.json").read_text())[name].split())
    return known - ALIASES - NOT_IN_THE_CPU.get(name, set())


def missing(flags: list[str], turned_on: frozenset[str]) -> set[str]:
    """Return the options that ``flags`` do not represent."""
    model = any(flag.startswith("model:") for flag in flags)
    return {
        option
        for option in turned_on - X86_ONLY_ON_REQUEST
        if X86_FLAG_OF_OPTION.get(option) not in flags and not (option in X86_WITHOUT_FLAG and model)
    }


@needs_gxx
@pytest.mark.parametrize("name", [*MARCH, *NATIVE])
def test_flags_represent_every_option_of_the_compiler(name):
    flags = cpu_flags("x86_64", record(name))
    assert not missing(flags, options(name))
    if name != "granite-rapids":
        assert not any(flag.startswith("model:") for flag in flags), "the flags represent every option"


@needs_gxx
def test_flags_represent_every_option_of_march_native_here():
    flags = detect()["cpu_flags"]
    assert not missing(flags, gcc_options("native") - ALIASES), flags


@needs_gxx
def test_code_is_never_offered_to_a_cpu_without_the_options_of_its_compile():
    """Compare all pairs: if the builder's compiler turns on more options, the consumer's flags do not cover
    the builder's."""
    distinguished = 0
    for builder, consumer in itertools.permutations([*MARCH, *NATIVE], 2):
        if options(builder) - options(consumer) - X86_ONLY_ON_REQUEST:
            built, here = (set(cpu_flags("x86_64", record(name))) for name in (builder, consumer))
            assert not built <= here, (builder, consumer)
            distinguished += 1
    assert distinguished > 40


@needs_gxx
def test_the_table_has_every_set_of_every_cpu_of_the_compiler():
    result = subprocess.run(["g++", "--help=target"], capture_output=True, text=True, check=True)
    known = re.search(r"valid arguments for -march= option:\s+(.*)", result.stdout)
    names = [name for name in known[1].split() if name not in ("native", "x86-64") and name[0] != "i"]
    names += [name for name in known[1].split() if name.startswith("icelake")]
    every = frozenset().union(*(gcc_options(name) for name in names)) - ALIASES
    assert len(every) > 60
    assert not every - X86_FLAG_OF_OPTION.keys() - X86_WITHOUT_FLAG.keys() - X86_ONLY_ON_REQUEST


def test_the_model_distinguishes_cpus_with_equal_flags():
    """Granite Rapids has AMX-FP16 and shows the flags of Sapphire Rapids."""
    granite, sapphire = (cpu_flags("x86_64", record(name)) for name in ("granite-rapids", "sapphire-rapids"))
    assert "model:GenuineIntel-6-173" in granite
    assert set(sapphire) <= set(granite), "code of the older CPU runs on the newer one"


@pytest.mark.parametrize(
    ("name", "changes", "hidden"),
    [
        ("sapphire-rapids", {"hidden": "avx512_fp16"}, "model:GenuineIntel-6-143"),
        ("zen4", {"hidden": "avx512_bf16"}, "model:AuthenticAMD-25-160"),
        ("zen5-vm", {"hidden": "avx_vnni"}, "model:AuthenticAMD-26-2"),
        ("zen5-vm", {"model": "80"}, "model:AuthenticAMD-26-80"),
        ("skylake-sp", {"stepping": "11"}, "model:GenuineIntel-6-85"),
        ("haswell", {"model": "221"}, "model:GenuineIntel-6-221"),
        ("haswell", {"vendor_id": "Another"}, "model:Another-6-63"),
        ("haswell", {"stepping": "unknown"}, "model:GenuineIntel-6-63"),
    ],
)
def test_a_doubt_ties_code_to_the_model(name, changes, hidden):
    """The doubts are: an older kernel or a hypervisor hides a flag, or the CPU is newer than the table."""
    facts = {**record(name), **changes}
    if "hidden" in changes:
        facts["flags"] = " ".join(set(facts["flags"].split()) - {changes["hidden"]})
    assert hidden in cpu_flags("x86_64", facts)


def test_flags_that_decide_nothing_are_left_out():
    flags = cpu_flags("x86_64", record("zen2"))
    assert not {"hypervisor", "constant_tsc", "ibrs", "topoext", "svm", "monitor"} & set(flags)
    assert cpu_flags("x86_64", {**record("zen2"), "flags": "svm ibrs"}) is None
    assert cpu_flags("aarch64", {"Features": "asimd sve sve2p1 evtstrm cpuid"}) == ["asimd", "sve", "sve2p1"]


ISAS = {
    "haswell": "avx2",
    "skylake-sp": "avx512",
    "icelake-sp": "avx512 avx512_vnni",
    "sapphire-rapids": "avx512 avx512_vnni amx_tile avx512_bf16",
    "emerald-rapids-vm": "avx512 avx512_vnni amx_tile avx512_bf16",
    "granite-rapids": "avx512 avx512_vnni amx_tile avx512_bf16",
    "zen2": "avx2",
    "zen3": "avx2",
    "zen4": "avx512 avx512_vnni",
    "zen5-vm": "avx512 avx512_vnni",
}
PICK = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch._inductor import config, cpu_vec_isa
config.cpp.vec_isa_ok = True
cpu_vec_isa.VecISA.check_build = lambda self, code: True
cpu = torch.cpu
for name, flags in json.loads(sys.argv[1]).items():
    if os.fork():
        os.wait()
        continue
    has = set(flags).__contains__
    cpu._is_avx2_supported = lambda: has("avx2") and has("fma")
    cpu._is_avx512_supported = lambda: all(map(has, ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")))
    cpu._is_vnni_supported = lambda: has("avx512_vnni")
    cpu._is_avx512_bf16_supported = lambda: has("avx512_bf16")
    cpu._is_amx_tile_supported = cpu._init_amx = lambda: has("amx_tile")
    cpu._is_amx_fp16_supported = lambda: has("amx_fp16")
    isa = cpu_vec_isa.pick_vec_isa()
    extra = " avx512_bf16" * ("-mavx512bf16" in isa.build_arch_flags())
    print(json.dumps([name, str(isa) + extra]), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(
    TORCH < (2, 10), reason="Inductor tells fewer CPUs apart there; cachesvc tells all of them apart"
)
def test_the_isa_of_recorded_cpus_is_inductors_choice():
    """PyTorch's own choice is made for the record instead of the CPU of this machine."""
    flags = {name: record(name)["flags"].split() for name in ISAS}
    assert {name: cpu_isa("x86_64", frozenset(flags[name]), {}) for name in ISAS} == ISAS
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch here to ask")
    environ = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    result = subprocess.run(
        [sys.executable, "-c", PICK, json.dumps(flags)],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert dict(map(json.loads, result.stdout.splitlines())) == ISAS
