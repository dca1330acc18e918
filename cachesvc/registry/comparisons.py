"""Compare the fingerprint of a request with those of many heads."""

from __future__ import annotations

import functools
import json

from cachesvc.index.entries.heads import BuiltFor, Candidate
from cachesvc_client.wire import codec
from cachesvc_client.wire.compare import Compatible, Difference, Mismatch, compare
from cachesvc_client.wire.requests.protocol import ResolveRequest

COMPARED_CHARACTERS = 24 << 20
"""Characters of the fingerprints that one resolve compares, at most, about half a second: heads beyond them,
which are the oldest, are omitted. 4096 heads of usual fingerprints are fewer."""
CACHED_COMPARISONS = 512
"""Comparisons of two fingerprints whose result is cached."""
CACHED_CHARACTERS = 32_000
"""Characters of the two fingerprints of a comparison that is cached, at most."""


class Comparisons:
    """Compares one request's fingerprint with those of heads, which are JSON.

    Many clients of few environments ask for what few environments built, so results are cached. Long texts
    are not cached beyond the request: no honest fingerprint is long.
    """

    def __init__(self, request: ResolveRequest) -> None:
        self._fingerprint = request.fingerprint
        self._text = codec.canonical(request.fingerprint).decode()
        self._long: dict[BuiltFor, tuple[Difference, ...]] = {}
        self._left = COMPARED_CHARACTERS

    def with_head(self, row: Candidate) -> tuple[Difference, ...] | None:
        """Returns the deciding differences; ``None`` once ``COMPARED_CHARACTERS`` were compared."""
        theirs = row.built_for
        if theirs in self._long:
            return self._long[theirs]
        size = len(self._text) + len(theirs.fingerprint) + len(theirs.scopes)
        self._left -= size
        if self._left < 0:
            return None
        if size <= CACHED_CHARACTERS:
            return _cached_differences(self._text, *theirs)
        self._long[theirs] = _deciding(compare(self._fingerprint, *map(json.loads, theirs)))
        return self._long[theirs]


@functools.lru_cache(CACHED_COMPARISONS)
def _cached_differences(mine: str, theirs: str, scopes: str) -> tuple[Difference, ...]:
    return _deciding(compare(json.loads(mine), json.loads(theirs), json.loads(scopes)))


def _deciding(verdict: Compatible | Mismatch) -> tuple[Difference, ...]:
    return verdict.differences if isinstance(verdict, Mismatch) else ()
