"""Reads the results that ``functools.lru_cache`` and ``functools.cache`` keep of a program's function.

A result may be of a state that is no more, and then it is no function of what a digest has. The results
count, unless the cache was empty when code was digested before, and what the function reads is what it was
then: a call since then answers what a call answers now.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

from .values import Undescribed

_empty: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Caches that were empty -> the digests of their functions at that time."""
_is_inside: list[bool] = []


def kept_results(cache: Any, digest_of: Callable[[Any], str]) -> list[Any]:
    """Return the arguments and results that a cache keeps and that its function may not answer now.

    ``digest_of``: what returns the digest of a function. Raises `Undescribed` with the reason where the
    results cannot be read.
    """
    if _is_inside:
        return []  # what reads the cache has them
    _is_inside.append(True)
    try:
        count = functools._lru_cache_wrapper.cache_info(cache).currsize
        if not count:
            _empty[cache] = digest_of(cache.__wrapped__)
            return []
        if _empty.get(cache) == digest_of(cache.__wrapped__):
            return []
    finally:
        _is_inside.pop()
    found = _pairs(cache)
    if len(found) != count:
        raise Undescribed("results of a cache that cannot be read")
    return [tuple("marked" if type(one) is object else one for one in _parts(pair)) for pair in found]


def _parts(pair: tuple[Any, Any]) -> tuple[Any, ...]:
    key, result = pair
    return (*(key if type(key) is tuple else (key,)), result)


def _pairs(cache: Any) -> list[tuple[Any, Any]]:
    """Return the keys and results of a cache. One without a limit has them in a dictionary; one with a limit
    refers to the key, the result and the class of each of its links."""
    held = gc.get_referents(cache)
    found = []
    for key, result, kind in zip(
        held[1::3], held[2::3], held[3::3], strict=False
    ):  # after the class of the cache
        if getattr(kind, "__name__", "") != "_lru_list_elem":
            break
        found.append((key, result))
    own = vars(cache)
    tables = [list(one.items()) for one in held if type(one) is dict and one is not own]
    return found or (tables[0] if tables else [])
