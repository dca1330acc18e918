"""The kind `flashinfer`: modules that FlashInfer compiles with nvcc and ninja when they are first used."""

from .kind import KIND

__all__ = ["KIND"]
