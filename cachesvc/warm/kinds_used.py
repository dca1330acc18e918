"""Answer what `warm` needs to know about kinds; the one module of this package that asks them, by no name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from cachesvc_client import kinds
from cachesvc_client.hooks.bypassed import explain_bypass, is_compiled_again
from cachesvc_client.hooks.kind_counts import Count

rule_of, is_recorded = kinds.rule_of, kinds.is_recorded
REFUSED = kinds.REFUSED
DISTRIBUTIONS = tuple(name for kind in kinds.KINDS for name in kind.distributions)
"""The distributions that decide what kinds compile."""
CACHE_VARIABLES = tuple(kind.folder.variable for kind in kinds.KINDS)
"""Names of the variables that name kinds' cache folders."""


class FileName(Protocol):
    """Names a file of an entry."""

    @property
    def kind(self) -> str:
        """The file's kind."""

    @property
    def path(self) -> str:
        """The path below the kind's folder."""


def cache_folders(store: Path, name: str, *below: str) -> dict[str, str]:
    """Return variables that give a process cache folders of its own: variable -> folder under ``store``.

    ``name``: what the folders are for. ``below``: the path below the folder of that name. The client names
    the folder of a kind that lies inside of another kind's.
    """
    return {
        kind.folder.variable: str(Path(store, f"{name}-{kind.name}", *below))
        for kind in kinds.KINDS
        if kind.folder.home != "inside"
    }


def demanding(files: Iterable[FileName]) -> dict[str, str]:
    """Return variables with which a tool ends where it cannot load these files of an entry."""
    rules = (rule_of(file.kind, file.path) for file in files)
    return {rule.demanded_by: "1" for rule in rules if rule is not None and rule.demanded_by}


def graph_folders(roots: Mapping[str, Path]) -> list[Path]:
    """Return the folders of compiled graphs, which a second compile makes again over the tuning results.

    ``roots``: kind -> its cache folder in this process.
    """
    return [roots[kind.name] / name for kind in kinds.KINDS for name in kind.graph_folders]


def counted(counts: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[Count, int]]:
    """Yield what kinds counted, with the words of each: ``Observation.counts`` of a process."""
    for kind in kinds.KINDS:
        own = counts.get(kind.name, {})
        yield from ((count, own[count.event]) for count in kind.counts if own.get(count.event))


def is_captured(kind: str, path: str) -> bool:
    """Return whether ``kind`` captures the file with this path, relative to the kind's folder."""
    return rule_of(kind, path) is not None


def decides_fit(kind: str) -> bool:
    """Return whether files of ``kind`` are results of the compile.

    False for what libraries compile for themselves: such files alone make no entry, and a replay may add
    some.
    """
    return kind not in kinds.BY_NAME or kinds.BY_NAME[kind].decides_fit


def holds_choices(kind: str, path: str) -> bool:
    """Return whether the file holds what the compiler chose by timing, which differs from run to run."""
    rule = rule_of(kind, path)
    return rule is not None and rule.write == "merge"


def can_record(torch: str) -> bool:
    """Return whether such a process can record anything on a version of torch, such as ``2.13.0+cpu``."""
    return any(kind.records_on(torch) for kind in kinds.KINDS if kind.records_on is not None)


def explain_uncached(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return, for each reason of PyTorch's not to cache a graph, the reason and what it means."""
    return tuple(explain_bypass(reason) for reason in reasons if is_compiled_again(reason))
