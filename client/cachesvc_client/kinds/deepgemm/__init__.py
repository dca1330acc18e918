"""The kind `deepgemm`: kernels that DeepGEMM compiles with nvcc, so that a service does not compile them."""

from .kind import KIND

__all__ = ["KIND"]
