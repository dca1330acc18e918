"""Owns `Ledger`: where each file in the cache folders of this process comes from.

A file was *made* by this process, or *installed* from a revision of a signer and a lane. Of every other file
the origin is *unknown*: what lay in a folder of the user's, what another process put there, what PyTorch
unpacked from artifacts of the application. A signature may cover what the signer's own process made, and what
the same signer has signed for the same lane: nothing else is published, and what is unknown is never signed.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..environment.march import host_flags
from ..kinds.rules import KindRules, is_newer
from ..wire.digest import Digest
from ..wire.errors import Untrusted
from ..wire.manifest import ancestors
from ..wire.manifest.ancestors import Ancestor, in_order, line_of
from ..wire.text import count_text
from .path_owners import has_mount, refuse_foreign_path

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey
    from ..wire.names import Lane

_KEY_BYTES = 20
"""Length from which on the name of a folder is a compiler's key: 20 characters that no one else writes."""
_WORD = re.compile(rb"[A-Za-z0-9]{%d,}" % _KEY_BYTES)
_NO_RECORD = "of unknown origin"
_CHANGED = "whose content changed after the install"
_OPEN = "of a process whose folder others can write:"
_DERIVED = "made of files of unknown origin"

Place = tuple[str, str]
"""Kind and path of a file."""
MadeFile = tuple[str, str, Digest]
"""Kind, path and digest of a file that a process made of nothing that was installed."""


class Source(NamedTuple):
    """Who signed a revision, and for which lane; ``None`` is the trunk."""

    signer: PublicKey
    lane: Lane | None

    def __str__(self) -> str:
        return f"of {f'lane {self.lane}' if self.lane else 'the trunk'} by key {self.signer.short}"


class Origin(NamedTuple):
    """Says where a file comes from. ``unknown``: why no one knows; empty if it is known. ``sources``: of the
    revisions from which a file was made, each of them; of a file that was not *made* here, the sources of the
    revisions that have it as it is, any of which serves."""

    sources: frozenset[Source] = frozenset()
    unknown: str = ""
    made: bool = False


class KnownFile(NamedTuple):
    """A captured file and its origin."""

    file: SourceFile
    origin: Origin

    @property
    def place(self) -> Place:
        """Return kind and path."""
        return self.file.kind, self.file.path

    @property
    def described(self) -> MadeFile:
        """Return kind, path and digest."""
        return *self.place, Digest.of(self.file.content())


class SignedRevision(ancestors.SignedRevision, Protocol):
    """Declares what the ledger notes of a revision that is installed."""

    @property
    def signer(self) -> PublicKey:
        """Return who signed it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What one signer may sign for one lane. ``left_out``: how many files are omitted, by why."""

    files: list[KnownFile]
    left_out: Mapping[str, int]
    example: str = ""

    @property
    def text(self) -> str:
        """Return in words what is omitted; empty if nothing is."""
        parts = [f"{count_text(count, 'file')} {why}" for why, count in self.left_out.items()]
        return f"{', '.join(parts)} (such as {self.example})" if parts else ""


class Ledger:
    """The origins of files, for one process. Nothing is ever taken out: what came from a revision that was
    withdrawn stays known as that revision's."""

    def __init__(self, began: int) -> None:
        """``began``: when this process began, in nanoseconds of ``time.time_ns``: it made nothing older."""
        self._revisions: dict[Digest, tuple[Digest, dict[Place, Digest], Source]] = {}
        """Entry, files and source of each revision that was ever to be installed here."""
        self._ancestors: dict[Digest, tuple[Ancestor, ...]] = {}
        """Of each of them, itself and its ancestors."""
        self._host_flags: dict[Digest, frozenset[str]] = {}
        """Of each of them with code for the host's CPU, the flags that the code may use."""
        self._began = began

    def note(self, revision: SignedRevision) -> None:
        """Note that the files of a revision are installed. To be called before they are."""
        manifest = revision.manifest
        files = {(record.kind, record.path): record.digest for record in manifest.files}
        source = Source(revision.signer, manifest.statement.lane)
        self._revisions[revision.revision] = manifest.entry, files, source
        self._ancestors[revision.revision] = line_of(revision)
        if "host" in manifest.scopes:
            self._host_flags[revision.revision] = host_flags(manifest.fingerprint)

    def beyond(self, flags: frozenset[str]) -> str:
        """Return why code that was ever installed here may use instructions of the host's CPU beyond
        ``flags``; an empty text if all that is known to use none."""
        noted = list(self._host_flags.items())
        foreign = [revision for revision, theirs in noted if not theirs or theirs - flags]
        return f"revision {str(foreign[0])[:19]} was built for other CPUs" if foreign else ""

    def ancestors(self) -> tuple[Ancestor, ...]:
        """Return the ancestors of what this process compiles: see `wire.manifest.ancestors`."""
        lines = list(self._ancestors.values())
        return in_order([line[0] for line in lines] + [one for line in lines for one in line[1:]])

    def installed_of_others(self, signer: PublicKey) -> tuple[Ancestor, ...]:
        """Return the revisions that were ever to be installed here, less those of ``signer``."""
        return in_order(line[0] for line in self._ancestors.values() if line[0].signer != signer)

    def made_with(self, kind: str, path: str) -> set[Digest]:
        """Return the revisions that have a file, and their ancestors."""
        lines = [self._ancestors[revision] for _, revision in self.revisions_of(kind, path)]
        return {one.revision for line in lines for one in line}

    def revisions_of(self, kind: str, path: str) -> list[tuple[Digest, Digest]]:
        """Return entry and revision of all that installed a file."""
        noted = list(self._revisions.items())
        return [(entry, revision) for revision, (entry, files, _) in noted if (kind, path) in files]

    def installed(self) -> set[Place]:
        """Return the places of all files that were ever installed."""
        return {place for _, files, _ in list(self._revisions.values()) for place in files}

    def trace(
        self,
        files: Iterable[SourceFile],
        made: Mapping[Place, Digest | None],
        roots: Mapping[str, Path],
        by_ranks: Set[MadeFile] = frozenset(),
    ) -> Iterator[KnownFile]:
        """Yield the files that were captured in the folders of the kinds with their origins.

        ``made``: the files that the kinds say this process made, each with its digest where a kind knows it;
        of the others, those that are older than this process lay there before. ``by_ranks``: what the ranks
        of this process's job made, which share its folder.
        """
        folders = {kind: _Folder(root) for kind, root in roots.items()}
        made = {
            (kind, path): digest
            for (kind, path), digest in made.items()
            if digest is not None or is_newer(roots[kind] / path, self._began)
        }
        # What a compiler found in one folder is in what it made in another.
        wholly = next((f"{_OPEN} {folder.root}" for folder in folders.values() if folder.is_open), "")
        for file in files:
            unknown = wholly or folders[file.kind].open_part(file.path)
            origin = Origin(unknown=unknown) if unknown else self._origin(file, made, by_ranks)
            yield KnownFile(file, origin)

    def _origin(
        self, file: SourceFile, made: Mapping[Place, Digest | None], by_ranks: Set[MadeFile]
    ) -> Origin:
        place, digest = (file.kind, file.path), Digest.of(file.content())
        if made.get(place) == digest or (*place, digest) in by_ranks:
            return Origin(made=True)
        revisions = list(self._revisions.values())
        signed = [(files[place], source) for _, files, source in revisions if place in files]
        if place in made and made[place] is None:
            return Origin(frozenset(source for _, source in signed), made=True)
        if same := frozenset(source for one, source in signed if one == digest):
            return Origin(same)
        return Origin(unknown=_CHANGED if signed else _NO_RECORD)

    def derive(
        self, files: Sequence[KnownFile], strangers: Set[Place], present: Iterable[Place] = ()
    ) -> list[KnownFile]:
        """Return the files with the origins of what they were made of.

        A compiled graph has the kernels that its compiler found, and a traced one the graphs. It names them
        by their keys, which are the names of their folders. ``strangers``: files of unknown origin.
        ``present``: all files in the folders. PyTorch writes kernels there out of a graph that it loads.
        """
        keys: dict[bytes, set[Source | None]] = {}
        for _, places, source in list(self._revisions.values()):
            for key in _keys_of(places):
                keys.setdefault(key, set()).add(source)
        for key in _keys_of(strangers - self.installed()):
            keys.setdefault(key, set()).add(None)
        made = {known.place for known in files if known.origin.made}
        strays = dict.fromkeys(_keys_of({*present} - made - self.installed()))
        for known in files if strays else ():
            origin = known.origin
            for key in () if origin.made else _named_in(known.file.content(), strays):
                keys.setdefault(key, set()).update(origin.sources or {None})
        return [_derived(known, keys) for known in files]

    def present(
        self, every_roots: Iterable[Mapping[str, Path]], rules: Mapping[str, KindRules]
    ) -> dict[Place, bool]:
        """Return the files in the folders, and whether each lay there before this process began. A
        worker of a compiler may have used such a file, and no record says so."""
        return {
            (kind, path): not is_newer(root / path, self._began)
            for roots in every_roots
            for kind, root in roots.items()
            for path in rules[kind].files_in(root)
        }


def select(files: Iterable[KnownFile], source: Source | None) -> Selection:
    """Return the files that a signer may sign for a lane, and what is omitted. ``source``: that of the
    signer's own revisions for the lane; ``None`` if there are none."""
    kept: list[KnownFile] = []
    left_out: Counter[str] = Counter()
    example = ""
    for known in files:
        origin = known.origin
        foreign = sorted(str(one) for one in origin.sources if one != source)
        if not origin.made and source in origin.sources:
            foreign = []
        if why := origin.unknown or ", ".join(foreign):
            left_out[why] += 1
            example = example or "/".join(known.place)
        else:
            kept.append(known)
    return Selection(kept, left_out, example)


def select_of_node(files: Iterable[KnownFile], node: Source | None) -> list[KnownFile]:
    """Return the files that a node may keep for its own next start: what this process made, of whatever
    revisions, and what the node has kept before. They serve beside the same revisions alone, so who signed
    these gets no more than before."""
    known = [one for one in files if not one.origin.unknown]
    return [one for one in known if one.origin.made or node in one.origin.sources]


def _derived(known: KnownFile, keys: Mapping[bytes, set[Source | None]]) -> KnownFile:
    """Return a file with the sources of the keys that it names beside its own."""
    origin = known.origin
    if not keys or not origin.made or origin.unknown:
        return known
    others = _named_in(known.file.content(), keys) - _keys_of([known.place])
    named = {source for key in others for source in keys[key]}
    sources = origin.sources | {source for source in named if source is not None}
    return known._replace(origin=Origin(sources, _DERIVED if None in named else "", made=True))


def _keys_of(places: Iterable[Place]) -> set[bytes]:
    """Return the compilers' keys in the paths of files."""
    folders = {part for _, path in places for part in path.split("/")[:-1]}
    return {part.encode() for part in folders if len(part) >= _KEY_BYTES}


def _named_in(data: bytes, keys: Mapping[bytes, object]) -> set[bytes]:
    """Return the keys that occur in the data. A pickle has a length before each text, which may be a letter
    too."""
    lengths = {len(key) for key in keys}
    found = set()
    for word in set(_WORD.findall(data)):
        for length in lengths:
            pieces = {word[at : at + length] for at in range(len(word) - length + 1)}
            found |= pieces & keys.keys()
    return found


class _Folder:
    """Says what below the folder of a kind other users can write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shut = next((folder for folder in (root, *root.parents) if _is_shut(folder)), None)
        if shut is not None and has_mount(shut, root):
            shut = None  # others may have a volume there by another way
        self._is_reached = shut is None
        try:
            refuse_foreign_path(shut or root)
            self.is_open = self._is_reached and _is_open(root)
        except Untrusted:
            self.is_open = True
        """Whether they can make files in it, or replace it."""
        self._parts: dict[str, str] = {"": ""}

    def open_part(self, path: str) -> str:
        """Return why the file of a relative path is of unknown origin, where others can write it; else an
        empty text."""
        if self._is_reached and path not in self._parts:
            part = f"{_OPEN} {self.root / path}" if _is_open(self.root / path) else ""
            self._parts[path] = self.open_part(path.rpartition("/")[0]) or part
        return self._parts.get(path, "")


def _is_shut(folder: Path) -> bool:
    """Return whether no one but this user and root reaches what is in a folder."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _is_open(path: Path) -> bool:
    """Return whether another user can write to a file, or make files in a folder."""
    try:
        status = path.stat()
    except OSError:
        return False  # gone, so nothing of it is captured
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & 0o022)
