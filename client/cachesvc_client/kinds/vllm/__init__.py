"""The kind `vllm`: what vLLM's own compile leaves in its cache folder, so that an engine does not compile."""

from .kind import KIND

__all__ = ["KIND"]
