"""Declares what kinds count beside PyTorch's own work, under names of the form ``kind.event``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Count(NamedTuple):
    """One count of a kind. ``done`` and ``noun``: how a report says it, such as ``built`` and ``extension``.
    ``tunes``: whether it searches for a configuration, and compiles nothing."""

    event: str
    done: str
    noun: str
    tunes: bool = False


declared: dict[str, tuple[Count, ...]] = {}
"""The counts of each kind that has some, which `kinds` fills in."""


class KindCounts(NamedTuple):
    """What kinds counted: ``counts`` by kind and event without zeros, and their sums."""

    counts: dict[str, dict[str, int]]
    compiled: int
    tuned: int


def of_kinds(now: Mapping[str, int]) -> KindCounts:
    """Return what kinds counted, from the counts of all names."""
    counts: dict[str, dict[str, int]] = {}
    sums = {False: 0, True: 0}
    for kind, own in declared.items():
        for one in own:
            if count := now.get(f"{kind}.{one.event}", 0):
                counts.setdefault(kind, {})[one.event] = count
                sums[one.tunes] += count
    return KindCounts(counts, sums[False], sums[True])
