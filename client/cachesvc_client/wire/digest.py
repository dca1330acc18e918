"""Defines ``sha256:<hex>``, the only content address on the wire."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from .text import ValidText


class Digest(ValidText):
    """Holds a sha256 digest. The digest of a file is over its uncompressed bytes, that of a frame and that of
    a pack over the stored bytes."""

    pattern = re.compile(r"sha256:[0-9a-f]{64}")
    what = "digest (sha256:<64 hex digits>)"
    __slots__ = ()

    @property
    def hex(self) -> str:
        """Returns the 64 hex digits, which are safe as a file name."""
        return self[7:]

    @classmethod
    def of(cls, data: bytes | memoryview) -> Digest:
        """Returns the digest of ``data``."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest())

    @classmethod
    def of_chunks(cls, chunks: Iterable[bytes]) -> Digest:
        """Returns the digest of the concatenation of ``chunks``, which are read once."""
        hasher = hashlib.sha256()
        for chunk in chunks:
            hasher.update(chunk)
        return cls("sha256:" + hasher.hexdigest())
