"""Read the registry's settings, once, from a TOML file and ``CACHESVC_SERVER_*`` variables.

An option of the command line has precedence over a variable, and a variable over the file. Embedded and
production registries differ here and nowhere else.
"""

from __future__ import annotations

from .fields import PREFIX, SECRET, Settings
from .read import ignored_line, read_settings

__all__ = ["PREFIX", "SECRET", "Settings", "ignored_line", "read_settings"]
