"""The kind `helion`: configurations that Helion's search found, so that a service searches nothing."""

from .kind import KIND

__all__ = ["KIND"]
