"""What was decided for a GPU that is not there, and what was refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.wire.errors import Unsupported

from .description import DeviceDescription

Replacement = tuple[str, str, Any]
"""Names a module and a path in it, such as ``Class.method``, and what is put there."""


class GpuNeeded(Unsupported):
    """Reports a step of a compile that needs the GPU itself."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Holds the device's description, and what this process decided or refused.

    ``refusals``: why steps were refused, in order; a compiler may wrap the error, or go on without the step.
    ``untimed``: choices that PyTorch would have made by timing.
    """

    device: DeviceDescription
    refusals: list[str] = field(default_factory=list)
    untimed: set[str] = field(default_factory=set)

    def refuse(self, why: str) -> GpuNeeded:
        """Return the error of a step that needs the GPU, and remember it."""
        self.refusals.append(f"without a GPU: {why}")
        return GpuNeeded(self.refusals[-1])


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that takes anything and returns ``answer``."""

    def function(*_args: Any, **_kwargs: Any) -> Any:
        return answer

    return function
