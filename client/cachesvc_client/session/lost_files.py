"""Says which restored files are gone or damaged: then no key that differs is why something was compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..kinds import RULES
from ..wire.text import count_text

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision
    from ..wire.records import FileRecord

_REMEDY = "and the next start restores them again; set CACHESVC_STORE to a folder that nothing {}"


def lost_files(
    installed: Sequence[InstalledRevision], every_roots: Sequence[Mapping[str, Path]]
) -> Iterator[str]:
    """Yield in words how many installed files have vanished, and how many have another size than verified.

    ``every_roots``: the folders of the kinds, of each folder that files were installed into.
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
        place for place, found in sizes.items() if found and _keeps_size(wanted[place]) not in (None, *found)
    )
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


def _keeps_size(record: FileRecord) -> int | None:
    """Return the size that a file has where it is installed; ``None`` where paths are put into it, or what
    was there before."""
    rule = RULES[record.kind].rule(record.path) if record.kind in RULES else None
    return None if rule is None or rule.local or rule.write == "merge" else record.size
