"""What the stores of clouds have in common: the bytes of a put, and the tests of what a store promises."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from urllib.parse import unquote, urlsplit

from cachesvc_client.wire.errors import Unavailable

from .store import BlobStore, Unusable

SKEW_SECONDS = 60
"""Clocks may differ by so much: half of what a link lasts if nothing else is set."""
CLOUD_HINT = "is what answers the cloud's own store, and no proxy before it?"

_ELSEWHERE = re.compile(r"(^|/)\.\.?(/|$)|\\")


class Exists(Unavailable):
    """A write was refused because the object exists."""


class Stream:
    """Read the chunks of a put as a file of unknown size. ``broken``: what the chunks have raised."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._at = iter(chunks), 0
        self._ahead: deque[bytes | memoryview] = deque()
        self._have = 0
        self.broken: Exception | None = None

    def ahead(self, size: int) -> int:
        """Fetch chunks until there are ``size`` bytes to read, or no more come. Return how many there are."""
        try:
            while self._have < size and (chunk := next(self._chunks, None)) is not None:
                self._ahead.append(chunk)
                self._have += len(chunk)
        except Exception as error:
            self.broken = error
            raise
        return self._have

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or all that are left."""
        left = size = min(size, self.ahead(size))
        self._at, self._have = self._at + size, self._have - size
        gathered = []
        while left:
            chunk = self._ahead.popleft()
            if len(chunk) > left:
                chunk, rest = memoryview(chunk)[:left], memoryview(chunk)[left:]
                self._ahead.appendleft(rest)
            gathered.append(chunk)
            left -= len(chunk)
        return b"".join(gathered)


def host_and_path(url: str) -> tuple[str, str]:
    """Return the host and the path of a store's URL. Raise for what a client would drop, or read as another
    path."""
    asked = urlsplit(url)
    path = unquote(asked.path).strip("/")
    if asked.query or asked.fragment or "@" in asked.netloc or _ELSEWHERE.search(path):
        raise Unusable(
            f"{asked.scheme}:// has a user, a query or a path that leads elsewhere",
            "write what the store's page names; %3F is a question mark",
        )
    return asked.netloc, path


def compare_clocks(place: str, date: str) -> None:
    """Raise if the store's clock, by the date of its answer, differs so much that links end before their
    time, or long after it."""
    try:
        told = email.utils.parsedate_to_datetime(date)
    except (TypeError, ValueError):
        raise Unusable(f"{place}: the store tells no time: {one_line(date)}", CLOUD_HINT) from None
    skew = told.replace(tzinfo=told.tzinfo or datetime.UTC).timestamp() - time.time()
    if abs(skew) > SKEW_SECONDS:
        hint = "set the clock of this machine (NTP): signed links hold by the store's clock"
        raise Unusable(f"{place}: the store's clock differs by {skew:+.0f} s", hint)


def prove_condition(
    store: BlobStore, write: Callable[[str, Iterable[bytes]], int], place: str, condition: str
) -> None:
    """Raise if the store lets two writers have the same key. ``write`` raises `Exists` where it does not."""
    key = f"checks/{secrets.token_hex(16)}"
    try:
        write(key, [b"first"])
        with contextlib.suppress(Exists):
            write(key, [b"second"])
            raise Unusable(
                f"{place}: the store writes over what exists, though {condition} forbids it", CLOUD_HINT
            )
        if b"".join(store.open(key)) != b"first":
            raise Unusable(f"{place}: the store refuses to write over what exists, and does", CLOUD_HINT)
    finally:
        store.delete(key)


def one_line(error: object) -> str:
    """Return the start of an error's text as one line."""
    return " ".join(str(error).split())[:200]
