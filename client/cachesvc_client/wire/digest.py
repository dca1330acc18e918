"""``sha256:<hex>``, the only content address on the wire."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from .text import ValidText


class Digest(ValidText):
    """A sha256 digest. A file's is over its uncompressed bytes, a frame's and a pack's over
    the stored bytes."""

    pattern = re.compile(r"sha256:[0-9a-f]{64}")
    what = "digest (sha256:<64 hex digits>)"
    __slots__ = ()

    @property
    def hex(self) -> str:
        """The 64 hex digits, safe as a file name."""
        return self[7:]

    @classmethod
    def of(cls, data: bytes | memoryview) -> Digest:
        """The digest of ``data``."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest())

    @classmethod
    def of_chunks(cls, chunks: Iterable[bytes]) -> Digest:
        """The digest of the concatenation of ``chunks``, read once."""
        running = hashlib.sha256()
        for chunk in chunks:
            running.update(chunk)
        return cls("sha256:" + running.hexdigest())
