"""A user's Triton kernels, launched without torch.compile: one plain, one under ``triton.autotune``.

python eager_triton.py plain|autotune
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

SIZE = 100_000
_CONFIGS = [triton.Config({"BLOCK": size}, num_warps=warps) for size in (256, 1024) for warps in (4, 8)]


@triton.jit
def _scaled_sum(left, right, out, count, scale, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.load(left + place, mask=mask) + tl.load(right + place, mask=mask)
    tl.store(out + place, total * scale, mask=mask)


@triton.autotune(configs=_CONFIGS, key=["count"])
@triton.jit
def _tuned_sum(left, right, out, count, scale, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.load(left + place, mask=mask) + tl.load(right + place, mask=mask)
    tl.store(out + place, total * scale, mask=mask)


def run(variant: str) -> torch.Tensor:
    """One launch; answers the output."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    left, right = (torch.randn(SIZE, device="cuda", generator=generator) for _ in range(2))
    out = torch.empty_like(left)
    if variant == "autotune":
        _tuned_sum[lambda meta: (triton.cdiv(SIZE, meta["BLOCK"]),)](left, right, out, SIZE, 0.5)
    else:
        _scaled_sum[(triton.cdiv(SIZE, 1024),)](left, right, out, SIZE, 0.5, BLOCK=1024)
    torch.cuda.synchronize()
    return out


if __name__ == "__main__":
    made = run(sys.argv[1])
    assert torch.isfinite(made).all()
