"""Test the reader of tar files with those of Python's and with hostile ones."""

from __future__ import annotations

import io
import tarfile

import pytest

from cachesvc.oci.tar_stream import END, TarReader, filling, header_of
from cachesvc_client.wire.errors import Corrupt

LONG = "a" * 60 + "/" + "b" * 300
NAMES = ["short", "ü/ö", LONG, "c" * 100, "d" * 101]


def read(data: bytes, entries: int = 100) -> list[tuple[str, bytes]]:
    reader = TarReader(io.BytesIO(data), "layer", entries)
    return [(entry.name, b"".join(reader.content())) for entry in reader.entries() if not entry.folder]


def made(rows: list[tarfile.TarInfo | tuple[str, bytes]], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for row in rows:
            info = tarfile.TarInfo(row[0]) if isinstance(row, tuple) else row
            data = row[1] if isinstance(row, tuple) else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_writes_is_read(tar_format: int) -> None:
    rows = [(name, name.encode() * 40) for name in NAMES] + [("empty", b"")]
    assert read(made(rows, tar_format)) == rows


def test_what_is_written_is_read_by_python() -> None:
    data = b"".join(header_of(name, 700) + b"x" * 700 + filling(700) for name in NAMES) + END
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(info.name, info.size, info.mtime, info.uid) for info in tar] == [
            (n, 700, 0, 0) for n in NAMES
        ]
    assert read(data) == [(name, b"x" * 700) for name in NAMES]


def test_content_that_nobody_reads_is_skipped() -> None:
    data = made([("large", b"x" * (3 << 20)), ("small", b"y")])
    for source in (io.BytesIO(data), Unseekable(data)):
        names = [entry.name for entry in TarReader(source, "layer", 9).entries()]
        assert names == ["large", "small"]


class Unseekable:
    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read


def entry(kind: bytes, name: str = "a") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "named pipe"),
        (b"S", "neither file nor folder"),
        (b"Z", "neither file nor folder"),
    ],
)
def test_what_is_no_file_is_refused(kind: bytes, words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        read(made([entry(kind)]))


def patched(data: bytes, at: int, with_: bytes) -> bytes:
    data = data[:at] + with_ + data[at + len(with_) :]
    total = sum(data[:148]) + sum(data[156:512]) + 8 * 32
    return data[:148] + f"{total:06o}\0 ".encode() + data[156:]


GOOD = made([("a", b"x" * 1000)])
HOSTILE = {
    "checksum": GOOD[:10] + b"?" + GOOD[11:],
    "ends in a header": GOOD[:300],
    "ends in the content": GOOD[: 512 + 300],
    "size is no number": patched(GOOD, 124, b"9999999999\0"),
    "size beyond the end": patched(GOOD, 124, b"77777777777\0"),
    "size of 80 bits": patched(GOOD, 124, b"\x80" + b"\x7f" * 11),
    "a name that is not UTF-8": patched(GOOD, 0, b"\xff\xfe"),
    "an extended header that is none": patched(made([("a", b"no pax")]), 156, b"x"),
    "a sparse file": patched(made([("a", b"22 GNU.sparse.major=1\n")]), 156, b"x"),
    "a size that is none": patched(made([("a", b"10 size=x\n")]), 156, b"x"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tar_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read(data)


def test_an_extended_header_of_megabytes_is_not_read() -> None:
    """The size is refused before anything is read for it."""
    data = patched(patched(GOOD, 156, b"x"), 124, b"00004000000\0") + bytes(2 << 20)
    with pytest.raises(Corrupt, match="an extended header of 1048576 bytes"):
        read(data)


def test_more_entries_than_allowed_are_not_read() -> None:
    data = made([(f"f{number}", b"") for number in range(6)])
    assert len(read(data, 6)) == 6
    with pytest.raises(Corrupt, match="more than the 5 entries"):
        read(data, 5)
