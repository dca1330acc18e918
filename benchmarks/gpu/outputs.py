"""Keep the outputs of a row in a small form: a digest of all bytes decides equality, and a sample shows how
far off an output is."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SAMPLE = 1 << 18
"""The number of elements of a tensor that are kept, evenly spread."""
TOLERANCE = {"float32": 2e-3, "bfloat16": 6e-2}
"""The tolerance by the row's dtype, as a share of the largest value in eager. Random weights amplify
differences, so it is as wide as `warm`'s."""


@dataclass(frozen=True)
class OutputDigest:
    """Holds the sha256 of one tensor's bytes, and a sample in float32."""

    digest: str
    sample: Tensor


def digests_of(tensors: list[Tensor]) -> list[OutputDigest]:
    """Return the digest of every tensor; move the tensors to the host."""
    return [_kept(tensor.detach()) for tensor in tensors]


def _kept(tensor: Tensor) -> OutputDigest:
    here = tensor.cpu().contiguous()
    digest = hashlib.sha256(here.view(-1).view(torch.uint8).numpy()).hexdigest()
    flat = here.view(-1)
    return OutputDigest(digest, flat[:: max(1, flat.numel() // SAMPLE)].float())


def compare_outputs(mine: list[OutputDigest], other: list[OutputDigest], tolerance: float) -> dict[str, Any]:
    """Return whether all bytes are equal, the largest difference with the largest value, and whether the
    difference is within ``tolerance`` of that value in every tensor."""
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
    """Return ``path`` with ``RANK`` replaced by the rank of this process: 0 unless the process belongs to a
    job."""
    return Path(str(path).replace("RANK", os.environ.get("RANK", "0")))


def save(items: list[OutputDigest], path: Path) -> None:
    torch.save([(item.digest, item.sample) for item in items], path)


def load(path: Path) -> list[OutputDigest]:
    return [OutputDigest(digest, sample) for digest, sample in torch.load(path, weights_only=True)]
