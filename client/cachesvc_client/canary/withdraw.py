"""Watches the restored revisions of a process for the canary, and withdraws those with wrong numbers.

The module imports torch, so only the thread that compiles may import it, where a canary is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..hooks import logger
from ..kinds.kind import Comparison
from .beside import SideTrial
from .comparisons import Comparisons
from .recompile import recompile_all
from .trial import Trial

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision
    from ..process.process import Process

_log = logging.getLogger("cachesvc")


class WatchedRevision(NamedTuple):
    """Names a revision that the canary watches. ``drop`` takes it out of the result of its session.
    ``raise_if_strict`` raises the error of that session, under CACHESVC_STRICT."""

    entry: InstalledRevision
    drop: Callable[[], None]
    raise_if_strict: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Canary:
    """Watches the compiles of a process.

    ``watched`` returns the revisions that the canary watches now. ``wrong`` and ``skipped`` get the reasons,
    in words. ``uncalled`` has an object for each restored function that was not yet called through its
    canary. ``comparisons``: compares beside the service; ``None`` inside of the first call.
    """

    process: Process
    watched: Callable[[], Iterable[WatchedRevision]]
    wrong: Callable[[str], object]
    skipped: Callable[[str], None]
    uncalled: set[object]
    comparisons: Comparisons | None = None

    def around(self, graph: Any) -> Callable[[Any], Any]:
        """Returns a function that takes the compiled ``graph`` and returns it with its first output judged.

        To be called before the compile. Raises what `Trial` raises.
        """
        before = self.process.all_kinds.mark_uses()
        return self._watch(graph, lambda: self._suspects(before))

    def around_recorded(self, kind: str, path: str) -> Comparison | None:
        """Return what is done with the compiled graphs of a restored file; ``None`` where no revision with
        this file is watched.

        The graph is judged too if a revision is withdrawn before the first call.
        """
        suspects = self._with_file(kind, path)
        if not suspects:
            return None
        return Comparison(
            watch=lambda graph, compiled: self._watch(graph, lambda: suspects)(compiled),
            required=self.comparisons is None,
            skipped=self.skipped,
        )

    def _with_file(self, kind: str, path: str) -> Sequence[InstalledRevision]:
        """Return the watched revisions that have a file; for one of the node's own results those that the
        node made it beside."""
        watched = [one.entry for one in self.watched()]
        having = [
            entry
            for entry in watched
            if any((file.kind, file.path) == (kind, path) for file in entry.manifest.files)
        ]
        revisions = self.process.ledger.made_with(kind, path)
        return having or [entry for entry in watched if entry.revision in revisions]

    def _watch(self, graph: Any, suspects: Callable[[], Sequence[InstalledRevision]]) -> Callable[[Any], Any]:
        function = object()
        trial = self._trial(graph, suspects, called=lambda: self.uncalled.discard(function))

        def watch(compiled: Any) -> Any:
            watched = trial.watch(compiled)
            if trial.watches and suspects():
                self.uncalled.add(function)
            return watched

        return watch

    def _trial(
        self, graph: Any, suspects: Callable[[], Sequence[InstalledRevision]], *, called: Callable[[], None]
    ) -> Trial[InstalledRevision] | SideTrial[InstalledRevision]:
        if self.comparisons is None:
            return Trial(
                graph,
                suspects=suspects,
                wrong=self._distrust_in_call,
                skipped=self.skipped,
                called=called,
            )
        return SideTrial(
            graph,
            suspects=suspects,
            wrong=self._distrust,
            skipped=self.skipped,
            called=called,
            comparisons=self.comparisons,
        )

    def _suspects(self, before: Mapping[str, int]) -> Sequence[InstalledRevision]:
        """Returns the revisions of which something was used since `mark_uses` returned ``before``."""
        keys = self.process.all_kinds.keys_since(before)
        return [one.entry for one in self.watched() if keys & one.entry.keys]

    def _distrust_in_call(self, suspects: Sequence[InstalledRevision], why: str) -> None:
        """Withdraw the suspects. Raise only under CACHESVC_STRICT."""
        for one in self._distrust(suspects, why):
            one.raise_if_strict()

    def _distrust(self, suspects: Sequence[InstalledRevision], why: str) -> list[WatchedRevision]:
        """Withdraw the suspects: this process uses them no more, and this node installs them no more. Return
        what was withdrawn. Never raises."""
        withdrawn = [one for one in self.watched() if one.entry in suspects]
        for one in withdrawn:
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
            recompile_all("restored code was wrong")
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("canary: graphs run eagerly until torch.compiler.reset(): %s", error)
        return withdrawn
