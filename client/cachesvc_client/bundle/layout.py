"""Checks what a signed manifest says about the inside of its pack.

Users trust a signer for what the code does, not for the arithmetic: sizes, offsets and counts are checked
here, once, before anything is read by them. The module is pure.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from ..wire.errors import Corrupt
from ..wire.manifest.records import MAX_FILES, MAX_RAW_BYTES, FileRecord, Frame, PackRecord

PACK_MAGIC = b"cachesvc-pack-1\n"
"""First bytes of every pack."""
_FREE_BYTES = 256 << 20
"""Number of uncompressed bytes that every pack may have, whatever its ratio."""
_MAX_RATIO = 256
"""Largest ratio of uncompressed to compressed bytes. Compiler caches compress 3 to 40 times. A frame of zeros
reaches 30,000, so small packs may have ``_FREE_BYTES`` more; a larger ratio is a bomb."""


class Layout:
    """Describes where each file of a pack lies, after it has checked that the manifest is sound.

    The constructor raises ``Corrupt`` if frames are not back to back from the magic to the end of the pack, a
    file lies outside of the raw stream, the unpacked sizes are out of bounds, two files have the same (kind,
    path), or a file's path is a folder of another's.
    """

    __slots__ = ("_starts",)

    def __init__(self, pack: PackRecord, frames: Sequence[Frame], files: Sequence[FileRecord]) -> None:
        self._starts = [0, *itertools.accumulate(frame.raw for frame in frames)]
        _check_frames(pack, frames)
        allowed = min(MAX_RAW_BYTES, _FREE_BYTES + _MAX_RATIO * pack.size)
        _check_amount(self.raw, "uncompressed bytes", allowed)
        # Equal contents are stored once, so the files together may be more than the stream.
        _check_amount(sum(file.size for file in files), "bytes in all files", allowed)
        _check_amount(len(files), "files", MAX_FILES)
        for file in files:
            self._check_place(file)
        _check_names(files)

    @property
    def raw(self) -> int:
        """Returns the number of bytes of the uncompressed stream."""
        return self._starts[-1]

    def start(self, file: FileRecord) -> int:
        """Returns the position in the uncompressed stream at which the file begins."""
        return self._starts[file.frame] + file.offset

    def parts(self, file: FileRecord) -> list[tuple[int, int, int]]:
        """Lists (frame, from, to) of each piece of the file, in order; an empty file has none."""
        begin, end = self.start(file), self.start(file) + file.size
        index = bisect.bisect_right(self._starts, begin) - 1
        parts = []
        while begin < end:
            stop = min(end, self._starts[index + 1])
            parts.append((index, begin - self._starts[index], stop - self._starts[index]))
            begin, index = stop, index + 1
        return parts

    def _check_place(self, file: FileRecord) -> None:
        frames = len(self._starts) - 1
        if not file.size and not file.frame and not file.offset:
            return
        inside = file.frame < frames and file.offset < self._starts[file.frame + 1] - self._starts[file.frame]
        if not inside or self.start(file) + file.size > self.raw:
            raise Corrupt(f"manifest: {file.kind}/{file.path} lies outside of the pack")


def _check_frames(pack: PackRecord, frames: Sequence[Frame]) -> None:
    expected = len(PACK_MAGIC)
    for index, frame in enumerate(frames):
        if frame.offset != expected:
            raise Corrupt(f"manifest: frame {index} begins at {frame.offset}, expected {expected}")
        expected += frame.size
    if expected != pack.size:
        raise Corrupt(f"manifest: the frames end at {expected}, the pack at {pack.size}")


def _check_amount(amount: int, what: str, allowed: int) -> None:
    if amount > allowed:
        raise Corrupt(f"manifest: {amount} {what}, more than the {allowed} allowed for this pack")


def _check_names(files: Sequence[FileRecord]) -> None:
    # With the lowest character as separator a folder sorts directly before what is in it.
    names = sorted(f"{file.kind}/{file.path}".replace("/", "\0") for file in files)
    for name, following in itertools.pairwise(names):
        if name == following:
            raise Corrupt(f"manifest: two files are {_with_slashes(name)}")
        if following.startswith(name + "\0"):
            raise Corrupt(f"manifest: {_with_slashes(name)} is both a file and a folder")


def _with_slashes(name: str) -> str:
    return name.replace("\0", "/")
