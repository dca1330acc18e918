"""Test packs: round trips, determinism, and hostile frames with digests that match."""

import hashlib
import io
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import FILES, KEY, make_pack

from cachesvc_client.bundle.layout import PACK_MAGIC, Layout
from cachesvc_client.bundle.pack import PackReader, SourceFile, write_pack
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound
from cachesvc_client.wire.manifest.records import FRAME_BYTES, FileRecord, Frame, PackRecord, Workload
from cachesvc_client.wire.names import Name, Target

CONTENT = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda size, seed: (random.Random(seed).randbytes(997) * (size // 997 + 1))[:size],
        st.sampled_from([0, 1, 4097, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1]),
        st.integers(0, 3),
    ),
)
SETS = st.dictionaries(
    st.from_regex(r"[a-c]{1,2}/[a-z0-9]{1,6}\.(so|json|py)", fullmatch=True), CONTENT, max_size=5
)


@settings(max_examples=15)
@given(SETS, st.randoms(use_true_random=False))
def test_a_round_trip_in_any_order_makes_the_same_bytes(tmp_path_factory, contents, chance):
    folder = tmp_path_factory.mktemp("pack")
    files = [SourceFile("inductor", path, data) for path, data in contents.items()]
    path, manifest = make_pack(folder, files)
    chance.shuffle(files)
    again = io.BytesIO()
    assert write_pack(files, again).pack == manifest.pack
    assert again.getvalue() == path.read_bytes()
    with PackReader(path, manifest) as reader:
        assert {file.path: reader.read(file) for file in manifest.files} == contents


def test_equal_contents_are_stored_once(tmp_path):
    data = random.Random(1).randbytes(1 << 20)
    _, one = make_pack(tmp_path, [SourceFile("inductor", "a.so", data)])
    _, many = make_pack(tmp_path, [SourceFile("inductor", f"{name}.so", data) for name in "abcdefgh"])
    assert many.pack.digest == one.pack.digest


def test_a_file_may_span_several_frames(tmp_path):
    data = random.Random(2).randbytes(2 * FRAME_BYTES + 5)
    path, manifest = make_pack(
        tmp_path, [SourceFile("inductor", "a.py", b"x" * 100), SourceFile("inductor", "b.so", data)]
    )
    assert [frame.raw for frame in manifest.frames] == [FRAME_BYTES, FRAME_BYTES, 105]
    with PackReader(path, manifest) as reader:
        assert reader.read(manifest.files[1]) == data


def test_files_on_disk_and_in_memory_make_the_same_pack(tmp_path):
    on_disk = []
    for index, file in enumerate(FILES):
        (tmp_path / str(index)).write_bytes(file.data)
        on_disk.append(replace(file, data=tmp_path / str(index)))
    assert make_pack(tmp_path, on_disk)[1].pack == make_pack(tmp_path)[1].pack


def test_one_reader_serves_many_threads(tmp_path):
    chance = random.Random(3)
    contents = {f"f{index}.so": chance.randbytes(300_000) for index in range(60)}
    path, manifest = make_pack(
        tmp_path, [SourceFile("inductor", name, data) for name, data in contents.items()]
    )
    with PackReader(path, manifest) as reader, ThreadPoolExecutor(8) as pool:
        jobs = [*manifest.files] * 3
        chance.shuffle(jobs)
        assert all(pool.map(lambda file: reader.read(file) == contents[file.path], jobs))


def test_thorough_packs_are_no_larger_than_zstd_3(tmp_path):
    source = b"".join(
        b"def kernel_%d(x): return x * %d + %d\n" % (i, i * 7919 % 1000, i) for i in range(40_000)
    )
    _, manifest = make_pack(tmp_path, [SourceFile("inductor", "a.py", source)])
    assert manifest.pack.size <= len(zstandard.ZstdCompressor(level=3).compress(source))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([SourceFile("inductor", "../x", b"")], "path"),
        ([SourceFile("Bad", "x", b"")], "kind"),
        ([SourceFile("inductor", "x", b"", 0o777)], "mode"),
        ([SourceFile("inductor", "x", b"1"), SourceFile("inductor", "x", b"2")], "two files"),
        (
            [SourceFile("inductor", "x", b"1"), SourceFile("inductor", "x/y", b"2")],
            "both a file and a folder",
        ),
    ],
)
def test_files_that_no_reader_accepts_are_not_written(files, message):
    with pytest.raises((InvalidRequest, Corrupt), match=message):
        write_pack(files, io.BytesIO())


def test_a_source_that_vanished_is_an_error(tmp_path):
    with pytest.raises(InvalidRequest, match=r"inductor/a\.so: No such file"):
        write_pack([SourceFile("inductor", "a.so", tmp_path / "gone")], io.BytesIO())


def test_a_source_that_changes_while_it_is_packed_is_an_error(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(b"1" * 100)

    class Changing(io.BytesIO):
        def write(self, data):
            path.write_bytes(b"2" * 100)
            return super().write(data)

    with pytest.raises(InvalidRequest, match="changed while it was packed"):
        write_pack([SourceFile("inductor", "a.so", path)], Changing())


def hostile(folder, stored: bytes, raw: int, size: int | None = None):
    """Make a pack of one frame with these stored bytes, and a manifest whose digests all match the bytes."""
    path, manifest = make_pack(folder)
    path.write_bytes(PACK_MAGIC + stored)
    frame = Frame(len(PACK_MAGIC), len(stored), raw, Digest.of(stored))
    pack = PackRecord(Digest.of(path.read_bytes()), len(PACK_MAGIC) + len(stored))
    file = FileRecord("inductor", "a.so", raw if size is None else size, Digest.of(b"x" * raw), 0, 0)
    return path, replace(manifest, pack=pack, frames=(frame,), files=(file,))


def frame_of(data: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def _lying_frame(size: int) -> bytes:
    """Make a frame whose header promises ``size`` bytes: a single segment, with an 8-byte content size (RFC
    8878, 3.1.1)."""
    block = struct.pack("<I", (100 << 3) | (1 << 1) | 1)[:3] + b"x"
    return struct.pack("<IB", 0xFD2FB528, 0b1110_0000) + struct.pack("<Q", size) + block


@pytest.mark.parametrize(
    "stored",
    [
        b"not zstd at all",
        frame_of(b"x" * 100)[:-3],
        frame_of(b"x" * 100) + b"tail",
        frame_of(b"x" * 100) + frame_of(b"x" * 100),
        frame_of(b"x" * 99),
        frame_of(b"y" * 100),
        frame_of(b"x" * (64 << 20)),
        frame_of(b"x" * 100, write_content_size=False),
        struct.pack("<II", 0x184D2A50, 4) + b"skip" + frame_of(b"x" * 100),
        _lying_frame(1 << 40),
        _lying_frame(101),
    ],
    ids=["junk", "cut", "tail", "two", "short", "other", "bomb", "sizeless", "skippable", "tera", "lie"],
)
def test_hostile_frames_with_matching_digests_are_refused(tmp_path, stored):
    path, manifest = hostile(tmp_path, stored, 100)
    with PackReader(path, manifest) as reader, pytest.raises(Corrupt):
        reader.verify()


def test_the_lying_frame_is_valid_apart_from_its_header(tmp_path):
    path, manifest = hostile(tmp_path, _lying_frame(100), 100)
    with PackReader(path, manifest) as reader:
        assert reader.read(manifest.files[0]) == b"x" * 100


@settings(max_examples=150)
@given(st.data())
def test_mutated_frames_with_matching_digests_are_corrupt_or_whole(tmp_path_factory, data):
    stored = bytearray(frame_of(b"".join(hashlib.sha256(b"%d" % index).digest() for index in range(40)) * 3))
    raw = 40 * 32 * 3
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    path, manifest = hostile(tmp_path_factory.mktemp("pack"), bytes(stored), raw)
    with PackReader(path, manifest) as reader:
        try:
            content = reader.read(manifest.files[0])
        except Corrupt:
            return
        assert len(content) == raw
        if Digest.of(content) != manifest.files[0].digest:
            with pytest.raises(Corrupt, match="does not have its digest"):
                reader.verify()


@given(st.integers(0, 1 << 20), st.integers(1, 255))
def test_no_flipped_bit_reaches_the_decompressor(tmp_path_factory, position, change):
    path, manifest = make_pack(tmp_path_factory.mktemp("pack"))
    data = bytearray(path.read_bytes())
    data[16 + position % (len(data) - 16)] ^= change
    path.write_bytes(data)
    with PackReader(path, manifest) as reader, pytest.raises(Corrupt, match="digest that was signed"):
        reader.frame(0)


def test_a_signer_finds_a_file_that_is_not_at_its_stated_place(tmp_path):
    path, manifest = make_pack(tmp_path)
    with PackReader(path, manifest) as reader:
        reader.verify()
    files = tuple(replace(file, offset=0) if file.path == "ab/cab.so" else file for file in manifest.files)
    with (
        PackReader(path, replace(manifest, files=files)) as reader,
        pytest.raises(Corrupt, match=r"ab/cab\.so does not have its digest"),
    ):
        reader.verify()


def test_truncated_foreign_and_missing_packs_are_refused(tmp_path):
    path, manifest = make_pack(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with PackReader(path, manifest) as reader, pytest.raises(Corrupt, match="frame 0"):
        reader.frame(0)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(Corrupt, match="does not begin as a pack"):
        PackReader(path, manifest)
    with pytest.raises(NotFound, match="No such file"):
        PackReader(tmp_path / "absent", manifest)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_the_parts_of_a_pack_cover_every_file_exactly(raws, data):
    offset, frames = len(PACK_MAGIC), []
    for raw in raws:
        frames.append(Frame(offset, 1, raw, Digest.of(b"")))
        offset += 1
    frame = data.draw(st.integers(0, len(raws) - 1))
    inside = data.draw(st.integers(0, raws[frame] - 1))
    rest = sum(raws[frame:]) - inside
    size = data.draw(st.integers(0, rest))
    file = FileRecord("inductor", "a", size, Digest.of(b""), frame, inside)
    parts = Layout(PackRecord(Digest.of(b""), offset), frames, [file]).parts(file)
    stream = [(index, place) for index, raw in enumerate(raws) for place in range(raw)]
    begin = stream.index((frame, inside))
    assert [(i, p) for i, a, b in parts for p in range(a, b)] == stream[begin : begin + size]
    with pytest.raises(Corrupt, match="lies outside"):
        Layout(PackRecord(Digest.of(b""), offset), frames, [replace(file, size=rest + 1)])


def test_a_pack_without_the_packed_contents_is_not_signed(tmp_path, monkeypatch):
    def miscounting(files, out, *, quick=False):
        contents = write_pack(files, out, quick=quick)
        return replace(contents, files=tuple(replace(file, frame=0, offset=0) for file in contents.files))

    monkeypatch.setattr("cachesvc_client.bundle.pack.write_pack", miscounting)
    draft = Draft(Name.parse("team/bert"), Target("bert/bf16"), {"torch": "2.13.0"}, Workload(), ("host",))
    with pytest.raises(Corrupt, match="does not have its digest"):
        build_bundle(FILES, draft, KEY, tmp_path / "a.cachesvc")
    assert not list(tmp_path.iterdir())
