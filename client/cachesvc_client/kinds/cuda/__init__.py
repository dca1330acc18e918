"""The kind `cuda`: what libraries compile for themselves, in the CUDA driver's own cache folder."""

from .kind import KIND

__all__ = ["KIND"]
