"""What the canary watches in this process, and what follows when it finds wrong numbers.

Imports torch, for the canary: for the thread that compiles alone, and only where one was asked for.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..hooks import logger
from .trial import Trial

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision
    from ..session.process import Process

_log = logging.getLogger("cachesvc")
_numbers = itertools.count()


class Watched(NamedTuple):
    """A revision that is under canary. ``drop`` takes it out of what its session has restored;
    ``raise_if_strict`` raises what that session ended with, under CACHESVC_STRICT."""

    entry: InstalledRevision
    drop: Callable[[], None]
    raise_if_strict: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Watch:
    """``watched``: what is under canary now. ``wrong`` and ``skipped`` are told the reasons, in words.
    ``uncalled`` holds a number for each restored function that has not been called through its canary yet."""

    process: Process
    watched: Callable[[], Iterable[Watched]]
    wrong: Callable[[str], object]
    skipped: Callable[[str], None]
    uncalled: set[int]

    def around(self, graph: Any) -> Callable[[Any], Any]:
        """To be asked before ``graph`` is compiled; takes what it was compiled to, and answers that with its
        first output judged. Raises what `Trial` does."""
        before, number = self.process.mark_uses(), next(_numbers)

        def suspects() -> Sequence[InstalledRevision]:
            return self._suspects(before)

        trial = Trial(graph, suspects, self._distrust, self.skipped, lambda: self.uncalled.discard(number))

        def watch(compiled: Any) -> Any:
            watched = trial.watch(compiled)
            if watched is not compiled and suspects():
                self.uncalled.add(number)
            return watched

        return watch

    def _suspects(self, before: Mapping[str, int]) -> Sequence[InstalledRevision]:
        """The revisions of which something was used since `mark_uses` returned ``before``."""
        keys = self.process.keys_since(before)
        return [one.entry for one in self.watched() if keys & one.entry.keys]

    def _distrust(self, suspects: Sequence[InstalledRevision], why: str) -> None:
        """Nothing of these revisions is used in this process again, nor installed on this node. Raises only
        under CACHESVC_STRICT."""
        found = [one for one in self.watched() if one.entry in suspects]
        for one in found:
            statement = one.entry.manifest.statement
            text = f"canary: {statement.full_name} {statement.target}: {why}: compiling here instead"
            logger.write(logging.WARNING, "%s (revision %s)", text, one.entry.revision)
            self.wrong(text)
            try:
                one.drop()
                self.process.forget(one.entry)
            except Exception as error:  # noqa: BLE001 - the graph runs eagerly at least
                _log.warning("canary: %s: %s", type(error).__name__, error)
        try:
            self.process.recompile("restored code was wrong")
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("canary: graphs run eagerly until torch.compiler.reset(): %s", error)
        for one in found:
            one.raise_if_strict()
