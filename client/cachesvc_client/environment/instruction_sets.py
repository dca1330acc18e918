"""Defines tables of instruction sets: the compiler's names, the kernel's names, and CPUs whose flags show
all.

Sources: the options of GCC up to 15 (``gcc/common/config/i386/i386-isas.h`` and ``cpuinfo.h``), the flags of
Linux up to 6.18 (``arch/x86/include/asm/cpufeatures.h``, ``arch/arm64/kernel/cpuinfo.c``), and LLVM's
detection of the host (``llvm/lib/TargetParser/Host.cpp``).

``-march=native`` asks the CPU itself. ``/proc/cpuinfo`` may show less: no kernel has a name for some
instruction sets, an old kernel does not know new ones, and a kernel hides those that it switched off for its
own use. So the flags alone are not enough on every CPU: `shows_all` returns whether they are.

An option that the kernel may hide or never shows, and whose instructions the compiler uses only where a
program names them, has no row: generated kernels do not name them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


def _pairs(text: str) -> dict[str, str]:
    """Reads words of the form ``compiler:kernel``; one name alone is the name of both."""
    words = (word.partition(":") for word in text.split())
    return {compiler: kernel or compiler for compiler, _, kernel in words}


X86_FLAG_OF_OPTION = _pairs("""
mmx fxsr sse sse2 sse3:pni ssse3 sse4.1:sse4_1 sse4.2:sse4_2 sse4a popcnt abm lzcnt:abm cx16 sahf:lahf_lm
movbe pclmul:pclmulqdq aes sha:sha_ni gfni vaes vpclmulqdq fma fma4 xop tbm f16c avx avx2 avxvnni:avx_vnni
bmi:bmi1 bmi2 adx fsgsbase rdrnd:rdrand rdseed rdpid clflushopt clwb clzero cldemote mwaitx wbnoinvd
xsave xsaveopt xsavec xsaves prfchw:3dnowprefetch 3dnow 3dnowa:3dnowext lwp rtm hle pku waitpkg serialize
movdiri movdir64b enqcmd tsxldtrk shstk:user_shstk
avx512f avx512cd avx512bw avx512dq avx512vl avx512ifma avx512vbmi avx512vbmi2:avx512_vbmi2
avx512vnni:avx512_vnni avx512bitalg:avx512_bitalg avx512vpopcntdq:avx512_vpopcntdq avx512bf16:avx512_bf16
avx512fp16:avx512_fp16 avx512vp2intersect:avx512_vp2intersect avx512er avx512pf avx5124vnniw:avx512_4vnniw
avx5124fmaps:avx512_4fmaps amx-tile:amx_tile amx-int8:amx_int8 amx-bf16:amx_bf16
""")
"""Maps GCC's options, without ``-m``, to the flags of ``/proc/cpuinfo`` that mean the same."""

X86_WITHOUT_FLAG = _pairs("""
amx-fp16:amx_fp16 amx-complex:amx_complex amx-tf32:amx_tf32 amx-fp8:amx_fp8 amx-movrs:amx_movrs
amx-avx512:amx_avx512 amx-transpose:amx_transpose avxifma:avx_ifma avxvnniint8:avx_vnni_int8
avxvnniint16:avx_vnni_int16 avxneconvert:avx_ne_convert cmpccxadd sha512 sm3 sm4 raoint usermsr:user_msr
movrs apxf:apx_f avx10.1:avx10_1 avx10.1-256:avx10_1 avx10.1-512:avx10_1 avx10.2:avx10_2
""")
"""Maps options that ``-march=native`` turns on although no kernel shows a flag to the name that a flag would
have. The compiler may use these instructions in any code. Only CPUs outside of ``_GENERATIONS`` have them."""

X86_FLAGS = frozenset(
    {
        *X86_FLAG_OF_OPTION.values(),
        *X86_WITHOUT_FLAG.values(),
        # Names that only LLVM, a hypervisor's kernel or an older cachesvc uses for the same.
        *"ospke prfchw ptwrite shstk hreset kl widekl uintr apx avx10".split(),
    }
)
"""Flags of ``/proc/cpuinfo`` that count. The others are topology, power, virtualisation and mitigations: they
differ between like machines and decide nothing."""

ARM_FLAGS = frozenset(
    """
    fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4
    asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp sve2 sveaes svepmull
    svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh rng bti mte afp
    rpres sme sme2 ebf16 sveebf16 cssc lse128 mops
    smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 wfxt rprfm sve2p1 sme2p1 smei16i32
    smebi32i32 smeb16b16 smef16f16 hbc sveb16b16 lrcpc3 fpmr lut faminmax f8cvt f8fma f8dp4 f8dp2 f8e4m3
    f8e5m2 smelutv2 smef8f16 smef8f32 smesf8fma smesf8dp4 smesf8dp2 gcs cmpbr fprcvt f8mm8 f8mm4 svef16mm
    sveeltperm sveaes2 svebfscale sve2p2 sme2p2 smesf8mm8 smesf8mm4 smesbitperm smeaes smesfexpa smestmop
    smesmop4
    """.split()
)
"""Flags of arm64 that count. GCC (``gcc/config/aarch64/driver-aarch64.cc``) and LLVM read the same line of
``/proc/cpuinfo`` there: they do not use an instruction set that it does not show."""


class _Generation(NamedTuple):
    """Describes CPUs that have nothing of ``X86_WITHOUT_FLAG``. ``late``: flags that all of them have and
    that kernels older than 5.12 do not show; where one is missing, the compiler may still use it."""

    vendor: str
    family: int
    models: Collection[int]
    late: frozenset[str]
    steppings: Collection[int] = range(16)


_VNNI = frozenset({"avx_vnni"})
_BF16 = frozenset({"avx512_bf16"})
_VP2 = frozenset({"avx512_vp2intersect"})
_GENERATIONS = (
    # Models by arch/x86/include/asm/intel-family.h: Cooper Lake; Tiger Lake; Sapphire and Emerald Rapids;
    # Alder, Raptor and Meteor Lake; everything before them.
    _Generation("GenuineIntel", 6, (85,), _BF16, steppings=(10, 11)),
    _Generation("GenuineIntel", 6, (140, 141), _VP2),
    _Generation("GenuineIntel", 6, (143, 207), _VNNI | _BF16 | {"avx512_fp16"}),
    _Generation("GenuineIntel", 6, (151, 154, 170, 172, 183, 186, 190, 191), _VNNI),
    _Generation("GenuineIntel", 6, range(168), frozenset()),
    # By arch/x86/kernel/cpu/amd.c: up to Zen 2, Zen 3, Zen 4, Zen 5; Hygon's Zen.
    *(_Generation("AuthenticAMD", family, range(256), frozenset()) for family in range(15, 24)),
    _Generation("HygonGenuine", 24, range(256), frozenset()),
    _Generation("AuthenticAMD", 25, (*range(0x10), *range(0x20, 0x60)), frozenset()),
    _Generation("AuthenticAMD", 25, range(256), _BF16),
    _Generation("AuthenticAMD", 26, (*range(0x50), *range(0x60, 0x80)), _VNNI | _BF16 | _VP2),
)
"""CPUs whose flags show all that the compiler uses, by vendor, family and model."""


def shows_all(cpuinfo: Mapping[str, str], flags: frozenset[str]) -> bool:
    """Returns whether ``flags`` have all that ``-march=native`` may use on this x86 CPU unless a program asks
    for more.

    False for a CPU that is newer than the table or unknown, for an older kernel that does not show a late
    flag, and for a hypervisor that hides one (then nothing is missing, but this function cannot know that).
    """
    try:
        family, model, stepping = (int(cpuinfo[key]) for key in ("cpu family", "model", "stepping"))
    except (KeyError, ValueError):
        return False
    for known in _GENERATIONS:
        if (cpuinfo.get("vendor_id"), family) != (known.vendor, known.family):
            continue
        if model in known.models and stepping in known.steppings:
            return known.late <= flags
    return False
