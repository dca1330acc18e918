"""Holds what a build is asked for: `BuildRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...wire.codec import canonical
from ...wire.digest import Digest
from .flags import Doubt


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What a call asks ``cpp_extension``, or a tool that builds like it, for.

    Attributes:
        name: The name of the extension, as the caller gave it.
        sources: The absolute paths of its sources.
        includes: The absolute include paths of the user's, in their order.
        linked: The files of the user's that are linked.
        build_directory: The folder that PyTorch builds in.
        with_cuda: Whether the build uses nvcc and CUDA's libraries.
        is_python_module: Whether the library is imported, or only loaded.
        facts: What the key is made of, besides the name with its version.
    """

    name: str
    sources: tuple[Path, ...]
    includes: tuple[Path, ...]
    linked: tuple[Path, ...]
    build_directory: Path
    with_cuda: bool
    is_python_module: bool
    facts: Mapping[str, Any]

    def key(self, versioned: str) -> str:
        """Return 64 hex digits over what decides the library, apart from the host, the compiler and the files
        that are in no source of the call. ``versioned``: the name with PyTorch's version, which the code
        holds."""
        return Digest.of(canonical({**self.facts, "name": versioned})).hex


def content_of(source: Path) -> str:
    """Return the digest of a source. Raise `Doubt` for one that may read files beside headers."""
    data = source.read_bytes()
    if b"incbin" in data:
        raise Doubt(f"{source.name} may read files that the compiler does not list")
    return Digest.of(data).hex
