"""Mutates values and bytes by the choices of a ``random.Random``.

The same mutations serve three engines: Hypothesis (its ``randoms()``, which shrink), a plain seeded
``Random``, and a coverage-guided fuzzer, whose bytes :class:`ByteRandom` turns into choices.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

TEXTS = (
    *("", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a\x00b", "a\nb", "\x1b[2J", "é", "\ud800"),
    *("*", "team", "other", "pr-1", "latest", "ed25519:", "sha256:" + "0" * 64, "1" * 5000, "x" * 600),
)
"""Texts on which paths, names and terminals go wrong."""
NUMBERS = (0, -1, 1, 2, 15, 16, 17, 255, 1 << 16, (4 << 20) - 1, 4 << 20, (4 << 20) + 1)
LARGE = (1 << 31, 1 << 34, (1 << 53) - 1, 1 << 53, 1 << 63, 1 << 64, 1 << 200, 1e308, 1.5, -1.5)
ODD = (None, True, False, [], {}, [[]], {"": None}, [None])


class ByteRandom(random.Random):
    """Draws each choice from bytes; draws zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        super().__init__(0)

    def seed(self, *_: object) -> None:
        """Does nothing: the bytes decide."""

    def getrandbits(self, bits: int) -> int:
        """Returns the number that the next bytes hold."""
        size = (bits + 7) // 8
        part = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(part, "big") & ((1 << bits) - 1)

    def random(self) -> float:
        """Returns a number from 0 to 1 by the next two bytes."""
        return self.getrandbits(16) / (1 << 16)


def odd_value(choose: random.Random) -> Any:
    """Returns a value that a field of JSON does not expect, or only just."""
    value = choose.choice(choose.choice((TEXTS, NUMBERS, LARGE, ODD)))
    return copy.deepcopy(value)  # later changes of the input must not alter the constants


def mutate(choose: random.Random, value: Any) -> Any:
    """Returns a copy of a JSON value, changed in one to four places."""
    value = json.loads(json.dumps(value))
    for _ in range(choose.randint(1, 4)):
        places = list(_places(value))
        if not places:
            break
        container, key = choose.choice(places)
        choose.choice(_CHANGES)(choose, container, key)
    return value


def _places(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _replace(choose: random.Random, container: Any, key: Any) -> None:
    container[key] = odd_value(choose)


def _nudge(choose: random.Random, container: Any, key: Any) -> None:
    value = container[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        container[key] = choose.choice(
            (value + 1, value - 1, value * 2, -value, value + choose.randint(0, 99))
        )
    elif isinstance(value, str):
        at = choose.randint(0, len(value))
        part = choose.choice(TEXTS) if choose.randint(0, 1) else chr(choose.randint(0, 127))
        container[key] = value[:at] + part + value[at + choose.randint(0, 3) :]
    else:
        container[key] = odd_value(choose)


def _remove(_choose: random.Random, container: Any, key: Any) -> None:
    del container[key]


def _repeat(choose: random.Random, container: Any, key: Any) -> None:
    """Repeats an element of a list, or stores a value under one more name."""
    if isinstance(container, list):
        times = choose.choice((1, 1, 2, 70))
        container[key:key] = [copy.deepcopy(container[key]) for _ in range(times)]
    else:
        container[str(choose.choice(TEXTS))] = container[key]


def _borrow(choose: random.Random, container: Any, key: Any) -> None:
    """Takes over the value of a neighbour: another file's path, another frame's digest."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    container[key] = container[choose.choice(list(keys))]


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _replace,
    _nudge,
    _nudge,
    _remove,
    _repeat,
    _borrow,
)


def mutate_bytes(choose: random.Random, data: bytes) -> bytes:
    """Returns the bytes with one to three of them altered, cut out or inserted."""
    changed = bytearray(data)
    for _ in range(choose.randint(1, 3)):
        at = choose.randint(0, len(changed))
        kind = choose.randint(0, 3)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << choose.randint(0, 7)
        elif kind == 1:
            del changed[at : at + choose.choice((1, 2, 8, 1 << 20))]
        elif kind == 2:
            changed[at:at] = choose.getrandbits(32).to_bytes(4, "big")[: choose.randint(1, 4)]
        else:
            changed[at : at + 1] = choose.choice((b"\0", b"\xff", b'"', b"{", b"[", b",", b"\\u0000", b"NaN"))
    return bytes(changed)


def json_bytes(choose: random.Random, value: Any) -> bytes:
    """Returns the value as JSON text, in one of several spellings, sometimes damaged."""
    spelling = choose.randint(0, 15)
    if spelling == 1:
        return json.dumps(value, indent=1).encode()
    text = json.dumps(value, separators=(",", ":")).encode()
    if spelling == 2:
        return mutate_bytes(choose, text)
    if spelling == 3:
        return text[:-1] + b',"format":"again"}'
    if spelling == 4:
        return text[:-1] + b',"deep":' + b"[" * 3000 + b"]" * 3000 + b"}"
    return text
