"""Has Python search for garbage among all objects once a minute, and not whenever there are enough new ones.

A full search takes a tenth of a second with a thousand connections open [measured, Python 3.11], in which the
process answers no one. Python begins one after so many new objects, and connections make them: strangers who
only connect would decide how often. What the start has made is never garbage, and is omitted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

SECONDS = 60.0
_YOUNG = (20_000, 20)
"""New objects that are there when Python searches these, and the searches after which it searches what was
left of them too. Its own 700 and 10 make a pause of milliseconds each second or two, where a thousand bodies
come a little at a time."""
_NEVER = 1 << 30


@contextmanager
def rarely_searched() -> Iterator[None]:
    """Have no full search begin by itself within the block; `search_regularly` makes them."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def search_regularly() -> None:
    """Search all objects every ``SECONDS``, until cancelled."""
    while True:
        await anyio.sleep(SECONDS)
        gc.collect()
