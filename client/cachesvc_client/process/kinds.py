"""Asks every kind of this process: which keys and paths were used, and what it is told to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..kinds.kind import UNLIMITED, RestoredFacts

if TYPE_CHECKING:
    from ..wire.factors import Fingerprint
    from .folders import ProcessFolders


class AllKinds:
    """The states of all kinds of one process as one."""

    def __init__(self, process: ProcessFolders) -> None:
        self._process = process
        self._states = process.kinds

    def used_keys(self) -> set[str]:
        """Return the compilers' own keys whose files this process saved or hit."""
        return set().union(*(state.keys.used() for state in self._states.values()))

    def found_keys(self) -> set[str]:
        """Return those of `used_keys` whose files this process found and did not make."""
        return set().union(*(state.keys.found() for state in self._states.values()))

    def used_paths(self) -> set[str]:
        """Return the paths of files that this process used and that no key of a compiler names."""
        return set().union(*(state.used_paths() for state in self._states.values()))

    def mark_uses(self) -> Mapping[str, int]:
        """Return a mark for `keys_since`."""
        return {name: state.keys.records() for name, state in self._states.items()}

    def keys_since(self, mark: Mapping[str, int]) -> set[str]:
        """Return the keys whose files were saved or hit since `mark_uses` returned ``mark``."""
        return set().union(*(state.keys.since(mark[name]) for name, state in self._states.items()))

    def explain(self, revisions: Sequence[Fingerprint]) -> Iterator[str]:
        """Yield why something was compiled here, as far as a kind knows it.

        ``revisions``: fingerprints of the restored revisions.
        """
        restored = RestoredFacts(self._process.fingerprint or {}, revisions)
        for state in self._states.values():
            yield from state.explain(restored)

    def compile_again(self) -> None:
        """Have each kind make again what it would find in its compiler's own folder."""
        for state in self._states.values():
            state.compile_again()

    def start_recording(self, *, serving: bool = False, seconds: float = UNLIMITED) -> None:
        """Have each kind record what only a process can record that restored everything else. ``serving``:
        this process is a service. ``seconds``: what a recording may need."""
        for state in self._states.values():
            state.recording.start(serving=serving, seconds=seconds)

    def stop_recording(self, kept: Collection[tuple[str, str]]) -> None:
        """Have each kind record nothing more, and forget its recorded files but those of these places."""
        for name, state in self._states.items():
            state.recording.stop({path for kind, path in kept if kind == name})

    def records(self) -> bool:
        """Return whether a kind records now."""
        return any(state.recording.is_on() for state in self._states.values())

    def recorded(self) -> int:
        """Return how many records were recorded here and written."""
        return sum(state.recording.count() for state in self._states.values())

    def not_recorded(self) -> Iterator[str]:
        """Yield why something was not recorded after `start_recording`, in words for the user."""
        for state in self._states.values():
            yield from state.recording.refused()
