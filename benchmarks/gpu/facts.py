"""Print the facts of the machine and of its compilers as JSON on the last line: ``python facts.py``.

Detection runs first and alone, so that what it costs and leaves on the device is seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> None:
    import cachesvc_client.auto  # noqa: F401
    from cachesvc_client.environment.detect import detect
    from cachesvc_client.process.every_hook import support_of

    before = device_memory()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        fingerprint = detect()
        seconds.append(round(time.perf_counter() - begin, 4))
    facts = {
        "fingerprint": {key: value for key, value in fingerprint.items() if key != "cpu_flags"},
        "supported": support_of(fingerprint).line,
        "detect_seconds": seconds,
        "device_memory_before_after": [before, device_memory()],
        "torch_imported_by_detect": "torch" in sys.modules,
        "open_device_files": sorted({link for link in links() if link.startswith("/dev/nvidia")}),
    }
    facts["g++"] = output_of("g++", "-dumpfullversion")
    facts.update(compilers())
    print(json.dumps(facts))


def is_hook(function: object) -> bool:
    return bool(getattr(function, "_cachesvc_wrapped_by", ()))


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "none"


def links() -> list[str]:
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return targets


def device_memory() -> int | None:
    """Return the bytes in use on the first device; a CUDA context takes hundreds of MB."""
    try:
        import pynvml

        pynvml.nvmlInit()
        used = int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
        pynvml.nvmlShutdown()
        return used
    except Exception:  # noqa: BLE001 - no driver
        return None


def compilers() -> dict[str, object]:
    from cachesvc_client.hooks import counters
    from cachesvc_client.process.process import process

    process().arm()
    counters.start()
    import torch

    initialised = torch.cuda.is_initialized()
    import torch._inductor.codecache
    import torch._inductor.compile_fx
    import torch._inductor.compile_worker.subproc_pool
    import torch._inductor.cpp_builder
    import torch._inductor.select_algorithm
    from torch._inductor.runtime import triton_heuristics

    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda_initialised_after_import": initialised,
        "missing": sorted(counters.missing),
        "wrapped": {
            name: bool(
                getattr(getattr(triton_heuristics.CachingAutotuner, name, None), "_cachesvc_wrapped_by", ())
            )
            for name in ("recheck_autotune_cache", "autotune_to_one_config", "_dynamic_scale_rblock")
        },
    }
    try:
        import triton
        import triton.backends.nvidia.driver as driver
        from triton import knobs
    except ImportError:
        return facts
    facts["triton"] = triton.__version__
    facts["missing"] = sorted(counters.missing)
    facts["knobs"] = {
        "compilation.listener": hasattr(knobs.compilation, "listener"),
        "runtime.jit_cache_hook": hasattr(knobs.runtime, "jit_cache_hook"),
        "cache.dir": hasattr(knobs.cache, "dir"),
        "autotuning.cache": hasattr(knobs.autotuning, "cache"),
        "driver.compile_module_from_src": is_hook(driver.compile_module_from_src),
    }
    begin = time.perf_counter()
    driver.libcuda_dirs()
    facts["ldconfig_seconds"] = round(time.perf_counter() - begin, 4)
    from triton.backends.nvidia.compiler import get_ptxas_version

    begin = time.perf_counter()
    facts["ptxas"] = str(get_ptxas_version()).strip().splitlines()[-1]
    facts["ptxas_version_seconds"] = round(time.perf_counter() - begin, 4)
    begin = time.perf_counter()
    triton.runtime.cache.triton_key()
    facts["triton_key_seconds"] = round(time.perf_counter() - begin, 4)
    return facts


if __name__ == "__main__":
    main()
