"""Decides when two results of one model count as equal, for `warm` and the canary; owns the tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_PIECE = 1 << 22
"""Elements that are compared at once, since the float64 copies of a large output must not fill a GPU."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Says how far a compiled output may be from eager's.

    The largest absolute difference may be ``atol + rtol * (the largest absolute value in eager)``.
    """

    rtol: float
    atol: float


TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-3, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(5e-2, 1e-2),
}
"""Tolerances of a whole model, by the dtype of its computation. A single operator would get a tighter one."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Holds the comparison of one result with a reference.

    ``difference`` is the largest absolute difference. ``scale`` is the largest absolute value of the
    reference tensor that differs most, and ``allowed`` is the difference that its tolerance allows. ``note``:
    why there is nothing to compare.
    """

    difference: float = 0.0
    scale: float = 0.0
    allowed: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool:
        """Returns whether the result is right, as far as it can be compared."""
        # A difference that is not a number compares false with everything, and so does not pass.
        return bool(self.note) or self.difference <= self.allowed


def tolerance(dtypes: Iterable[str]) -> Tolerance:
    """Returns the loosest tolerance of the dtypes of a computation (``float32``, ``bfloat16``, …).

    A complex dtype counts as the dtype of its parts, and an 8-bit float as bfloat16. Without a known dtype it
    is float32's tolerance.
    """
    names = {_COUNTS_AS.get(name, "bfloat16" if name.startswith("float8") else name) for name in dtypes}
    known = [TOLERANCES[name] for name in names if name in TOLERANCES]
    return max(known or [TOLERANCES["float32"]], key=lambda one: one.rtol)


_COUNTS_AS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Complex dtypes -> the dtypes of their parts."""


def compare(values: Iterable[tuple[float, float]], rtol: float, atol: float) -> Compared:
    """Returns the comparison of the tensor that is worst against ``atol + rtol * scale``; without tensors, a
    note.

    ``values``: the largest absolute difference and the largest absolute reference value of each tensor.
    """
    comparisons = [Compared(difference, scale, atol + rtol * scale) for difference, scale in values]
    if not comparisons:
        return Compared(note="no tensors in the output")
    return max(comparisons, key=_badness)


def differ(mine: Any, reference: Any) -> tuple[float, float]:
    """Returns the largest absolute difference of two tensors of one shape, and the largest absolute finite
    value of the reference.

    Places where both are infinite or NaN do not differ. Where only one is, the difference is NaN.
    """
    differences, scale = [0.0], 0.0
    for left, right in zip(
        mine.detach().reshape(-1).split(_PIECE), reference.detach().reshape(-1).split(_PIECE), strict=True
    ):
        if right.numel():
            difference, piece_scale = _differ(left, right)
            differences.append(difference)
            scale = max(scale, piece_scale)
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
