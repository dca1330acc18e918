"""The kind `frames`: starts without tracing."""

from .kind import KIND
from .rules import RULES

__all__ = ["KIND", "RULES"]
