"""Says which restored files are gone or damaged: then no key that differs is why something was compiled.

A file is damaged if it has another size than verified. One that a compiler looked for by its key, and could
not use, is read too: damage that keeps a size is seen there, and a report reads few files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..kinds import RULES
from ..wire.digest import Digest
from ..wire.text import count_text

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision
    from ..wire.manifest.records import FileRecord

_REMEDY = "and the next start restores them again; set CACHESVC_STORE to a folder that nothing {}"


def lost_files(
    installed: Sequence[InstalledRevision],
    every_roots: Sequence[Mapping[str, Path]],
    absent: Collection[str] = (),
    made: Callable[[], Collection[tuple[str, str]]] = frozenset,
) -> Iterator[str]:
    """Yield in words how many installed files have vanished, and how many are not as they were verified.

    ``every_roots``: the folders of the kinds, of each folder that files were installed into. ``absent``: the
    keys that compilers looked up and for which they could use no file. ``made``: returns kind and path
    of the files that this process compiled; it is called only if a file changed. Triton overwrites a kernel
    whose group file is missing: such a change is an effect of the compile, and is not reported. A file of the
    rule *ours* is compiled again because it was damaged, and is reported.
    """
    wanted = {
        (record.kind, record.path): record
        for entry in installed
        for record in entry.manifest.files
        if not record.ranks and every_roots and record.kind in every_roots[0]
    }
    sizes = {place: _sizes(record, every_roots) for place, record in wanted.items()}
    gone = sorted(place for place, found in sizes.items() if not found)
    other = sorted(
        place
        for place, found in sizes.items()
        if found
        and (size := _keeps_size(wanted[place])) is not None
        and (size not in found or _is_changed(wanted[place], every_roots, absent))
    )
    if other:
        compiled = made()
        other = [place for place in other if place not in compiled or _is_ours(wanted[place])]
    for places, what, how, cleans in (
        (gone, "vanished after the install", "something removes files there", "cleans"),
        (other, "changed after the install and are damaged", "something writes there", "else writes to"),
    ):
        if places:
            kind, path = places[0]
            yield (
                f"{len(places)} of {count_text(len(wanted), 'restored file')} {what}, such as "
                f"{every_roots[0][kind] / path}: {how}, {_REMEDY.format(cleans)}"
            )


def _sizes(record: FileRecord, every_roots: Sequence[Mapping[str, Path]]) -> list[int]:
    found = []
    for roots in every_roots:
        if record.kind in roots:
            try:
                found.append(os.stat(roots[record.kind] / record.path).st_size)
            except OSError:
                continue
    return found


def _is_changed(
    record: FileRecord, every_roots: Sequence[Mapping[str, Path]], absent: Collection[str]
) -> bool:
    """Return whether a file of one of these keys has other bytes than verified, wherever it lies."""
    if not set(record.path.split("/")) & set(absent):
        return False
    paths = [roots[record.kind] / record.path for roots in every_roots if record.kind in roots]
    contents = []
    for path in paths:
        with suppress(OSError):
            contents.append(Digest.of(path.read_bytes()))
    return bool(contents) and record.digest not in contents


def _is_ours(record: FileRecord) -> bool:
    rule = RULES[record.kind].rule(record.path)
    return rule is not None and rule.write == "ours"


def _keeps_size(record: FileRecord) -> int | None:
    """Return the size that a file has where it is installed; ``None`` where paths are put into it, or what
    was there before."""
    rule = RULES[record.kind].rule(record.path) if record.kind in RULES else None
    return None if rule is None or rule.local or rule.write == "merge" else record.size
