"""Detects the facts of this environment that decide whether compiled code fits it.

Nothing here imports torch, starts a process or creates a CUDA context: facts are read from the text of
installed packages, from ``/proc`` and from NVML. A fact that is not known is absent, and ``wire.factors``
says what absence means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ..wire.factors import SCHEMA, FactorValue, Fingerprint
from . import cpu, cxx, gpu, march, releases
from .settings import settings


def detect(environ: Mapping[str, str] | None = None) -> Fingerprint:
    """Returns the fingerprint of this process, by the names of ``wire.factors.FACTORS``, and ``schema``.

    Never raises and never prints. Impure and not cached, since a fork or the application may change what it
    reads. Takes a few milliseconds where there is no GPU driver.
    """
    environ = os.environ if environ is None else environ
    if environ.get("CACHESVC_MARCH"):
        from .level_choice import choose_level  # for those who set it

        environ = {**environ, **choose_level(environ).variables}
    torch, accelerator = releases.torch()
    cpuinfo, machine = cpu.read_cpuinfo(), os.uname().machine
    flags = cpu.cpu_flags(machine, cpuinfo)
    facts: dict[str, FactorValue | None] = {
        "schema": SCHEMA,
        "torch": torch,
        "triton": releases.triton(),
        "python_abi": sys.implementation.cache_tag + getattr(sys, "abiflags", ""),
        "platform": f"{sys.platform}-{machine}",
        "cuda": accelerator,
        "cpu_isa": cpu.cpu_isa(machine, cpu.flags_of(cpuinfo), environ),
        "cpu_flags": flags and sorted([*flags, *march.mark(machine, environ, torch)]),
        "cxx": cxx.identity(environ),
        "libc": _libc(),
        "threads": _threads(environ),
        "cpu_model": cpuinfo.get("model name"),
        "settings": settings(environ),
    }
    if accelerator is not None:
        facts.update(gpu.first_gpu(environ))
    return {name: value for name, value in facts.items() if value is not None}


def _libc() -> str | None:
    """Returns the version of glibc, such as ``2.36``; ``None`` for another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return None
    return version if name == "glibc" and version else None


def _threads(environ: Mapping[str, str]) -> int | None:
    """Returns the number that ``torch.get_num_threads()`` returns, if that is certain.

    Asks torch itself if the application has imported it completely; a thread that asks while torch is being
    imported would wait for the import lock. Otherwise reads OMP_NUM_THREADS, unless MKL_NUM_THREADS, which
    goes first in builds with MKL, is set too.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        initializing = getattr(getattr(torch, "__spec__", None), "_initializing", False)
        count = getattr(torch, "get_num_threads", None)
        if not initializing and count is not None:
            return int(count())
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # one number per nesting level
    if environ.get("MKL_NUM_THREADS") or not first.isdigit() or not int(first):
        return None
    return int(first)
