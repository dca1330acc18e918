"""Judges in the place of a tool's own look-up whether the tool gets something of an entry, and keeps why not.

For kinds that let a tool read a verified file for the length of one look-up, and leave all the rest to it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

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
