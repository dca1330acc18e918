"""Show which GPUs run machine code that was made for others: ``families.py --out DIR``.

Triton compiles two kernels, a sum and a product of matrices, for each architecture. The driver of this GPU
gets each machine code, then each PTX, and the numbers of what it takes are compared. Each attempt has a
process of its own, with an empty folder for the compiler of the driver. Needs torch, Triton and a GPU.
Writes ``families.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 103, 120)
FORMS = ("cubin", "ptx")
COMPILER = "libnvidia-ptxjitcompiler"
SIZE = 64


@triton.jit
def add(x, y, out, BLOCK: tl.constexpr):
    """Add two vectors of BLOCK numbers."""
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place) + tl.load(y + place))


@triton.jit
def dot(x, y, out, BLOCK: tl.constexpr):
    """Multiply two matrices of BLOCK by BLOCK numbers."""
    place = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + place, tl.dot(tl.load(x + place), tl.load(y + place)))


KERNELS = {"add": (add, torch.float32), "dot": (dot, torch.bfloat16)}


def compiled(name: str, architecture: int) -> Any:
    """Return a kernel as Triton compiles it for an architecture."""
    function, dtype = KERNELS[name]
    pointer = "*fp32" if dtype == torch.float32 else "*bf16"
    types = {"x": pointer, "y": pointer, "out": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(function, types, constexprs={"BLOCK": SIZE})
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32))


def attempt(name: str, architecture: int, form: str) -> dict[str, Any]:
    """Have the driver load one form of a kernel, and run it where the driver takes it."""
    try:
        kernel = compiled(name, architecture)
    except Exception as error:  # noqa: BLE001 - the release knows no such architecture
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    code = kernel.asm[form]
    target = re.search(r"\.target (\S+)", kernel.asm["ptx"])
    answer: dict[str, Any] = {"target": target and target[1].rstrip(","), "bytes": len(code)}
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    image = code if isinstance(code, bytes) else code.encode() + b"\0"
    begin = time.perf_counter()
    answer["status"] = driver.cuModuleLoadData(ctypes.byref(module), image)
    answer["seconds"] = round(time.perf_counter() - begin, 4)
    answer["compiled"] = COMPILER in Path("/proc/self/maps").read_text()
    if answer["status"]:
        return answer
    dtype, shape = KERNELS[name][1], (SIZE,) if name == "add" else (SIZE, SIZE)
    x, y = (torch.randn(shape, device="cuda", dtype=dtype) for _ in "xy")
    out = torch.zeros(shape, device="cuda")
    driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.metadata.name.encode())
    values = [ctypes.c_uint64(one.data_ptr()) for one in (x, y, out)] + [ctypes.c_uint64(0)] * 2
    places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
    threads, shared = kernel.metadata.num_warps * 32, kernel.metadata.shared
    answer["launch"] = driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, shared, None, places, None)
    torch.cuda.synchronize()
    expected = x + y if name == "add" else x.float() @ y.float()
    answer["right"] = bool(torch.allclose(out, expected, atol=1e-4, rtol=1e-4))
    return answer


def main() -> int:
    """Try every architecture, or the one attempt that the command line names."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--attempt", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attempt:
        name, architecture, form = options.attempt
        print(json.dumps(attempt(name, int(architecture), form)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    with ThreadPoolExecutor(4) as pool:
        document["attempts"] = list(pool.map(lambda one: start(*one), every_attempt()))
    (options.out / "families.json").write_text(json.dumps(document, indent=1) + "\n")
    print("| kernel | made for | PTX target | form | driver's status | driver compiled | seconds | right |")
    print("|---|---|---|---|---:|---|---:|---|")
    for one in document["attempts"]:
        words = ("kernel", "architecture", "target", "form", "status", "compiled", "seconds", "right")
        print("|", " | ".join(str(one.get(word, one.get("error", "-"))) for word in words), "|")
    return 0


def every_attempt() -> list[tuple[str, int, str]]:
    """Return kernel, architecture and form of each attempt."""
    return [(name, one, form) for name in KERNELS for one in ARCHITECTURES for form in FORMS]


def start(name: str, architecture: int, form: str) -> dict[str, Any]:
    """Make an attempt in a process whose driver has compiled nothing before."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--attempt", name, str(architecture), form]
        environ = {**os.environ, "CUDA_CACHE_PATH": folder}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    lines = done.stdout.splitlines()
    answer = json.loads(lines[-1]) if lines else {"error": f"status {done.returncode}: {done.stderr[-200:]}"}
    return {"kernel": name, "architecture": architecture, "form": form, **answer}


if __name__ == "__main__":
    sys.exit(main())
