"""Owns `ProcessOutput`: what this process compiled and used, for those who publish it or report about it.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from ..graphs import key_components, operators
from ..hooks import counters
from ..kinds import KINDS, RULES
from ..kinds.kind import RestoredFacts
from .folders import ProcessFolders

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey
    from ..graphs.request import GraphRequests
    from ..node.installed import InstalledRevision
    from ..node.ledger import KnownFile, MadeFile, Selection
    from ..wire.digest import Digest
    from ..wire.factors import Facts, Fingerprint
    from ..wire.key_components import KeyFacts
    from ..wire.names import Lane, Name
    from ..wire.reports import KindWork

_log = logging.getLogger("cachesvc")


class ProcessOutput(ProcessFolders):
    """The records of the hooks, and the files and facts that follow from them."""

    def __init__(self) -> None:
        super().__init__()
        self.components = key_components.Recorder()
        self.registered_functions = operators.RegisteredFunctions()
        self.observer: counters.Observer | None = None
        """Counts what the compilers do; ``None`` before the hooks were armed."""
        self.models: list[Digest] = []
        """Hashes of the models that `cachesvc_client.compile` was called with."""
        self.compiled_before = _graphs_compiled_already()
        """How many graphs were compiled before this object was made, unseen by the hooks."""
        self.seconds = {"wait": 0.0, "compile": 0.0}
        """Seconds that compiles waited for restores, and seconds inside Inductor."""
        self.wrong_numbers = 0
        """How many different lines about wrong numbers the canary has."""
        self.off = ""
        """The setting that kept a compiler from its own cache at the first compile where one did."""
        self.compiled_in: Counter[str] = Counter()
        """How many graphs were compiled in folders that the program had chosen since attach, by
        `Folders.left`."""
        self.publications: Counter[tuple[Name, str]] = Counter()
        """How often this process has published, as a rank of a job, by name and by occasion with target."""
        self._published: dict[Name, set[tuple[str, str]]] = {}
        """Kind and path of the files that this process has published, by name."""
        self._said: set[str] = set()
        """Lines about what was left out of publications."""

    @functools.cached_property
    def asked(self) -> GraphRequests:
        """Return the requests for compiles that this process made; the first use makes the object."""
        from ..graphs.request import GraphRequests

        return GraphRequests(self.registered_functions)

    def capture(self, whole: bool) -> list[SourceFile]:
        """Return the files that `Session.capture` returns.

        Of the *whole* folder workers of the compilers made a part, and nobody records what. There graphs are
        left out that this process found and that no revision holds, and what was made of them.
        """
        found = self._used_graphs() if whole else None
        known = self._captured(whole, found)
        return [
            one.file
            for one in known
            if not one.origin.unknown or (found is not None and one.place not in found)
        ]

    def own_files(self, signer: PublicKey | None, lane: Lane | None = None) -> Selection:
        """Return the used files that a signer may sign for a lane; see `node.ledger`. ``None``: a signer who
        has signed nothing yet."""
        from ..node.ledger import Source, select

        return select(self._captured(), Source(signer, lane) if signer else None)

    def known_files(self, by_ranks: Set[MadeFile] = frozenset()) -> list[KnownFile]:
        """Return the used files whose origin is known. ``by_ranks``: what the other ranks of the job made."""
        return [known for known in self._captured(by_ranks=by_ranks) if not known.origin.unknown]

    def made_files(self) -> list[MadeFile]:
        """Return the files that this process made, to tell the other ranks of its job, which share its
        folder: what the first one made the others find."""
        traced = self._traced(whole=False, by_ranks=frozenset()).values()
        return [known.described for known in traced if known.origin == (frozenset(), "", True)]

    def _used_graphs(self) -> set[tuple[str, str]]:
        """Return kind and path of the compiled graphs that this process used."""
        return {
            (kind.name, path)
            for roots in self.folders.every_roots()
            for kind in KINDS
            if kind.graph_folders and kind.name in roots
            for path in self.kinds[kind.name].used_files(roots[kind.name])
            if path.partition("/")[0] in kind.graph_folders
        }

    def _captured(
        self,
        whole: bool = False,
        graphs: set[tuple[str, str]] | None = None,
        by_ranks: Set[MadeFile] = frozenset(),
    ) -> list[KnownFile]:
        """``graphs``: the files of which others may have been made, if not every file is one."""
        every_roots, files = self.folders.every_roots(), self._traced(whole, by_ranks)
        unknown = {place for place, known in files.items() if known.origin.unknown}
        in_order = [files[place] for place in sorted(files)]
        if graphs is not None:
            return self.ledger.derive(in_order, unknown & graphs)
        present = self.ledger.present(every_roots, RULES)
        strangers = unknown | {place for place, is_older in present.items() if is_older}
        return self.ledger.derive(in_order, strangers, present)

    def _traced(self, whole: bool, by_ranks: Set[MadeFile]) -> dict[tuple[str, str], KnownFile]:
        files: dict[tuple[str, str], KnownFile] = {}
        for number, roots in enumerate(self.folders.every_roots()):
            for known in self._capture_from(roots, whole, number > 0, by_ranks):
                files.setdefault(known.place, known)
        return files

    def _capture_from(
        self, roots: Mapping[str, Path], whole: bool, earlier: bool, by_ranks: Set[MadeFile]
    ) -> Iterator[KnownFile]:
        """``earlier``: the roots are of a folder that this process has left."""
        from ..node.capture import capture

        paths = {name: self._used_of(name, root, earlier) for name, root in roots.items()}
        if whole:
            paths = {name: used | RULES[name].files_in(roots[name]) for name, used in paths.items()}
        made = {
            (name, path): digest
            for name, root in roots.items()
            for path, digest in self.kinds[name].made_files(root).items()
        }
        return self.ledger.trace(capture(paths, RULES, roots), made, roots, by_ranks)

    def _used_of(self, name: str, root: Path, earlier: bool) -> set[str]:
        """Return the used files of a kind; none if they cannot be read, as where a cleaner removes them."""
        try:
            return self.kinds[name].used_files(root, left=earlier)
        except OSError as error:
            if self.is_news(f"{name} {error}"):
                _log.warning("%s: the files of %s are left out: %s", root, name, error)
            return set()

    def is_news(self, line: str) -> bool:
        """Return whether a line about what was left out has not been said yet."""
        news = line not in self._said
        self._said.add(line)
        return news

    def new_places(self, name: Name, files: Iterable[KnownFile]) -> set[tuple[str, str]]:
        """Return kind and path of the ``files`` that were made here and not published under a name."""
        return {known.place for known in files if known.origin.made} - self._published.get(name, set())

    def note_published(self, name: Name, files: Iterable[SourceFile]) -> None:
        """Note that ``files`` are published under a name."""
        self._published.setdefault(name, set()).update((file.kind, file.path) for file in files)

    def used_keys(self) -> set[str]:
        """Return the compilers' own keys whose files this process saved or hit."""
        return set().union(*(state.used_keys() for state in self.kinds.values()))

    def found_keys(self) -> set[str]:
        """Return those of `used_keys` whose files this process found and did not make."""
        return set().union(*(state.found_keys() for state in self.kinds.values()))

    def elsewhere(self) -> str:
        """Return in which folders that are not cachesvc's this process compiled; empty if in none."""
        from ..wire.errors import printable
        from ..wire.text import count_text

        if self.folders.aside:
            return (
                f"PyTorch went on in its own folder, because {printable(self.folders.aside)}: nothing "
                "restored lies there, and nothing that is compiled there is published"
            )
        if not self.compiled_in:
            return ""
        graphs = count_text(sum(self.compiled_in.values()), "graph")
        settings = ", ".join(printable(words) for words in list(self.compiled_in)[:3])
        return (
            f"{graphs} compiled in a folder that the program chose after attach ({settings}): nothing "
            "restored lies there, and nothing that is compiled there is published; name it before attach"
        )

    def lost(self, installed: Sequence[InstalledRevision]) -> tuple[str, ...]:
        """Return in words which files of revisions that were installed here are gone or damaged."""
        from .lost_files import lost_files

        absent = set().union(*(state.absent_keys() for state in self.kinds.values()))
        return tuple(lost_files(installed, self.folders.every_roots(), absent))

    def used_paths(self) -> set[str]:
        """Return the paths of files that this process used and that no key of a compiler names."""
        return set().union(*(state.used_paths() for state in self.kinds.values()))

    def mark_uses(self) -> Mapping[str, int]:
        """Return a mark for `keys_since`."""
        return {name: state.records() for name, state in self.kinds.items()}

    def keys_since(self, mark: Mapping[str, int]) -> set[str]:
        """Return the keys whose files were saved or hit since `mark_uses` returned ``mark``."""
        return set().union(*(state.keys_since(mark[name]) for name, state in self.kinds.items()))

    def hook_seconds(self) -> float:
        """Return the seconds that cachesvc's own hooks took."""
        return self.asked.seconds + sum(state.seconds() for state in self.kinds.values())

    def other_isa(self) -> str | None:
        """Return the CPU's instruction set that Inductor picks now, if this process restores for another."""
        from ..environment.cpu import other_isa

        fact = (self.fingerprint or {}).get("cpu_isa")
        return other_isa(None if fact is None else str(fact)) or None

    def switched_off(self) -> str:
        """Return the setting that keeps a compiler from its own cache in this process, or kept it at a
        compile, whose thread may have other settings; else an empty text."""
        return self.off or self._off_now()

    def _off_now(self) -> str:
        return next(filter(None, (state.switched_off() for state in self.kinds.values())), "")

    def work_by_kind(self, observed: counters.Observation) -> dict[str, KindWork]:
        """Return what each kind cost, for the kinds that something is counted for."""
        seconds = self.seconds["compile"]
        costs = ((kind.name, kind.cost(observed, seconds)) for kind in KINDS)
        return {name: cost for name, cost in costs if cost is not None}

    def explain(self, revisions: Sequence[Fingerprint]) -> Iterator[str]:
        """Yield why something was compiled here, as far as a kind knows it.

        ``revisions``: fingerprints of the restored revisions.
        """
        restored = RestoredFacts(self.fingerprint or {}, revisions)
        for state in self.kinds.values():
            yield from state.explain(restored)

    def compile_again(self) -> None:
        """Have each kind make again what it would find in its compiler's own folder."""
        for state in self.kinds.values():
            state.compile_again()

    def start_recording(self) -> None:
        """Have each kind record what only a process can record that restored everything else."""
        for state in self.kinds.values():
            state.start_recording()

    def not_recorded(self) -> Iterator[str]:
        """Yield why something was not recorded after `start_recording`, in words for the user."""
        for state in self.kinds.values():
            yield from state.not_recorded()

    def recompile(self, why: str) -> None:
        """Make every compiled function of this process compile again at its next call, because restored code
        was wrong. Raises whatever a torch raises that moved the names which this needs."""
        for state in self.kinds.values():
            state.recompile(why)

    def key_facts(self) -> KeyFacts | None:
        """Return the components of the keys that this process compiled for, as a bundle records them."""
        return self.components.facts(self.used_keys())

    def scopes(self) -> tuple[str, ...]:
        """Return what the code of this process is bound to.

        That is the GPU if CUDA was used, else the CPU of the host; and both where host kernels were built or
        loaded beside CUDA.
        """
        torch = sys.modules.get("torch")
        cuda = bool(torch is not None and torch.cuda.is_initialized())
        host = any(state.has_host_code() for state in self.kinds.values()) or not cuda
        return (("gpu",) if cuda else ()) + (("host",) if host else ())

    def beyond_level(self) -> str:
        """Return why what this process has may use other instructions than its level has; an empty text if
        it is known to use none."""
        from ..environment.march import for_level, host_flags

        flags = host_flags(for_level(self.fingerprint or {}))
        if why := self.ledger.beyond(flags):
            return why
        for number, roots in enumerate(self.folders.every_roots()):
            for name, root in roots.items():
                try:
                    why = self.kinds[name].beyond(root, flags, left=number > 0)
                except OSError as error:
                    why = f"its files cannot be read: {error}"
                if why:
                    return f"{name}: {why}"
        return ""

    def built_for(self, fingerprint: Fingerprint) -> Fingerprint:
        """Return the fingerprint of an entry that holds what this process has, whose environment is
        ``fingerprint``: that of its level, if all is known to be built for it, else this one."""
        from ..environment.march import for_level

        level = for_level(fingerprint)
        return fingerprint if level is fingerprint or self.beyond_level() else level

    def here(self) -> Facts:
        """Return the facts of this process by the factor table.

        They are those of the present environment, and of the graphs that were compiled here; of all graphs,
        if none was compiled.
        """
        from ..environment.detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def activity(self) -> object:
        """Return a value that changes while this process compiles or loads; ``None`` before it did either."""
        observed = self.observer.snapshot() if self.observer else counters.Observation()
        states = self.kinds.values()
        opened = any(state.has_opened() for state in states)
        if not self.seconds["compile"] and observed.clean and not opened:
            return None
        return observed, dict(self.seconds), [state.activity() for state in states], self.wrong_numbers


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))
