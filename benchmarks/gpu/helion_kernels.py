"""Run four kernels of Helion in the place of a service: ``python helion_kernels.py ANSWER``.

The process searches in Helion's default way, with Helion's own settings from variables. With
``HELION_PROOF_PUBLISH``, a name, it publishes at its end. ANSWER gets JSON: seconds, counts, and whether the
outputs are those of eager, with digests of them. ``HELION_PROOF_DEVICE``: where the kernels run. Others named
``HELION_PROOF_…`` run a small kernel alone and change it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = float(os.environ.get("BENCHMARK_STARTED", time.monotonic()))

import cachesvc_client  # noqa: E402 - after the clock

if os.environ.get("CACHESVC_NAME"):
    cachesvc_client.attach()

import helion  # noqa: E402 - after attach
import helion.language as hl  # noqa: E402
import torch  # noqa: E402
from helion._utils import counters as helions_own  # noqa: E402
from helion.runtime.kernel import BoundKernel  # noqa: E402

from cachesvc_client.wire.codec import plain  # noqa: E402

DEVICE = os.environ.get("HELION_PROOF_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"


FACTOR = float(os.environ.get("HELION_PROOF_FACTOR", "2.0"))
"""A constant that a kernel reads."""

if os.environ.get("HELION_PROOF_HELPER") == "cosine":

    def wave(values: torch.Tensor) -> torch.Tensor:
        """Return what a kernel calls."""
        return torch.cos(values)

else:

    def wave(values: torch.Tensor) -> torch.Tensor:
        """Return what a kernel calls."""
        return torch.sin(values)


@helion.kernel(static_shapes=True)
def waved_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add what a function of the program makes."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = wave(x[tile]) * FACTOR + y[tile]
    return out


@helion.kernel(static_shapes=True)
def scaled_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add a sine."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.sin(x[tile]) * 2.0 + y[tile]
    return out


@helion.kernel(static_shapes=True)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Normalise rows."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        top = torch.amax(values, dim=1, keepdim=True)
        powers = torch.exp(values - top)
        out[tile, :] = (powers / torch.sum(powers, dim=1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices."""
    rows, inner = x.size()
    _, columns = y.size()
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([rows, columns]):
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(inner):
            total = torch.addmm(total, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = total.to(x.dtype)
    return out


def calls() -> list[tuple[str, Any, tuple[torch.Tensor, ...], Any]]:
    """Return each kernel's name, the kernel, its arguments, and eager's result."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(*shape, generator=generator).to(DEVICE, dtype)

    rows = int(os.environ.get("HELION_PROOF_ROWS", "8"))
    dtype = getattr(torch, os.environ.get("HELION_PROOF_DTYPE", "float32"))
    x, y = numbers(rows, 128, dtype=dtype), numbers(rows, 128, dtype=dtype)
    small = ("waved_add", waved_add, (x, y), wave(x) * FACTOR + y)
    if not ON_GPU or os.environ.get("HELION_PROOF_SMALL"):
        return [small]
    x, y = numbers(4096, 4096), numbers(4096, 4096)
    a, b = numbers(1024, 2048, dtype=torch.bfloat16), numbers(2048, 1024, dtype=torch.bfloat16)
    return [
        small,
        ("scaled_add", scaled_add, (x, y), torch.sin(x) * 2.0 + y),
        ("softmax", softmax, (x,), torch.softmax(x, dim=1)),
        ("matmul", matmul, (a, b), a @ b),
    ]


def main() -> None:
    """Run every kernel twice."""
    generated = [0]
    compile_config = BoundKernel.compile_config

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        generated[0] += 1
        return compile_config(self, *arguments, **options)

    BoundKernel.compile_config = counting
    seconds: dict[str, float] = {"import": time.monotonic() - BEGAN}
    results: dict[str, dict[str, Any]] = {}
    for name, kernel, arguments, eager in calls():
        begin = time.monotonic()
        result = kernel(*arguments)
        if ON_GPU:
            torch.cuda.synchronize()
        seconds[name] = time.monotonic() - begin
        again = kernel(*arguments)
        tolerance = 1e-5 if result.dtype == torch.float32 else 2e-2
        results[name] = {
            "close": bool(torch.allclose(result, eager, rtol=tolerance, atol=tolerance)),
            "equal": bool(torch.equal(result, eager)),
            "repeats": bool(torch.equal(result, again)),
            "digest": hashlib.sha256(result.float().cpu().numpy().tobytes()).hexdigest(),
        }
    seconds["all"] = time.monotonic() - BEGAN
    configurations = sorted(helions_own["best_config_decorator"])
    if publish := os.environ.get("HELION_PROOF_PUBLISH"):
        cachesvc_client.publish(publish, target="helion")
    report = plain(cachesvc_client.report())
    answer = {
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "results": results,
        "configurations": configurations,
        "generated": generated[0],
        "helion": dict(helions_own["autotune"]),
        **{name: report[name] for name in ("state", "reasons", "observed", "kinds", "compared")},
    }
    Path(sys.argv[1]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
