"""Knows which releases of torch and Triton the project ran on, and which are installed.

`attach` asks before it installs any hook, on the application's own thread: nothing here imports torch, asks a
driver or imports much, and an answer takes less than a millisecond.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from ..wire.errors import printable

OLDEST = (2, 8)
"""The oldest release of torch that cachesvc works with: before it, the hooks broke the compile."""

OLDEST_TRITON = (3, 5)
"""The oldest release of Triton that cachesvc works with on a GPU: a key of 3.4 has no value of a constant
(``tl.constexpr``) that a kernel reads from its module, so the code of another value would be a hit."""


class TestedRelease(NamedTuple):
    """Says what the project ran on one release of torch.

    ``torch``: the release. ``cpu``: the version that services and builders ran with on a CPU. ``triton``: the
    release of Triton that they ran with on a GPU; empty if they ran on none (docs/gpu.md says on which).
    """

    torch: str
    cpu: str
    triton: str = ""


TESTED = (
    TestedRelease("2.8", "2.8.0"),
    TestedRelease("2.9", "2.9.1"),
    TestedRelease("2.10", "2.10.0"),
    TestedRelease("2.11", "2.11.0", triton="3.6"),
    TestedRelease("2.12", "2.12.1"),
    TestedRelease("2.13", "2.13.0"),
    TestedRelease("2.14", "2.14.1"),
    TestedRelease("2.15", "2.15.0"),
)
"""The releases of torch that are supported. Any other one needs entries with a proof."""

_NUMBER = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
"""Matches the release at the begin of a version."""
_PUBLISHED = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:\.post[0-9]+)?(?:\+(?:cpu|cu[0-9]+))?")
"""Matches the versions that PyTorch publishes for CPUs and for CUDA: no nightly, no candidate, no fork,
nothing that was built from source."""


def release(version: str) -> str:
    """Returns ``2.13`` for ``2.13.0+cu130``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def refusal(version: str | None) -> str | None:
    """Returns the line that says why no hook is put into a torch of this version; ``None`` if hooks are.

    Only the text of the version decides. ``None`` as the version: there is no torch.
    """
    if version is None:
        return "torch is not installed"
    number = _NUMBER.match(version)
    if number is None:
        return f"not usable: {printable(version)[:80]!r} is no version of torch"
    if (int(number[1]), int(number[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"not usable: torch {printable(version)[:80]} is older than {oldest}, which cachesvc needs"
    return None


def triton_refusal(version: str) -> str | None:
    """Returns the line that says why nothing is restored on a GPU with this Triton; ``None`` if it may be.

    An empty ``version``: there is no Triton.
    """
    number = _NUMBER.match(version)
    if number is None or (int(number[1]), int(number[2])) >= OLDEST_TRITON:
        return None
    oldest = ".".join(map(str, OLDEST_TRITON))
    return f"not usable: triton {printable(version)[:80]} is older than {oldest}, which a GPU needs"


def is_tested(torch: str, triton: str, *, gpu: bool) -> bool:
    """Returns whether the project's tests ran on this release of torch: on the CPU, or with this Triton on a
    GPU."""
    if not _PUBLISHED.fullmatch(torch):
        return False
    row = next((row for row in TESTED if row.torch == release(torch)), None)
    return row is not None and (not gpu or bool(row.triton and row.triton == release(triton)))


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
