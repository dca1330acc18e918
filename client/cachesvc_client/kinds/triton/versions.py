"""What Triton's releases do differently in its cache folder, in one place.

Read in the wheels of 3.4 to 3.9 (torch 2.8 to 2.15). What a hook finds decides, and not the number of the
release: a row says what is known.
"""

from __future__ import annotations

KEY_PACKAGES = ("compiler", "backends", "language")
"""Packages of Triton that ``triton_key`` walks through (3.4 to 3.9)."""

HELPER_BUILDERS = (
    ("triton.runtime.build", "", ""),
    ("triton.backends.nvidia.driver", "", "3.8"),
)
"""Modules that hold ``compile_module_from_src``, which builds the driver's helper: (module, first release,
first release without it). The driver's module holds it by name, so it is wrapped there too where the driver
was imported first. From 3.8 on the driver calls another function, so its helper is built in every fresh
folder."""

ARCHITECTURES = (("64bit", "ELF"), ("64bit", ""))
"""What ``platform.architecture()`` answers on Linux with and without the program ``file``. The name of a
helper's folder holds it in 3.4 to 3.7."""
