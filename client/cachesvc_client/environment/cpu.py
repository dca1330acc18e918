"""Finds out which instructions code that is built on this machine may use, from ``/proc/cpuinfo``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping

from . import march
from .instruction_sets import ARM_FLAGS, X86_FLAGS, shows_all


def cpu_flags(machine: str, cpuinfo: Mapping[str, str]) -> list[str] | None:
    """Names the instruction sets, sorted, that ``-march=native`` may turn on, by the kernel's names.

    Where ``/proc/cpuinfo`` may show less than the compiler turns on, the list names the CPU's model too, as
    ``model:GenuineIntel-6-173``: code that was built there fits CPUs of this model alone. ``None`` if nothing
    is known.
    """
    flags = flags_of(cpuinfo)
    if machine in ("aarch64", "arm64"):
        return sorted(flags & ARM_FLAGS) or None
    names = flags & X86_FLAGS
    if names and not shows_all(cpuinfo, flags):
        parts = (cpuinfo.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
        names |= {f"model:{'-'.join(parts)}"}
    return sorted(names) or None


def cpu_isa(
    machine: str, flags: frozenset[str], environ: Mapping[str, str], width: int | None = None
) -> str | None:
    """Returns the decision of ``torch._inductor.cpu_vec_isa.pick_vec_isa()`` (2.13) as text: ``str(isa)``,
    with ``avx512_bf16`` and ``amx_fp16`` where they add to its compiler flags.

    Does not run PyTorch's probes, and so assumes a compiler that knows the CPU's instructions: an image
    without a compiler has the same text as its builder. Under a level it is what all of its CPUs have, see
    `march`. ``None`` on machines that this function does not know. ``width``: the bits of a vector that code
    has asked for (``torch._inductor.config.cpp.simdlen``).
    """
    if environ.get("TORCHINDUCTOR_VEC_ISA_OK") == "0":
        return "INVALID_VEC_ISA"
    if machine == "x86_64":
        candidates = _x86_isas(flags - march.NOT_OF_ALL if march.has_level(environ) else flags)
    elif machine == "aarch64":
        candidates = _arm_isas(flags)
    else:
        return None
    if not candidates:
        return "INVALID_VEC_ISA"
    if width is not None:
        return next((isa for isa in candidates if _bits(isa) == width), "INVALID_VEC_ISA")
    capability = environ.get("ATEN_CPU_CAPABILITY", "")
    if capability == "default":
        return "INVALID_VEC_ISA"
    if capability in ("zvector", "vsx", "avx2", "avx512"):
        return next((isa for isa in candidates if capability in isa), candidates[0])
    return candidates[0]  # not set, or a value that PyTorch ignores with a warning


def isa_now() -> str | None:
    """Return `cpu_isa` for the variables and the settings of Inductor of this moment."""
    settings = getattr(sys.modules.get("torch._inductor.config"), "cpp", None)
    return cpu_isa(os.uname().machine, _flags_here(), os.environ, getattr(settings, "simdlen", None))


def other_isa(fact: str | None) -> str:
    """Return `isa_now` if it is another than ``fact``, that of the fingerprint; else an empty text."""
    now = None if fact is None else isa_now()
    return "" if now == fact else str(now)


@functools.cache
def _flags_here() -> frozenset[str]:
    return flags_of(read_cpuinfo())


def _bits(isa: str) -> int:
    """Return the bits of a vector."""
    widths = {"avx512": 512, "avx2": 256, "asimd": 128, "asimd sve128": 128, "asimd sve256": 256}
    return widths[isa if isa.startswith("asimd") else isa.split()[0]]


def _x86_isas(flags: frozenset[str]) -> list[str]:
    """Lists the instruction sets, the best first, in the order of ``supported_vec_isa_list``."""
    bf16 = " avx512_bf16" if "avx512_bf16" in flags else ""
    isas = []
    if {"amx_tile", "avx512_vnni", "avx512f"} <= flags:
        fp16 = " amx_fp16" if "amx_fp16" in flags else ""
        isas.append(f"avx512 avx512_vnni amx_tile{bf16}{fp16}")
    if {"avx512_vnni", "avx512f"} <= flags:
        isas.append("avx512 avx512_vnni")  # VecAVX512VNNI.build_arch_flags leaves bf16 out
    if "avx512f" in flags:
        isas.append(f"avx512{bf16}")
    if "avx2" in flags:
        isas.append("avx2")
    return isas


def _arm_isas(flags: frozenset[str]) -> list[str]:
    if not flags & {"sve", "sve2"} or "bf16" not in flags:
        return ["asimd"]
    return ["asimd sve128" if _sve_bytes() == 16 else "asimd sve256"]


def _sve_bytes() -> int:
    """Returns the vector length of this thread: prctl(PR_SVE_GET_VL),
    linux/Documentation/arch/arm64/sve.rst."""
    import ctypes

    length = ctypes.CDLL(None).prctl(51, 0, 0, 0, 0)
    return int(length) & 0xFFFF if length > 0 else 0


def read_cpuinfo() -> dict[str, str]:
    """Reads the first processor of ``/proc/cpuinfo``."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            text = file.read(1 << 14).decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def flags_of(cpuinfo: Mapping[str, str]) -> frozenset[str]:
    """Returns the flags of a processor."""
    return frozenset((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
