"""When two results of one model count as equal: the one owner of tolerances, for `warm` and the canary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_PIECE = 1 << 22
"""Elements that are compared at once: the float64 copies of a large output must not fill a GPU."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a compiled output may be from eager: the largest absolute difference is allowed to be
    ``atol + rtol * (the largest absolute value in eager)``."""

    rtol: float
    atol: float


TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-3, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(5e-2, 1e-2),
}
"""By the dtype that is computed in, of a whole model: an operator alone would be held tighter."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One result against a reference: the largest absolute difference, the largest absolute value
    of the reference's tensor that differs most, and what was allowed there. ``note``: why there is
    nothing to compare."""

    difference: float = 0.0
    scale: float = 0.0
    allowed: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool:
        # A difference that is not a number compares false with everything, and so does not pass.
        return bool(self.note) or self.difference <= self.allowed


def tolerance(dtypes: Iterable[str]) -> Tolerance:
    """The loosest of the dtypes that were computed in (``float32``, ``bfloat16``, …). Complex ones count as
    their parts, 8-bit floats as bfloat16; of what is none of these, and of none, float32's."""
    names = {_COUNTS_AS.get(name, "bfloat16" if name.startswith("float8") else name) for name in dtypes}
    known = [TOLERANCES[name] for name in names if name in TOLERANCES]
    return max(known or [TOLERANCES["float32"]], key=lambda one: one.rtol)


_COUNTS_AS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def compare(values: Iterable[tuple[float, float]], rtol: float, atol: float) -> Compared:
    """``(largest absolute difference, largest absolute reference value)`` of each tensor -> the one
    that is worst against ``atol + rtol * scale``. No tensors: a note."""
    made = [Compared(difference, scale, atol + rtol * scale) for difference, scale in values]
    if not made:
        return Compared(note="no tensors in the output")
    return max(made, key=_badness)


def differ(mine: Any, reference: Any) -> tuple[float, float]:
    """(largest absolute difference, largest absolute finite value of the reference) of two tensors of one
    shape; both may be infinite or NaN at the same places without differing. NaN if only one is."""
    differences, scale = [0.0], 0.0
    for left, right in zip(
        mine.detach().reshape(-1).split(_PIECE), reference.detach().reshape(-1).split(_PIECE), strict=True
    ):
        if right.numel():
            one = _differ(left, right)
            differences.append(one[0])
            scale = max(scale, one[1])
    worst = math.nan if any(map(math.isnan, differences)) else max(differences)
    return worst, scale


def _differ(mine: Any, reference: Any) -> tuple[float, float]:
    import torch

    left, right = (
        item.to(torch.complex128 if item.is_complex() else torch.float64) for item in (mine, reference)
    )
    same = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(same, torch.zeros_like(left), left - right).abs().max().item()
    scale = torch.where(right.isfinite(), right, torch.zeros_like(right)).abs().max().item()
    return float(difference), float(scale)


def _badness(item: Compared) -> float:
    if math.isnan(item.difference):
        return math.inf
    return item.difference / item.allowed if item.allowed else (math.inf if item.difference else 0.0)
