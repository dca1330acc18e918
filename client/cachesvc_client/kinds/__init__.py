"""The compiler caches that cachesvc knows: one package for each kind, and the list of them.

`OURS` names the kinds of this distribution: an attach has no time to read metadata. Those of others are entry
points of the group ``cachesvc.kinds`` (`outside`), and load where ``CACHESVC_KINDS`` names them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence

from ..hooks import kind_counts
from .kind import Kind
from .rules import FileRule, KindRules

OURS = (
    *("inductor", "triton", "cuda", "torch_extensions", "frames", "vllm", "tilelang"),
    *("flashinfer", "helion"),
)
"""The kinds of this distribution, by their packages' names. Other kinds may lie in the first one's folder."""

EXPERIMENTAL = ("tilelang", "vllm")
"""Those of `OURS` that any version may change or drop, with the files that they wrote."""


def own_kinds() -> tuple[Kind, ...]:
    """Return the kinds of this distribution."""
    return tuple(importlib.import_module(f".{name}", __name__).KIND for name in OURS)


def _load(asked: Sequence[str]) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return our kinds and those that are asked for, and a line for each name that gives none."""
    ours = own_kinds()
    if not asked:
        return ours, ()
    from .outside import load_outside

    others, lines = load_outside(dict.fromkeys(asked), ours)
    return (*ours, *others), lines


def asked_kinds(text: str) -> list[str]:
    """Return the names that a value of ``CACHESVC_KINDS``, names with commas, has."""
    return [name for part in text.split(",") if (name := part.strip())]


KINDS, REFUSED = _load(asked_kinds(os.environ.get("CACHESVC_KINDS", "")))
"""Every kind of this process; and a line for each name in ``CACHESVC_KINDS`` that gives none."""
kind_counts.declared.update((kind.name, kind.counts) for kind in KINDS if kind.counts)
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
RULES: Mapping[str, KindRules] = {kind.name: kind.rules for kind in KINDS}
VARIABLES = tuple(kind.folder.variable for kind in KINDS)
"""The environment variables with which a user names the folders."""


def is_recorded(kind: str) -> bool:
    """Return whether files of ``kind`` come from a process that records what Dynamo traces, and spare a
    service the traces."""
    return kind in BY_NAME and BY_NAME[kind].records_on is not None


def rule_of(kind: str, path: str) -> FileRule | None:
    """Return the rule for a file of a kind; ``None`` if this process does not know the kind or the path."""
    return RULES[kind].rule(path) if kind in RULES else None
