"""The kind `inductor`: TorchInductor's and AOTAutograd's cache folder."""

from .kind import KIND

__all__ = ["KIND"]
