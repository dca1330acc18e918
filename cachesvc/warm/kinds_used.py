"""Answer what `warm` needs to know about kinds; no other module of this package names one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cachesvc_client import kinds

CACHE_VARIABLES = kinds.VARIABLES
"""Names of the variables that name kinds' cache folders."""

_FOLDER_SUFFIXES = {kinds.inductor.VARIABLE: "", kinds.cuda.VARIABLE: "-cuda"}
"""Variable of a kind -> ending of the folder that `cache_folders` names. The client names Triton's folder,
which lies inside of Inductor's."""


def cache_folders(store: Path, name: str, *below: str) -> dict[str, str]:
    """Return variables that give a process cache folders of its own: variable -> folder under ``store``.

    ``name``: what the folders are for. ``below``: the path below the folder of that name.
    """
    return {
        variable: str(Path(store, name + suffix, *below)) for variable, suffix in _FOLDER_SUFFIXES.items()
    }


def graph_folders(roots: Mapping[str, Path]) -> list[Path]:
    """Return the folders of compiled graphs, which a second compile makes again over the tuning results.

    ``roots``: kind -> its cache folder in this process.
    """
    return [roots[kinds.inductor.NAME] / name for name in kinds.inductor.GRAPH_FOLDERS]


def is_captured(kind: str, path: str) -> bool:
    """Return whether ``kind`` captures the file with this path, relative to the kind's folder."""
    return kinds.RULES[kind].rule(path) is not None


def decides_fit(kind: str) -> bool:
    """Return whether files of ``kind`` are results of the compile.

    False for what libraries compile for themselves: such files alone make no entry, and a replay may add
    some.
    """
    return kind != kinds.cuda.NAME


def explain_uncached(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return, for each reason of PyTorch's not to cache a graph, the reason and what it means."""
    return tuple(map(kinds.inductor.uncached, reasons))
