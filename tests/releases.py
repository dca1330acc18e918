"""The releases of torch and Triton that the tests run with, as numbers that can be compared."""

from __future__ import annotations

from cachesvc_client.environment import releases


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(map(int, releases.release(version).split("."))) if version else ()


TORCH = _numbers(releases.torch()[0])
"""Such as ``(2, 13)``."""
TRITON = _numbers(releases.triton())
"""Such as ``(3, 6)``; empty without Triton."""
