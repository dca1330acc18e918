"""Judges in the place of a tool's own look-up whether the tool gets something of an entry, and keeps why not.

For kinds that let a tool read a verified file for the length of one look-up, and leave all the rest to it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Generic, TypeVar

from .kind import UsesAccepted

_MOST_REASONS = 8

_log = logging.getLogger("cachesvc")


class LookUps:
    """The look-ups of one tool in this process. ``tool``: its name; ``subject``: what an entry has for it."""

    def __init__(self, tool: str, subject: str) -> None:
        self._tool, self._subject = tool, subject
        self.reasons: list[str] = []
        """Why the tool worked here and took nothing from an entry, in words for the user."""
        self.seconds = 0.0
        """Seconds that look-ups and records took, without the tool's own work."""
        self._call = threading.local()
        """Of the present call on a thread. ``reason``: why the tool gets nothing of an entry."""

    def _timed(self, step: Callable[[], Any]) -> Any:
        """Run a step of cachesvc's own; ``None`` if it fails, which is a doubt."""
        from .builds.flags import Doubt

        begin = time.perf_counter()
        try:
            return step()
        except Doubt as doubt:
            self._call.reason = str(doubt)
            _log.debug("a kernel is left to %s: %s", self._tool, doubt)
        except Exception:  # noqa: BLE001 - a doubt too: the tool goes on as without us
            self._call.reason = f"an entry's {self._subject} cannot be judged here"
            _log.debug("a kernel is left to %s", self._tool, exc_info=True)
        finally:
            self.seconds += time.perf_counter() - begin
        return None

    def _note(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < _MOST_REASONS:
            self.reasons.append(reason)


_Part = TypeVar("_Part", bound=UsesAccepted)


class LatePart(Generic[_Part]):
    """Keeps what was accepted for the part of a kind that only a process of the kind's tool loads.

    ``load`` imports and makes the part, at the first `get`."""

    def __init__(self, load: Callable[[], _Part]) -> None:
        self.loaded: _Part | None = None
        """The part; ``None`` as long as nothing needed it."""
        self._load = load
        self._accepted: list[tuple[Path, Collection[str]]] = []

    def get(self) -> _Part:
        """Return the part, with what was accepted before it was loaded."""
        if self.loaded is None:
            self.loaded = self._load()
            for root, paths in self._accepted:
                self.loaded.accept(root, paths)
        return self.loaded

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """As `UsesAccepted.accept`, now or once the part is loaded."""
        self._accepted.append((root, paths))
        if self.loaded is not None:
            self.loaded.accept(root, paths)

    def refuse_all(self) -> None:
        """As `UsesAccepted.refuse_all`."""
        self._accepted.clear()
        if self.loaded is not None:
            self.loaded.refuse_all()

    def forget(self, paths: Collection[str]) -> None:
        """As `UsesAccepted.forget`."""
        self._accepted = [(root, set(own).difference(paths)) for root, own in self._accepted]
        if self.loaded is not None:
            self.loaded.forget(paths)
