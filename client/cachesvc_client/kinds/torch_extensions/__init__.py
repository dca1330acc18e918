"""The kind `torch_extensions`: libraries that ``torch.utils.cpp_extension`` builds when they are loaded."""

from .kind import KIND

__all__ = ["KIND"]
