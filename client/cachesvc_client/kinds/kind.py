"""Defines what a kind of compiler cache is: `Kind`, which never changes, and `KindState`, its part of one
process.

Everything outside of this package loops over ``kinds.KINDS`` and names no kind. A new kind is a folder beside
this module and a name in ``OURS``, or an entry point of another distribution (`outside`); and a subclass of
`testing.KindConformance` in its test file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..hooks.kind_counts import Count
from ..hooks.table import Hook
from .rules import KindRules

if TYPE_CHECKING:
    from ..graphs.operators import RegisteredFunctions
    from ..hooks.counters import Observation
    from ..hooks.imports import Call
    from ..wire.digest import Digest
    from ..wire.factors import Fingerprint
    from ..wire.requests.reports import KindWork

TRACED_ALL_THE_SAME = "traced all the same: "
"""Begins a reason of `KindState.explain` for which functions were traced that the entry could have spared."""
Home = Literal["private", "inside", "process"]
"""Where a kind's folder lies unless the user names one. *private*: in the folder of the process's trust scope
and revisions. *inside*: in the folder of the first kind, whoever named that. *process*: in a folder that no
other process has, which is known before the environment is."""


class Comparison(NamedTuple):
    """What a canary does with the compiled graphs of a restored file."""

    watch: Callable[[Callable[..., Any], Any], Any]
    """Take a graph as a function that eager runs, and the compiled graph; return the compiled graph with its
    first output compared with eager's."""
    required: bool
    """Whether a graph that cannot be compared is not used."""
    skipped: Callable[[str], None]
    """Note why a graph that is used is not compared."""


class RestoredFiles(NamedTuple):
    """What the hooks of a kind ask of the process about its restored files and their folders."""

    comparison: Callable[[str, str], Comparison | None] = lambda *_: None
    """Take a kind's name and the path of a restored file; return what the canary does with the compiled
    graphs of that file, ``None`` where it watches no revision that has the file."""
    point_compilers: Callable[[], object] = lambda: None
    """Set the compilers' variables to this process's folders again, which a program has changed: only where
    revisions were restored, or what this process compiles is to be published."""
    loading: Callable[[str, str], AbstractContextManager[None]] = lambda *_: nullcontext()
    """Take a kind's name and the path of a restored file; return a guard for the block that loads the file as
    code: if this process dies in the block, the node installs no more what has the file. Does not raise."""
    left: Callable[[str], str] = lambda _: ""
    """Take a kind's name; return the words ``VARIABLE=FOLDER`` with which the program has chosen another
    folder for it since attach, where nothing restored is to be used; an empty text if it has not."""
    restoring: Callable[[], bool] = lambda: False
    """Return whether files are still to come: a restore of this process goes on. Does not raise."""


class ProcessCallbacks(NamedTuple):
    """What the hooks of a kind ask of the process."""

    before_compile: Callable[[], None]
    """Wait for the restore, before a compiler of this kind looks into its folder outside of ``compile_fx``.
    Raises ``CacheSvcError`` under CACHESVC_STRICT."""
    launched: Callable[[Mapping[str, Any]], None]
    """Record a Triton kernel that the application launches itself. Does not raise."""
    traces: Callable[[], bool] = lambda: False
    """Return whether this process traces although frames were restored, because the user wants it."""
    opened: Callable[[], None] = lambda: None
    """Note that something of this kind was compiled or loaded outside of ``compile_fx``. Cheap, and does not
    raise."""
    restored: Callable[[], object] = lambda: None
    """Wait for the restore, at most the deadline, where nothing is compiled: no claim is asked for. Raises
    ``CacheSvcError`` under CACHESVC_STRICT."""
    missed: Callable[[str], bool] = lambda _: False
    """Take a compiler's key that it looked up and did not find; return whether files of it have been
    installed now, so that it is to look again. Does not raise."""
    joined: Callable[[int, int, Sequence[str]], None] = lambda *_: None
    """Note that this process is a rank of an engine, all of whose ranks are on this node: takes the rank, the
    number of ranks, and texts that are the same for these ranks and differ from other engines."""
    runs_eagerly: Callable[[], bool] = lambda: False
    """Wait for the restore; return whether calls run without a compile for now, because another process
    compiles what was not there. Does not raise."""
    files: RestoredFiles = RestoredFiles()
    """What is asked about the restored files."""
    registered: RegisteredFunctions | None = None
    """The functions that libraries registered for their operators; ``None``: nobody recorded them."""

    def noting(self, body: Callable[[Call], Any]) -> Callable[[Call], Any]:
        """Return the body of a hook with a note that something was opened, also where the body raises."""

        def noted(call: Call) -> Any:
            try:
                return body(call)
            finally:
                self.opened()

        return noted


class RestoredFacts(NamedTuple):
    """What a kind explains a report with: the fingerprint of this process, and those of the revisions."""

    here: Fingerprint
    revisions: Sequence[Fingerprint]


class UsesAccepted(Protocol):
    """Declares the part of a kind that uses accepted files."""

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow these files below ``root`` to be used."""

    def refuse_all(self) -> None:
        """Allow none of the files that were accepted so far."""

    def forget(self, paths: Collection[str]) -> None:
        """Treat the files of these paths as never used, and allow them no more."""


class Activity(NamedTuple):
    """What this process has done with the files of a kind."""

    mark: object = None
    """A value that changes whenever this process compiles or loads something of the kind."""
    opened: bool = False
    """Whether a compiler has opened a file of the folder outside of ``compile_fx``."""
    seconds: float = 0.0
    """Seconds that the kind's hooks took themselves."""


class KeyUses:
    """The compilers' own keys that one process used. By default there are none."""

    def used(self) -> set[str]:
        """Return the keys whose files were saved or hit."""
        return set()

    def found(self) -> set[str]:
        """Return those of `used` whose files were found, and not made by this process."""
        return self.used()

    def absent(self) -> set[str]:
        """Return the keys that were looked up and for which no file could be used."""
        return set()

    def records(self) -> int:
        """Return how many uses were recorded in order, as a mark for `since`."""
        return 0

    def since(self, records: int) -> set[str]:
        """Return the keys of the uses that were recorded in order, without the first ``records``."""
        return set()


UNLIMITED = float("inf")
"""Seconds of what has no budget. Attaching loads no module for it."""


class Recording:
    """What of a kind only a process can record that restored everything else. By default it is nothing."""

    def start(self, *, serving: bool = False, seconds: float = UNLIMITED) -> None:
        """Record from now on. Called before the application's first compile: by `warm`, in a process whose
        files become an entry; or *serving*, in a service, whose calls must not become other ones.

        ``seconds``: what the recording may need in all. One that needs more ends, and nothing of it stays.
        """

    def stop(self, kept: Collection[str] | None = None) -> None:
        """Record nothing from now on; of the recorded files keep these paths alone, or all."""

    def is_on(self) -> bool:
        """Return whether something is recorded now."""
        return False

    def count(self) -> int:
        """Return how many records the recorded files of this process have."""
        return 0

    def refused(self) -> Iterable[str]:
        """Yield why something was not recorded after `start`, in words for the user."""
        return ()


class KindUses:
    """What one process used and made of a kind's folder, as the kind's hooks recorded it.

    Every method answers that there is nothing by default, so a kind overrides what it has. Paths are relative
    to the kind's folder unless a parameter is called ``root``, which is the absolute folder.
    """

    keys = KeyUses()
    recording = Recording()

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the paths of all files in ``root`` that this process made or used.

        ``left``: the process has left ``root``, so other processes may use it, and nothing is added there.
        """
        return set()

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the paths of the files among `used_files` that this process made itself, each with the
        digest of what it made; ``None`` where the kind does not know that.

        What is not here was found, by whoever it was made: it is published only if its revision says who
        signed it. So a kind names only what it saw its compiler make.
        """
        return {}

    def used_paths(self) -> set[str]:
        """Return the paths of files that were used and that no key of a compiler names."""
        return set()

    def handed(self) -> set[str] | None:
        """Return the paths of the accepted files that the kind itself handed to its tool, and the tool took;
        ``None`` for a kind whose tool reads the folder."""
        return None

    def has_host_code(self) -> bool:
        """Return whether code for the host's CPU was built or loaded."""
        return False

    def beyond(self, root: Path, flags: frozenset[str], *, left: bool = False) -> str:
        """Return why code of this process's files in ``root`` may use instructions of the host's CPU beyond
        ``flags`` of ``/proc/cpuinfo``; an empty text if it is known to use none. ``left``: as `used_files`
        has it."""
        return "nobody knows which instructions it uses" if self.used_files(root, left=left) else ""

    def activity(self) -> Activity:
        """Return what this process has done with the files of the kind so far."""
        return Activity()


class KindState(KindUses):
    """The state of one kind in one process: what it is told, and the hooks that record what was used.

    Every method does nothing by default, so a kind overrides what it has.
    """

    part: UsesAccepted | None = None
    """What uses the accepted files, for a kind with one such part."""

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the kind's hooks in place; they wait for the application's imports. Imports no compiler."""

    def compile_again(self) -> None:
        """Make again what this process would find in the compiler's own folder, and what is captured only
        where it is made. Called by `warm`, before the application's first compile, in the process that
        compiles over tuning results."""

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Take the detected environment. Called once, before `use_folder`."""

    def use_folder(self, root: Path) -> None:
        """Begin to use ``root``; called again with another folder, and then that one counts. Never raises."""

    def leave_folder(self) -> None:
        """Forget the folder that was used so far, in which nothing was compiled."""
        if self.part is not None:
            self.part.refuse_all()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the compilers to use these files, which a verified revision has installed in ``root``."""
        if self.part is not None:
            self.part.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Treat files of these paths and records of these keys as never used, since their code is wrong."""
        if self.part is not None:
            self.part.forget(paths)

    def switched_off(self) -> str:
        """Return the setting that keeps the compiler from its own cache in this process, or an empty text."""
        return ""

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why something was compiled here although revisions were restored, in words for the user."""
        return ()

    def not_eager(self) -> str:
        """Return why this process cannot run a call without a compile, where this kind would have to;
        empty: it can, or another kind decides."""
        return ""


@dataclass(frozen=True, slots=True)
class KindFolder:
    """Where the files of a kind lie.

    Attributes:
        variable: The environment variable with which a user names the folder.
        home: Where it lies unless the user names one.
        place: The folder in that home, relative to it.
        sets_variable: Whether the compiler is pointed to the folder by the variable.
        named: Returns the folder that the user named; ``None`` if the value of the variable is the
            compiler's own choice. Takes the variable's value, and the folders that the user named for the
            kinds before this one.
    """

    variable: str
    home: Home
    place: str = ""
    sets_variable: bool = True
    named: Callable[[Path, Mapping[str, Path]], Path | None] = lambda named, _: named


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of compiler cache.

    Attributes:
        rules: The files that it may hold, and its name.
        start: Makes its state for this process.
        folder: Where its files lie.
        decides_fit: Whether an entry without files of this kind is worth publishing, and a start that
            compiled something of this kind is less than a hit.
        records_on: Returns whether such a process can record on a version of torch, such as ``2.13.0+cpu``.
            Only for a kind whose files come from a process that restored everything else and then recorded.
        graph_folders: The folders of compiled graphs, which a second compile with tuned configurations
            makes again.
        hooks: The names that it wraps.
        counts: What it counts, which a hook adds to ``counters.counts``, or `counters.counter_of` counts.
        work: Returns what the kind cost a start, from what was counted and the seconds inside of Inductor;
            ``None`` where ``counts`` say it.
        distributions: The distributions that decide what it compiles, which a provenance names.
    """

    rules: KindRules
    start: Callable[[], KindState]
    folder: KindFolder
    decides_fit: bool = True
    records_on: Callable[[str], bool] | None = None
    graph_folders: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    counts: tuple[Count, ...] = ()
    work: Callable[[Observation, float], KindWork] | None = None
    distributions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the kind's name in manifests and reports."""
        return self.rules.name

    def cost(self, observed: Observation, compile_seconds: float) -> KindWork | None:
        """Return what the kind cost a start; ``None`` for a kind that nothing is counted for."""
        if self.work is not None:
            return self.work(observed, compile_seconds)
        if not self.counts:
            return None
        from ..wire.requests.reports import KindWork

        counted = observed.counts.get(self.name, {})
        tuned = sum(counted.get(count.event, 0) for count in self.counts if count.tunes)
        seconds = sum(took for name, took in observed.seconds.items() if name.startswith(f"{self.name}."))
        return KindWork(sum(counted.values()) - tuned, tuned, round(seconds, 3))
