"""Describes what follows from the seed of hashes (``PYTHONHASHSEED``): the hash of a text, and the order of a
set of texts."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from .instructions import is_name, tests_alone
from .reading import codes_in

_SETS = (set, frozenset)


def by_hash(code: types.CodeType, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hash of a text, where code asks for one, and the order of a set of texts with which it does
    more than to test what is in it.

    ``values``: what the code reads outside of itself, by name.
    """
    if values.get("hash") is hash and code.co_name != "__hash__":
        yield f"hash {hash('text')}"
    for one in codes_in(code):
        if not any(isinstance(value, _SETS) for value in (*values.values(), *one.co_consts)):
            continue  # as most code: it needs no disassembly
        for step, after in pairwise(dis.get_instructions(one)):
            value = values.get(step.argval) if is_name(step) else step.argval
            if isinstance(value, _SETS) and after.opname != "CONTAINS_OP":
                yield from order_of(value)


def order_of(value: Any) -> Iterator[str]:
    """Yield the order of the texts in a set, if there are some."""
    texts = [text for text in value if isinstance(text, (str, bytes))]
    if len(texts) > 1:
        yield f"order {texts}"


_THROUGH = frozenset(
    ("next", "iter", "list", "tuple", "pop", "map", "zip", "enumerate", "join", "fromkeys", "filter", "repr",
     "str")
)  # fmt: skip
_UNPACKS = ("GET_ITER", "LIST_EXTEND", "UNPACK_", "CALL_FUNCTION_EX", "FORMAT_")


@functools.lru_cache(maxsize=4096)
def _goes_through(code: types.CodeType) -> bool:
    """Return whether code goes through anything, item by item."""
    return any(
        not _THROUGH.isdisjoint(one.co_names)
        or any(step.opname.startswith(_UNPACKS) for step in dis.get_instructions(one))
        for one in codes_in(code)
    )


def orders(sets: Mapping[str, list[Any]], codes: Iterable[types.CodeType]) -> Iterator[str]:
    """Yield the orders of sets that stand in objects, by the names of the attributes; an empty name where
    they stand in containers. Code that tests what is in one asks for no order."""
    codes = tuple(codes) if sets else ()
    for name, values in sets.items():
        if any(map(_goes_through, codes)) if not name else not all(tests_alone(one, name) for one in codes):
            for value in values:
                yield from order_of(value)
