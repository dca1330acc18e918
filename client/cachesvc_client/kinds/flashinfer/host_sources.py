"""Lists the headers of a module's C++ sources, which ninja's records lack.

FlashInfer compiles C++ sources with ``-MMD``, which leaves out the headers in include paths that are named
with ``-isystem``: those of FlashInfer itself, of CUTLASS and of TVM's FFI. nvcc's list of a CUDA source has
them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..builds.flags import Doubt

_SECONDS = 120.0
"""Seconds that the compiler may take to list the headers of one source, and ninja to print its commands."""


def unlisted_headers(folder: Path) -> set[Path]:
    """Return all files that the C++ compiler reads for the sources of a module, from the compiler itself.

    ``folder``: where ninja has just built the module. Starts the compiler once for each C++ source, which it
    does not compile. Raises `Doubt`, ``OSError`` or ``subprocess.SubprocessError`` where it lists none.
    """
    paths: set[Path] = set()
    for command, directory in _commands(folder):
        listed = _run([*command, "-M"], directory)
        paths.update(Path(os.path.abspath(directory / path)) for path in _parse(listed))
    return paths


def _commands(folder: Path) -> Iterator[tuple[list[str], Path]]:
    """Yield the commands that compile C++ sources, without what they write, and where each runs."""
    for entry in json.loads(_run(["ninja", "-t", "compdb", "compile"], folder)):
        words = iter(shlex.split(entry["command"]))
        command: list[str] = []
        for word in words:
            if word in ("-MF", "-o"):
                next(words, None)
            elif word not in ("-c", "-MMD"):
                command.append(word)
        yield command, Path(entry["directory"])


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    return done.stdout


def _parse(text: str) -> list[str]:
    """Return the files of a rule of make."""
    _, colon, files = text.replace("\\\n", " ").partition(": ")
    if not colon:
        raise Doubt("the C++ compiler lists no headers")
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in re.findall(r"(?:\\.|\S)+", files)]
