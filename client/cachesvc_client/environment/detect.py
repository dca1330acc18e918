"""The facts of this environment that decide whether compiled code fits it.

Nothing here imports torch, starts a process or creates a CUDA context: facts are read from the text
of installed packages, from ``/proc`` and from NVML. A fact that cannot be told is absent, and
``wire.factors`` says what absence means.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from ..graphs import keys
from ..wire.factors import SCHEMA, FactorValue, Fingerprint
from . import cxx, releases
from .instruction_sets import ARM_FLAGS, X86_FLAGS, shows_all
from .releases import TESTED_CPU, TESTED_GPU


def detect(environ: Mapping[str, str] | None = None) -> Fingerprint:
    """The fingerprint of this process, by the names of ``wire.factors.FACTORS``, and ``schema``.

    Never raises and never prints; impure and not cached, since a fork or the application may change
    what it reads. Takes a few milliseconds where there is no GPU driver.
    """
    environ = os.environ if environ is None else environ
    torch, accelerator = releases.torch()
    cpuinfo = _cpuinfo()
    facts: dict[str, FactorValue | None] = {
        "schema": SCHEMA,
        "torch": torch,
        "triton": releases.triton(),
        "python_abi": sys.implementation.cache_tag + getattr(sys, "abiflags", ""),
        "platform": f"{sys.platform}-{os.uname().machine}",
        "cuda": accelerator,
        "cpu_isa": cpu_isa(os.uname().machine, _flags(cpuinfo), environ),
        "cpu_flags": cpu_flags(os.uname().machine, cpuinfo),
        "cxx": cxx.identity(environ),
        "libc": _libc(),
        "threads": _threads(environ),
        "cpu_model": cpuinfo.get("model name"),
        "settings": settings(environ),
    }
    if accelerator is not None:
        facts.update(_gpu(environ))
    return {name: value for name, value in facts.items() if value is not None}


def supported(fingerprint: Fingerprint, *, untested: bool | None = None) -> str | None:
    """Why this environment is not one that cachesvc was tested on; ``None`` if it is.

    ``untested``: whether to go on without tests; by default what ``CACHESVC_UNTESTED`` says. Without
    torch, or off Linux, nothing can be done, and that is said in any case; so is a torch that has no place
    for a hook without which nothing may be restored (`graphs.keys`).
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
        untested = releases.untested()
    release = releases.release(torch)
    triton = releases.release(str(fingerprint.get("triton", "")))
    if "gpu" in fingerprint:
        tested, shown = (
            (release, triton) in TESTED_GPU,
            f"torch {torch} with triton {triton or '(none)'} on CUDA",
        )
        allowed = ", ".join(f"torch {left} with triton {right}" for left, right in TESTED_GPU)
    else:
        tested, shown = release in TESTED_CPU, f"torch {torch} on CPU"
        allowed = ", ".join(f"torch {left}" for left in TESTED_CPU)
    if tested or untested:
        return None
    return (
        f"{shown} is not tested with this client (tested: {allowed}); CACHESVC_UNTESTED=1 tries all the same"
    )


# The CPU.


def cpu_flags(machine: str, cpuinfo: Mapping[str, str]) -> list[str] | None:
    """Name the instruction sets, sorted, that ``-march=native`` may turn on, by the kernel's names.

    Where ``/proc/cpuinfo`` may show less than the compiler turns on, the list names the CPU's model too, as
    ``model:GenuineIntel-6-173``: code that was built there fits CPUs of this model alone. ``None`` if nothing
    is known.
    """
    flags = _flags(cpuinfo)
    if machine in ("aarch64", "arm64"):
        return sorted(flags & ARM_FLAGS) or None
    known = flags & X86_FLAGS
    if known and not shows_all(cpuinfo, flags):
        parts = (cpuinfo.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
        known |= {f"model:{'-'.join(parts)}"}
    return sorted(known) or None


def cpu_isa(machine: str, flags: frozenset[str], environ: Mapping[str, str]) -> str | None:
    """What ``torch._inductor.cpu_vec_isa.pick_vec_isa()`` (2.13) decides, as text: ``str(isa)``, with
    ``avx512_bf16`` and ``amx_fp16`` where they add to its compiler flags.

    Without its probes, so for a compiler that knows the CPU's instructions: an image without a compiler
    has the same text as its builder. ``None`` on machines that this does not know.
    """
    if environ.get("TORCHINDUCTOR_VEC_ISA_OK") == "0":
        return "INVALID_VEC_ISA"
    if machine == "x86_64":
        candidates = _x86_isas(flags)
    elif machine == "aarch64":
        candidates = _arm_isas(flags)
    else:
        return None
    if not candidates:
        return "INVALID_VEC_ISA"
    wanted = environ.get("ATEN_CPU_CAPABILITY", "")
    if wanted == "default":
        return "INVALID_VEC_ISA"
    if wanted in ("zvector", "vsx", "avx2", "avx512"):
        return next((isa for isa in candidates if wanted in isa), candidates[0])
    return candidates[0]  # not set, or a value that PyTorch ignores with a warning


def _x86_isas(flags: frozenset[str]) -> list[str]:
    """Best first, as ``supported_vec_isa_list`` has them."""
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
    """The vector length of this thread: prctl(PR_SVE_GET_VL), linux/Documentation/arch/arm64/sve.rst."""
    import ctypes

    length = ctypes.CDLL(None).prctl(51, 0, 0, 0, 0)
    return int(length) & 0xFFFF if length > 0 else 0


def _cpuinfo() -> dict[str, str]:
    """The first processor of ``/proc/cpuinfo``."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            text = file.read(1 << 14).decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _flags(cpuinfo: Mapping[str, str]) -> frozenset[str]:
    return frozenset((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())


def _libc() -> str | None:
    """``2.36``, of glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return None
    return version if name == "glibc" and version else None


def _threads(environ: Mapping[str, str]) -> int | None:
    """What ``torch.get_num_threads()`` answers, if that is certain.

    From torch itself if the application has imported it completely; a thread that asks while it is
    being imported would wait for the import lock. Otherwise from OMP_NUM_THREADS, unless
    MKL_NUM_THREADS, which goes first in builds with MKL, is set too.
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


# Settings.

_SETTING_PREFIXES = (
    "TORCHINDUCTOR_",
    "TORCH_COMPILE_",
    "TORCHDYNAMO_",
    "TORCH_INDUCTOR_",
    "INDUCTOR_",
    "TRITON_",
)
_SETTING_NAMES_TEXT = """
CI ATEN_CPU_CAPABILITY CXX CC TORCH_CACHING_PRECOMPILE
TORCH_FLOAT32_MATMUL_PRECISION
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE NVIDIA_TF32_OVERRIDE CUBLAS_WORKSPACE_CONFIG TORCH_BLAS_PREFER_CUBLASLT
PYTORCH_NVML_BASED_CUDA_CHECK TORCH_DETERMINISTIC
"""
_SETTING_NAMES = frozenset(_SETTING_NAMES_TEXT.split())
_NEUTRAL_TEXT = """
TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE
TORCHINDUCTOR_WORKER_START TORCHINDUCTOR_WORKER_LOGPATH TRITON_CACHE_MANAGER TRITON_REMOTE_CACHE_BACKEND
"""
_NEUTRAL = frozenset(_NEUTRAL_TEXT.split())
_PRIVATE = re.compile(
    r"(?:^|_)(?:DIR|PATH|ROOT|HOME|FOLDER|FILE|URL|HOST|PORT|REDIS|TOKEN|SECRET|PASSWORD|PASSWD)(?:_|$)"
)


def settings(environ: Mapping[str, str]) -> list[str] | None:
    """The variables that are set and may change PyTorch's or Triton's keys, as ``NAME=value``, sorted.

    Neither folders, addresses nor secrets: a name that speaks of one, or an absolute path as the value
    (save CXX and CC, which are in the key as they are), is left out. So are OMP_NUM_THREADS and
    MKL_NUM_THREADS: the key holds their outcome, which is the factor ``threads``. What changes keys was
    measured on torch 2.13; a prefix takes in what newer versions add.
    """
    named = [
        f"{name}={value[:200]}"
        for name, value in environ.items()
        if (name.startswith(_SETTING_PREFIXES) or name in _SETTING_NAMES)
        and name not in _NEUTRAL
        and not _PRIVATE.search(name)
        and (name in ("CXX", "CC") or not value.startswith("/"))
    ]
    return sorted(named) or None


# The GPU, by NVML: no CUDA context, so it is right before a fork and costs the device nothing.


def _gpu(environ: Mapping[str, str]) -> dict[str, FactorValue]:
    """The first device that CUDA will show to this process. Empty without a driver or a device."""
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/dxg"):
        return {}  # importing pynvml takes 60 ms
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        return _gpu_facts(pynvml, environ)
    except (pynvml.NVMLError, ValueError):
        return {}
    finally:
        pynvml.nvmlShutdown()


def _gpu_facts(nvml: Any, environ: Mapping[str, str]) -> dict[str, FactorValue]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible_devices(nvml, visible)
    if not devices:
        return {}
    facts: dict[str, FactorValue] = {"driver": _text(nvml.nvmlSystemGetDriverVersion())}
    facts["gpu_count"] = len(devices)
    name = _text(nvml.nvmlDeviceGetName(devices[0]))
    whole = devices[0]
    if nvml.nvmlDeviceIsMigDeviceHandle(devices[0]):
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(devices[0])
        profile = name.partition(" MIG ")[2]
        if not profile:
            return facts  # an old driver gives the whole device's name: a doubt is a miss
        facts["mig"] = profile
    if _order_matters(nvml, visible) and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return facts  # CUDA's own order, fastest first, is not told by NVML
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    return {**facts, "gpu": name, "compute_capability": f"{major}.{minor}"}


def _order_matters(nvml: Any, visible: str | None) -> bool:
    """Devices are meant by number, and which one has a number makes a difference here."""
    if visible is not None and visible.startswith(_BY_UUID):
        return False
    return len({_text(nvml.nvmlDeviceGetName(device)) for device in _whole(nvml)}) > 1


_BY_UUID = ("GPU-", "MIG-")


def visible_devices(nvml: Any, visible: str | None) -> list[Any]:
    """NVML's handles of what CUDA shows under ``CUDA_VISIBLE_DEVICES``, in CUDA's order.

    A list is of numbers, of ``GPU-`` or of ``MIG-`` UUIDs, as its first word is; of a UUID a beginning that
    is unambiguous is enough. What follows an invalid word is invisible; a device named twice makes all of
    them so; set to nothing shows none (CUDA C++ Programming Guide, environment variables; what it leaves
    open is as ``torch.cuda._parse_visible_devices`` and ``_transform_uuid_to_ordinals`` have it). With MIG,
    CUDA enumerates one compute instance, and beside it no other device (NVIDIA MIG User Guide, CUDA device
    enumeration). Raises NVML's errors.
    """
    whole = _whole(nvml)
    if visible is None:
        chosen = whole
    elif visible.startswith("MIG-"):
        chosen = _by_uuid(nvml, _all_instances(nvml, whole), visible, "MIG-")
    elif visible.startswith("GPU-"):
        chosen = _by_uuid(nvml, whole, visible, "GPU-")
    else:
        chosen = _by_number(whole, visible)
    shown = [one for device in chosen if (one := _instance(nvml, device)) is not None]
    return [one for one in shown if nvml.nvmlDeviceIsMigDeviceHandle(one)][:1] or shown


def _whole(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _by_uuid(nvml: Any, devices: list[Any], visible: str, prefix: str) -> list[Any]:
    named = [(_text(nvml.nvmlDeviceGetUUID(device)), device) for device in devices]
    chosen: list[Any] = []
    for part in visible.split(","):
        found = [device for uuid, device in named if uuid.startswith(part)]
        if len(part) <= len(prefix) or not part.startswith(prefix) or len(found) != 1:
            break
        if found[0] in chosen:
            return []
        chosen += found
    return chosen


def _by_number(whole: list[Any], visible: str) -> list[Any]:
    chosen: list[Any] = []
    for part in visible.split(","):
        number = re.match(r"\+?([0-9]+)", part.strip())  # as strtoul reads: ``1gpu`` is 1
        if number is None or int(number[1]) >= len(whole):
            break
        device = whole[int(number[1])]
        if device in chosen:
            return []
        chosen.append(device)
    return chosen


def _instance(nvml: Any, device: Any) -> Any:
    """The device itself, or its first MIG instance if MIG is on; ``None`` if it has none."""
    if nvml.nvmlDeviceIsMigDeviceHandle(device) or not _mig_on(nvml, device):
        return device
    return next(iter(_instances(nvml, device)), None)


def _mig_on(nvml: Any, device: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError:
        return False
    return bool(current)


def _instances(nvml: Any, device: Any) -> list[Any]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:
            continue
    return found


def _all_instances(nvml: Any, whole: list[Any]) -> list[Any]:
    return [instance for device in whole if _mig_on(nvml, device) for instance in _instances(nvml, device)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
