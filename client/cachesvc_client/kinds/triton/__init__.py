"""The kind `triton`: Triton's cache folder."""

from .kind import KIND

__all__ = ["KIND"]
