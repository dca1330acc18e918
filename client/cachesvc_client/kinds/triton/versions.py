"""What Triton's releases do differently in its cache folder, in one place.

Read in the wheels of 3.4 to 3.9 (torch 2.8 to 2.15). What a hook finds decides, and not the number of the
release: a row says what is known.
"""

from __future__ import annotations

KEY_PACKAGES = ("compiler", "backends", "language")
"""Packages of Triton that ``triton_key`` walks through (3.4 to 3.9)."""

HELPER_BUILDERS = (
    ("triton.runtime.build", "compile_module_from_src", "", "3.8"),
    ("triton.backends.nvidia.driver", "compile_module_from_src", "", "3.8"),
    ("triton.runtime.build", "_compile_so", "3.8", ""),
)
"""Functions that build the driver's helper: (module, name, first release, first release without a use of it).
Until 3.7 the driver's module holds the function by name, so it is wrapped there too where the driver was
imported first. From 3.8 on all builders call ``_compile_so`` by its name in the module."""

ARCHITECTURES = (("64bit", "ELF"), ("64bit", ""))
"""What ``platform.architecture()`` answers on Linux with and without the program ``file``. The name of a
helper's folder holds it (3.4 to 3.9)."""

KEY_LISTS = ("library_dirs", "include_dirs", "libraries", "ccflags")
"""Parameters of ``_compile_so`` that the name of a helper's folder holds, in Triton's order (3.8, 3.9)."""
