"""Keeps a registry's answers for the processes of the node: good for seconds, and for an outage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ...wire.digest import Digest
from ...wire.durations import MAX_OFFLINE_SECONDS
from ...wire.requests.protocol import ANSWER_SECONDS
from ..store_files import StoreFiles

_MAX_ANSWER_BYTES = 192 << 20
"""Bytes of a kept answer, at most: as many as are read of a registry's (`http.registry`)."""


class KeptAnswers:
    """Keeps answers."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def remember_answer(self, key: Digest, answer: bytes, age: float = 0.0) -> None:
        """Keeps a resolve's answer, which is ``age`` seconds old, for the other processes that start now."""
        with self._files.raise_storage_full():
            self._files.sweep("resolved", MAX_OFFLINE_SECONDS)
            self._files.put("resolved", key.hex, answer, age)

    def recent_answer(self, key: Digest, max_age: float = ANSWER_SECONDS) -> bytes | None:
        """Returns a kept answer that is at most ``max_age`` seconds old."""
        try:
            answer, status = self._files.read("resolved", key.hex, _MAX_ANSWER_BYTES + 1)
        except OSError:
            return None
        fresh = 0 <= time.time() - status.st_mtime <= max_age
        return answer if fresh and len(answer) <= _MAX_ANSWER_BYTES else None

    @contextlib.contextmanager
    def one_question(self, key: Digest, seconds: float) -> Iterator[bool]:
        """Has one process of the node ask a registry what several want to know now: the others wait until it
        has kept the answer, ``seconds`` at most. Yields whether this process waited for another one, and so
        should search for a kept answer first. Raises nothing: without room for a lock, each process asks.

        What comes after the block of a process that waited is not held up by others: if the first one got
        no answer, all of them ask at once.
        """
        until, waited = time.monotonic() + seconds, False

        def give_up() -> bool:
            nonlocal waited
            waited = True
            return time.monotonic() > until

        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self._files.lock(f"ask-{key.hex}", give_up=give_up))
            if waited:
                stack.close()
            yield waited

    def answer_age(self, key: Digest) -> float | None:
        """Returns how many seconds old a kept answer is; ``None`` if there is none, or one of the future."""
        try:
            age = time.time() - self._files.path("resolved", key.hex).stat().st_mtime
        except OSError:
            return None
        return age if age >= 0 else None
