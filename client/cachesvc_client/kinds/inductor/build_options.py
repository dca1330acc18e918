"""Finds out which instructions a C++ kernel may use that Inductor compiles now, by its options, and has
Inductor pick no others than those of a level.

Only what is known counts: a level of x86-64 as the target, the options of the picked instruction set, no
others, and gcc itself as the compiler: a script before it could add options of its own.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

from ...environment import cxx
from ...environment.instruction_sets import X86_FLAG_OF_OPTION
from ...environment.march import LEVELS, has_level
from ...hooks import imports


def sets_of_all(call: imports.Call) -> Any:
    """Run in the place of Inductor's list of instruction sets: under a level return those that every CPU of a
    level has whole, without VNNI, AMX and the option for bfloat16."""
    found = call()
    if not has_level(os.environ):
        return found
    plain = [copy.copy(isa) for isa in found if str(isa) in ("avx2", "avx512")]
    for isa in plain:
        isa._is_avx512_bf16_supported = False
    return plain


def unknown_options(extra: Sequence[str], flags: frozenset[str]) -> str:
    """Return why code that is compiled now may use instructions beyond ``flags`` of ``/proc/cpuinfo``; an
    empty text if it uses none. ``extra``: options that the caller adds.

    To be called once Inductor has picked an instruction set for the code: the first choice runs compilers.
    """
    from torch._inductor import config, cpu_vec_isa

    march = str(getattr(config.cpp, "march", None) or "native")
    if march not in LEVELS:
        return f"code was compiled for the target {march}"
    if extra:
        return f"code was compiled with {' '.join(map(str, extra))[:120]}"
    if not (isinstance(config.cpp.cxx, (tuple, list)) and _is_plain_gcc(config.cpp.cxx)):
        return "code was compiled by another compiler than gcc itself"
    options = cpu_vec_isa.pick_vec_isa().build_arch_flags().split()
    needed = LEVELS[march] | {X86_FLAG_OF_OPTION.get(one.removeprefix("-m"), one) for one in options}
    beyond = sorted(needed - flags)
    return f"code was compiled with {', '.join(beyond)}" if beyond else ""


def _is_plain_gcc(commands: Sequence[str | None]) -> bool:
    """Return whether the first program of Inductor's list of compilers that it runs is gcc itself."""
    return len(commands) == 2 and commands[0] is None and cxx.is_plain_gcc(str(commands[1]), os.environ)
