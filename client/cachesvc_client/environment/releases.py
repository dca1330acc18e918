"""Which releases of torch and Triton cachesvc was tested with, and which are installed.

`attach` asks before it puts any hook in, on the application's own thread: nothing here imports torch, asks a
driver or imports much, and an answer takes less than a millisecond.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

from ..variables import is_switched_on

TESTED_CPU = ("2.13",)
"""torch releases whose CPU path was tested."""
TESTED_GPU = (("2.11", "3.6"),)
"""(torch, triton) releases whose CUDA path was tested: docs/gpu.md says when, and on what."""


def release(version: str) -> str:
    """Answers ``2.13`` for ``2.13.0+cu130``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def untested() -> bool:
    """Answers whether CACHESVC_UNTESTED asks to go on with a release that was not tested."""
    return is_switched_on("CACHESVC_UNTESTED")


def refused() -> bool:
    """Answers whether `detect.supported` refuses the torch that is installed whatever the rest of this
    machine is like: there is none, or no path of its release was tested."""
    version = torch()[0]
    if version is None:
        return True
    tested = {*TESTED_CPU, *(pair[0] for pair in TESTED_GPU)}
    return release(version) not in tested and not untested()


# Packages. ``importlib.metadata`` takes 30 ms to import, and wheels on PyPI leave out the local part
# (2.11.0 where torch itself says 2.11.0+cu130); the package's own text has what its cache keys hold.

_ASSIGNED = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=\s*(['\"])([^'\"\n]{1,80})\2", re.MULTILINE)


def torch() -> tuple[str | None, str | None]:
    """Answers version, and CUDA or ROCm version, of the torch that ``import torch`` finds."""
    folder = package("torch")
    if folder is None:
        return None, None
    said = _assigned(folder / "version.py")
    accelerator = said.get("cuda") or (f"rocm {said['hip']}" if "hip" in said else None)
    return said.get("__version__") or _metadata("torch"), accelerator


def triton() -> str | None:
    """Answers the version of the Triton that ``import triton`` finds."""
    folder = package("triton")
    if folder is None:
        return None
    return _assigned(folder / "__init__.py").get("__version__") or _metadata("triton")


def package(name: str) -> Path | None:
    """The folder of a package, found as ``import`` would and without importing it."""
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None:  # editable installs have finders of their own
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).parent


def _assigned(path: Path) -> dict[str, str]:
    try:
        text = path.read_bytes()[: 1 << 16].decode("utf-8", "replace")
    except OSError:
        return {}
    return {match[1]: match[3] for match in _ASSIGNED.finditer(text)}


def _metadata(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
