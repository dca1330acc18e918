"""Knows which releases of torch and Triton cachesvc was tested with, and which are installed.

`attach` asks before it installs any hook, on the application's own thread: nothing here imports torch, asks a
driver or imports much, and an answer takes less than a millisecond.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

from .variables import is_switched_on

TESTED_CPU = ("2.13",)
"""Releases of torch whose CPU path was tested."""
TESTED_GPU = (("2.11", "3.6"),)
"""Pairs of releases (torch, triton) whose CUDA path was tested: docs/gpu.md says when, and on which
hardware."""


def release(version: str) -> str:
    """Returns ``2.13`` for ``2.13.0+cu130``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def allows_untested() -> bool:
    """Returns whether CACHESVC_UNTESTED asks to go on with a release that was not tested."""
    return is_switched_on("CACHESVC_UNTESTED")


def refuses_installed_torch() -> bool:
    """Returns whether `detect.unsupported_reason` refuses the installed torch whatever the rest of this
    machine is like: there is no torch, or no path of its release was tested."""
    version = torch()[0]
    if version is None:
        return True
    tested = {*TESTED_CPU, *(pair[0] for pair in TESTED_GPU)}
    return release(version) not in tested and not allows_untested()


# Packages. ``importlib.metadata`` takes 30 ms to import, and wheels on PyPI leave out the local part
# (2.11.0 where torch itself says 2.11.0+cu130); the package's own text has what its cache keys hold.

_ASSIGNMENT = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=\s*(['\"])([^'\"\n]{1,80})\2", re.MULTILINE)
"""Matches the assignment of a text to a module's variable."""


def torch() -> tuple[str | None, str | None]:
    """Returns the version, and the CUDA or ROCm version, of the torch that ``import torch`` finds."""
    folder = package("torch")
    if folder is None:
        return None, None
    assignments = _read_assignments(folder / "version.py")
    accelerator = assignments.get("cuda") or (f"rocm {assignments['hip']}" if "hip" in assignments else None)
    return assignments.get("__version__") or _metadata("torch"), accelerator


def triton() -> str | None:
    """Returns the version of the Triton that ``import triton`` finds."""
    folder = package("triton")
    if folder is None:
        return None
    return _read_assignments(folder / "__init__.py").get("__version__") or _metadata("triton")


def package(name: str) -> Path | None:
    """Returns the folder of a package, which is found as ``import`` finds it and without importing it."""
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None:  # editable installs have finders of their own
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).parent


def _read_assignments(path: Path) -> dict[str, str]:
    try:
        text = path.read_bytes()[: 1 << 16].decode("utf-8", "replace")
    except OSError:
        return {}
    return {match[1]: match[3] for match in _ASSIGNMENT.finditer(text)}


def _metadata(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
