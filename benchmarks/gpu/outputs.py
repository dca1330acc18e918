"""Outputs of a row, kept small: a digest of all bytes decides equality, a sample tells how far off."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SAMPLE = 1 << 18
"""Elements of a tensor that are kept, evenly spread."""
TOLERANCE = {"float32": 2e-3, "bfloat16": 6e-2}
"""By the row's dtype: of the largest value in eager. Random weights amplify, so it is as wide as `warm`'s."""


@dataclass(frozen=True)
class Kept:
    """One tensor: sha256 of its bytes, and a sample in float32."""

    digest: str
    sample: Tensor


def kept(tensors: list[Tensor]) -> list[Kept]:
    """Of every tensor; moves them to the host."""
    return [_kept(tensor.detach()) for tensor in tensors]


def _kept(tensor: Tensor) -> Kept:
    here = tensor.cpu().contiguous()
    digest = hashlib.sha256(here.view(-1).view(torch.uint8).numpy()).hexdigest()
    flat = here.view(-1)
    return Kept(digest, flat[:: max(1, flat.numel() // SAMPLE)].float())


def compared(mine: list[Kept], other: list[Kept], tolerance: float) -> dict[str, Any]:
    """Whether all bytes are equal, the largest difference with the largest value, and whether it is within
    ``tolerance`` of that value in every tensor."""
    if [item.sample.shape for item in mine] != [item.sample.shape for item in other]:
        return {"equal": False, "close": False, "note": "not the same tensors"}
    gaps = [(a.sample - b.sample).abs().max().item() for a, b in zip(mine, other, strict=True)]
    scales = [b.sample.abs().max().item() for b in other]
    return {
        "equal": [a.digest for a in mine] == [b.digest for b in other],
        "close": all(gap <= tolerance * scale + 1e-5 for gap, scale in zip(gaps, scales, strict=True)),
        "difference": max(gaps),
        "scale": max(scales),
    }


def own(path: str | Path) -> Path:
    """``path`` with ``RANK`` in it replaced by the rank of this process: 0 unless it is one of a job."""
    return Path(str(path).replace("RANK", os.environ.get("RANK", "0")))


def save(items: list[Kept], path: Path) -> None:
    torch.save([(item.digest, item.sample) for item in items], path)


def load(path: Path) -> list[Kept]:
    return [Kept(digest, sample) for digest, sample in torch.load(path, weights_only=True)]
