"""Owns the levels of x86-64 for which one build serves unlike CPUs: ``TORCHINDUCTOR_CPP_MARCH=x86-64-v3``.

Inductor compiles with ``-march=native``; from 2.13 on this variable names another target. It adds the options
of the instruction set that it writes code for (``-mavx512f`` …), which it picks by the CPU, or by
``ATEN_CPU_CAPABILITY``. So code needs the flags of the level and those of the picked set. Under a level no
set is picked that only some of its CPUs have (`NOT_OF_ALL`, `kinds.inductor.build_options.sets_of_all`).

A process under a level has ``march:x86-64-v3`` among its flags, so that entries of another level are told
apart at once. Its other flags stay those of its CPU: they say what it can run. An entry has the flags of
`for_level` if all of it is known to be built so (`ProcessOutput.built_for`); else those of the builder's CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..wire.factors import FactorValue, Fingerprint
from .releases import release

VARIABLE = "TORCHINDUCTOR_CPP_MARCH"
RELEASES = frozenset({"2.13", "2.14", "2.15"})
"""Releases of torch that read the variable, and whose questions to the CPU are known (`graphs.hardware`)."""
_V1 = frozenset("mmx fxsr sse sse2".split())
_V2 = _V1 | frozenset("cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2".split())
_V3 = _V2 | frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split())
_V4 = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
LEVELS: Mapping[str, frozenset[str]] = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""Levels of the x86-64 psABI -> flags of ``/proc/cpuinfo`` that mean the same."""
_CAPABILITIES = {"x86-64-v2": "default", "x86-64-v3": "avx2", "x86-64-v4": "avx512"}
_OF_ISA: Mapping[str, frozenset[str]] = {
    "INVALID_VEC_ISA": frozenset(),
    "avx2": _V3,
    "avx512": _V4,
}
"""Words of `cpu.cpu_isa` -> flags that the options of such a set, and what they imply, may use."""
NOT_OF_ALL = frozenset({"avx512_vnni", "avx512_bf16", "amx_tile"})
"""Flags by which Inductor picks a set, and that some CPUs of ``x86-64-v4`` lack."""
_MARK = "march:"
_COMPILERS = {"g++": 11, "clang++": 12}
"""The first release of each compiler that knows the levels."""
NEEDS = "drop it, or warm it with torch 2.13 or later and g++ 11 or later, on such a CPU"


def variables(level: str) -> dict[str, str]:
    """Return the variables with which Inductor builds for a level, on whatever CPU."""
    return {VARIABLE: level, "ATEN_CPU_CAPABILITY": _CAPABILITIES[level]}


def mark(machine: str, environ: Mapping[str, str], torch: str | None) -> list[str]:
    """Return the flag that names this process's level, as a list; an empty one where there is none."""
    level = environ.get(VARIABLE, "")
    known = machine == "x86_64" and torch is not None and release(torch) in RELEASES and level in LEVELS
    return [_MARK + level] if known else []


def has_level(environ: Mapping[str, str]) -> bool:
    """Return whether the variables name a level."""
    return environ.get(VARIABLE) in LEVELS


def level_of(fingerprint: Fingerprint) -> str:
    """Return the level under which a process compiles; empty if under none."""
    return next((flag.removeprefix(_MARK) for flag in _flags(fingerprint) if flag.startswith(_MARK)), "")


def for_level(fingerprint: Fingerprint) -> Fingerprint:
    """Return the fingerprint of an entry that is built for this process's level; the same one without a
    level, and under an instruction set of which no one knows all."""
    level = level_of(fingerprint)
    words = str(fingerprint.get("cpu_isa", "unknown")).split()
    if level not in LEVELS or not all(word in _OF_ISA for word in words):
        return fingerprint
    flags = LEVELS[level].union(*(_OF_ISA[word] for word in words))
    return {**fingerprint, "cpu_flags": sorted({*flags, _MARK + level})}


def host_flags(fingerprint: Fingerprint) -> frozenset[str]:
    """Return the flags of a CPU that a fingerprint names."""
    return frozenset(_flags(fingerprint))


def refusal(level: str, fingerprint: Fingerprint) -> str | None:
    """Return why nothing can be built for a level here; ``None`` if it can."""
    torch, platform = str(fingerprint.get("torch", "unknown")), str(fingerprint.get("platform", "unknown"))
    if not platform.endswith("-x86_64"):
        return f"a level of x86-64, and this is {platform}"
    if release(torch) not in RELEASES:
        return f"torch {torch} compiles for the CPU that it runs on alone"
    if lacking := sorted(LEVELS[level] - host_flags(fingerprint)):
        return f"this CPU lacks {', '.join(lacking)}"
    name, _, version = str(fingerprint.get("cxx", "")).partition(" ")
    number = version.partition(".")[0]
    if name in _COMPILERS and number.isdigit() and int(number) < _COMPILERS[name]:
        return f"{name} {version} knows no levels, {name} {_COMPILERS[name]} does"
    return None


def _flags(fingerprint: Fingerprint) -> list[str]:
    flags: FactorValue | None = fingerprint.get("cpu_flags")
    return [str(flag) for flag in flags] if isinstance(flags, list) else []
