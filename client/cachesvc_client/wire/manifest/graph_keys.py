"""Finds the compilers' own keys of compiled graphs in the paths of files.

PyTorch looks a graph up in a folder that is named by the graph's key, and in it each file is named by its
content. So a registry knows which revision has a graph without knowing any kind of cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_GRAPH_KEYS = 1024
"""Largest number of keys by which one revision is found; the first ones of its files count."""
_KEY = r"[a-z0-9]{20,81}"
_KEYED = re.compile(rf"(?:[^/]+/)*({_KEY})/[a-z0-9]{{20,80}}")
_WHOLE = re.compile(_KEY)


def graph_keys(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the keys of the graphs among files, each once, ``MAX_GRAPH_KEYS`` at most. Pure."""
    found = (match[1] for path in paths if (match := _KEYED.fullmatch(path)))
    return tuple(dict.fromkeys(found))[:MAX_GRAPH_KEYS]


def is_graph_key(text: str) -> bool:
    """Returns whether a text has the form of a key."""
    return _WHOLE.fullmatch(text) is not None
