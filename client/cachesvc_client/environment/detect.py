"""Detects the facts of this environment that decide whether compiled code fits it.

Nothing here imports torch, starts a process or creates a CUDA context: facts are read from the text of
installed packages, from ``/proc`` and from NVML. A fact that is not known is absent, and ``wire.factors``
says what absence means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ..graphs import keys
from ..wire.factors import SCHEMA, FactorValue, Fingerprint
from . import cpu, cxx, gpu, releases
from .releases import TESTED_CPU, TESTED_GPU
from .settings import settings


def detect(environ: Mapping[str, str] | None = None) -> Fingerprint:
    """Returns the fingerprint of this process, by the names of ``wire.factors.FACTORS``, and ``schema``.

    Never raises and never prints. Impure and not cached, since a fork or the application may change what it
    reads. Takes a few milliseconds where there is no GPU driver.
    """
    environ = os.environ if environ is None else environ
    torch, accelerator = releases.torch()
    cpuinfo = cpu.read_cpuinfo()
    facts: dict[str, FactorValue | None] = {
        "schema": SCHEMA,
        "torch": torch,
        "triton": releases.triton(),
        "python_abi": sys.implementation.cache_tag + getattr(sys, "abiflags", ""),
        "platform": f"{sys.platform}-{os.uname().machine}",
        "cuda": accelerator,
        "cpu_isa": cpu.cpu_isa(os.uname().machine, cpu.flags_of(cpuinfo), environ),
        "cpu_flags": cpu.cpu_flags(os.uname().machine, cpuinfo),
        "cxx": cxx.identity(environ),
        "libc": _libc(),
        "threads": _threads(environ),
        "cpu_model": cpuinfo.get("model name"),
        "settings": settings(environ),
    }
    if accelerator is not None:
        facts.update(gpu.first_gpu(environ))
    return {name: value for name, value in facts.items() if value is not None}


def unsupported_reason(fingerprint: Fingerprint, *, untested: bool | None = None) -> str | None:
    """Returns why cachesvc was not tested on this environment; ``None`` if it was.

    ``untested``: whether to go on without tests; by default the value of ``CACHESVC_UNTESTED``. Three reasons
    count in any case: there is no torch, this is not Linux, or this torch has no place for a hook without
    which nothing may be restored (`graphs.keys`).
    """
    platform, torch = str(fingerprint.get("platform", "")), str(fingerprint.get("torch", ""))
    if not platform.startswith("linux"):
        return f"cachesvc works on Linux; this is {platform or 'unknown'}"
    if not torch:
        return "torch is not installed"
    folder = releases.package("torch")
    if folder is not None and (missing := keys.missing_in_source(folder)):
        return missing
    if untested is None:
        untested = releases.allows_untested()
    release = releases.release(torch)
    triton = releases.release(str(fingerprint.get("triton", "")))
    if "gpu" in fingerprint:
        tested, description = (
            (release, triton) in TESTED_GPU,
            f"torch {torch} with triton {triton or '(none)'} on CUDA",
        )
        allowed = ", ".join(f"torch {left} with triton {right}" for left, right in TESTED_GPU)
    else:
        tested, description = release in TESTED_CPU, f"torch {torch} on CPU"
        allowed = ", ".join(f"torch {left}" for left in TESTED_CPU)
    if tested or untested:
        return None
    return (
        f"{description} is not tested with this client (tested: {allowed}); "
        "CACHESVC_UNTESTED=1 tries all the same"
    )


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
