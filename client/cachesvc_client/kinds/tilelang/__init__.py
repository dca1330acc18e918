"""The kind `tilelang`: kernels that TileLang compiles, so that a service compiles none."""

from .kind import KIND

__all__ = ["KIND"]
