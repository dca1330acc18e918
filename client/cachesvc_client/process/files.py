"""Collects the files that this process made or used, each with its origin, for those who publish them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

from ..kinds import KINDS, RULES

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey
    from ..node.ledger import KnownFile, MadeFile, Selection
    from ..wire.names import Lane, Name
    from .folders import ProcessFolders

_log = logging.getLogger("cachesvc")


class ProcessFiles:
    """The files of the folders that this process made or used, and those of them that it has published."""

    def __init__(self, process: ProcessFolders) -> None:
        self._process = process
        self._published: dict[Name, set[tuple[str, str]]] = {}
        """Kind and path of the files that this process has published, by name."""
        self._said: set[str] = set()
        """Lines about what was left out of publications."""

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

    def own_files(self, signer: PublicKey, lane: Lane | None = None) -> Selection:
        """Return the used files that a signer may sign for a lane; see `node.ledger`."""
        from ..node.ledger import Source, select

        return select(self._captured(), Source(signer, lane))

    def files_of_node(self, node: PublicKey | None) -> list[KnownFile]:
        """Return the used files that a node may keep for its own next start; see `node.ledger`. ``None``: a
        node that has kept nothing yet."""
        from ..node.ledger import Source, select_of_node

        return select_of_node(self._captured(), Source(node, None) if node else None)

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
            for roots in self._process.folders.every_roots()
            for kind in KINDS
            if kind.graph_folders and kind.name in roots
            for path in self._process.kinds[kind.name].used_files(roots[kind.name])
            if path.partition("/")[0] in kind.graph_folders
        }

    def _captured(
        self,
        whole: bool = False,
        graphs: set[tuple[str, str]] | None = None,
        by_ranks: Set[MadeFile] = frozenset(),
    ) -> list[KnownFile]:
        """``graphs``: the files of which others may have been made, if not every file is one."""
        every_roots, files = self._process.folders.every_roots(), self._traced(whole, by_ranks)
        unknown = {place for place, known in files.items() if known.origin.unknown}
        in_order = [files[place] for place in sorted(files)]
        if graphs is not None:
            return self._process.ledger.derive(in_order, unknown & graphs)
        present = self._process.ledger.present(every_roots, RULES)
        strangers = unknown | {place for place, is_older in present.items() if is_older}
        return self._process.ledger.derive(in_order, strangers, present)

    def _traced(self, whole: bool, by_ranks: Set[MadeFile]) -> dict[tuple[str, str], KnownFile]:
        files: dict[tuple[str, str], KnownFile] = {}
        for number, roots in enumerate(self._process.folders.every_roots()):
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
            for path, digest in self._process.kinds[name].made_files(root).items()
        }
        return self._process.ledger.trace(capture(paths, RULES, roots), made, roots, by_ranks)

    def _used_of(self, name: str, root: Path, earlier: bool) -> set[str]:
        """Return the used files of a kind; none if they cannot be read, as where a cleaner removes them."""
        try:
            return self._process.kinds[name].used_files(root, left=earlier)
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
        return {known.place for known in files if known.origin.made} - self.published(name)

    def published(self, name: Name) -> frozenset[tuple[str, str]]:
        """Return kind and path of what this process has published under a name."""
        return frozenset(self._published.get(name, ()))

    def note_published(self, name: Name, files: Iterable[SourceFile]) -> None:
        """Note that ``files`` are published under a name."""
        self._published.setdefault(name, set()).update((file.kind, file.path) for file in files)
