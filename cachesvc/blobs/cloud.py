"""What the stores of clouds have in common: parts of a put, and the tests of what a store promises."""

from __future__ import annotations

import email.utils
import secrets
import time
from collections.abc import Callable, Iterable, Iterator

from cachesvc_client.wire.errors import Unavailable

from .store import BlobStore, Unusable

SKEW_SECONDS = 60
"""Clocks may differ by so much: half of what a link lasts if nothing else is set."""


class Exists(Unavailable):
    """A write was refused because the object exists."""


def parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of ``size``; the last may be shorter. Needs memory for one part."""
    gathered: list[bytes] = []
    have = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while have + len(view) >= size:
            room = size - have
            gathered.append(bytes(view[:room]))
            view, part = view[room:], b"".join(gathered)
            gathered, have = [], 0
            yield part
            del part
        if view:
            gathered.append(chunk if len(view) == len(chunk) else bytes(view))
            have += len(view)
    if gathered:
        yield b"".join(gathered)


def compare_clocks(place: str, date: str) -> None:
    """Raise if the store's clock, by the date of its answer, differs so much that links end before their
    time, or long after it."""
    skew = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    if abs(skew) > SKEW_SECONDS:
        hint = "set the clock of this machine (NTP): signed links hold by the store's clock"
        raise Unusable(f"{place}: the store's clock differs by {skew:+.0f} s", hint)


def prove_condition(
    store: BlobStore, write: Callable[[str, Iterator[bytes]], int], place: str, condition: str
) -> None:
    """Raise if the store lets two writers have the same key. ``write`` raises `Exists` where it does not."""
    key = f"checks/{secrets.token_hex(16)}"
    try:
        write(key, iter([b"first"]))
        write(key, iter([b"second"]))
    except Exists:
        return
    finally:
        store.delete(key)
    message = f"{place}: the store writes over what exists, though {condition} forbids it"
    raise Unusable(message, "is what answers the cloud's own store, and no proxy before it?")


def one_line(error: object) -> str:
    """Return the start of an error's text as one line."""
    return " ".join(str(error).split())[:200]
