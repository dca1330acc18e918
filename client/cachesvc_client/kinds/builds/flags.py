"""Judges the flags of an extension's build: what they make the compiler and the linker read."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

_UNKNOWN_READS = (
    *("@", "-B", "-M", "-o", "-specs", "--specs", "-fplugin", "-wrapper", "-imacros", "-iprefix"),
    *("-isystem", "-idirafter", "-isysroot", "--sysroot", "-iwithprefix", "-imultilib"),
    *("-fprofile-use", "-fauto-profile", "-fbranch-probabilities", "-ftest-coverage"),
    *("-ccbin", "--compiler-bindir", "-optf", "--options-file"),
)
"""Beginnings of flags with which a compiler reads files that its list of dependencies does not name, or
writes another list."""
_LINKER_FLAGS = re.compile(
    r"-Wl,(?:-rpath(?:-link)?[,=].+|--(?:no-)?(?:as-needed|whole-archive|undefined|gc-sections)"
    r"|--(?:start|end)-group|-B(?:static|dynamic|symbolic)|--exclude-libs[,=].+|-z,\w+|-O\d|-s|--strip-all)"
    r"|-pthread|-fopenmp|-shared|-static-lib(?:stdc\+\+|gcc)|-s|-O\w*|-g\w*|-m[\w.=-]+|-fPIC"
)
"""Flags of a linker that make it read no file."""
_OF_THE_HOST = frozenset(
    {
        *("c", "dl", "gcc_s", "gomp", "m", "pthread", "rt", "stdc++"),
        *("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"),
        *(
            "cublas",
            "cublasLt",
            "cuda",
            "cudart",
            "cudnn",
            "cufft",
            "curand",
            "cusolver",
            "cusparse",
            "nvrtc",
        ),
    }
)
"""Libraries that torch, CUDA and the C and C++ runtimes bring, all of which factors of the fingerprint
name."""


class Doubt(ValueError):
    """A build whose result cachesvc cannot tell from the call; the message says why, for the user."""


def compiler_words(flags: Iterable[str]) -> list[str]:
    """Return the words of a compiler's flags. Raises `Doubt` for flags that read what nobody lists."""
    words = _words(flags)
    for word in words:
        if word.startswith(_UNKNOWN_READS):
            raise Doubt(f"the flag {word} reads files that the compiler does not list")
    return words


def linked_files(flags: Iterable[str]) -> list[Path]:
    """Return the files of the user's that a linker reads with these flags.

    Raises `Doubt` for a flag that is not known, and for a library that is neither in a folder of the flags
    nor one of torch's, CUDA's or the runtime's.
    """
    folders: list[Path] = []
    names: list[str] = []
    files: list[Path] = []
    words = iter(_words(flags))
    for word in words:
        if word.startswith("-L"):
            folders.append(Path(word[2:] or next(words, "")))
        elif word.startswith("-l"):
            names.append(word[2:] or next(words, ""))
        elif not word.startswith("-"):
            files.append(Path(word))
        elif not _LINKER_FLAGS.fullmatch(word):
            raise Doubt(f"the linker's flag {word} is not known")
    files += [file for name in names if (file := _library(name, folders)) is not None]
    if relative := [path for path in (*folders, *files) if not path.is_absolute()]:
        raise Doubt(f"the linker looks for {relative[0]} from the folder of the build")
    return files


def _words(flags: Iterable[str]) -> list[str]:
    words = [word for flag in flags for word in shlex.split(flag)]
    if shell := [word for word in words if "$" in word or "`" in word]:
        raise Doubt(f"the shell replaces a part of the flag {shell[0]}")
    return words


def _library(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of ``-l<name>`` in the first folder that has one; ``None`` if the host brings it."""
    for folder in folders:
        for suffix in ("so", "a"):
            file = folder / f"lib{name}.{suffix}"
            if os.path.isfile(file):
                return file
    if name not in _OF_THE_HOST:
        raise Doubt(f"the library {name} lies in no folder that the flags name")
    return None
