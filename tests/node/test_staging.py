"""Test staging: files are written while the pack arrives, take their places only when the pack is whole, and
are never needed."""

import errno
import functools
import os
import random
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import FILES, RULES, contents, kill_at_step, make_pack, run_in_child

from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.node import safe_files, staging
from cachesvc_client.node.install import install
from cachesvc_client.node.safe_files import PRIVATE
from cachesvc_client.node.staging import Staging
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.errors import Corrupt
from cachesvc_client.wire.manifest.records import FRAME_BYTES

PIECE = 50_000


def repeated_bytes(seed, size):
    """Make content that packs fast: random bytes, repeated."""
    return (random.Random(seed).randbytes(9973) * (size // 9973 + 1))[:size]


BIG = (
    *(SourceFile("inductor", f"aa/f{index}.so", repeated_bytes(index, 700_000)) for index in range(9)),
    SourceFile("inductor", "aa/long.so", repeated_bytes(9, 2 * FRAME_BYTES + 77), 0o755),
    SourceFile("inductor", "aa/longtwin.so", repeated_bytes(9, 2 * FRAME_BYTES + 77)),
)


@pytest.fixture(autouse=True)
def every_pack_is_staged(monkeypatch):
    monkeypatch.setattr(staging, "_SMALL_PACK_BYTES", 0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path, manifest = make_pack(tmp_path_factory.mktemp("packed"), [*FILES, *BIG])
    assert len(manifest.frames) > 3
    return path.read_bytes(), manifest


@pytest.fixture
def roots(tmp_path):
    return {kind: tmp_path / "caches" / kind for kind in RULES}


def download_of(*answers):
    """Make a download whose first, second ... call sends these bytes, from the requested offset."""
    remaining = list(answers)

    def download(offset):
        data = remaining.pop(0)
        for begin in range(offset, len(data), PIECE):
            yield data[begin : begin + PIECE]

    return download


def fetch_and_install(root, packed, roots, download=None, before_install=lambda _path: None, **options):
    data, manifest = packed
    download = download or download_of(data)
    store = NodeStore(root / "store")
    with Staging(manifest, RULES, lambda: roots, **options) as staged:
        path, _ = store.fetch(manifest.pack.digest, manifest.pack.size, download, staged)
        staged.finish()
        before_install(path)
        with PackReader(path, manifest) as reader:
            return install(reader, RULES, roots, staged=staged)


def expected(roots, files=(*FILES, *BIG)):
    root = str(roots["triton"]).encode()
    return {f"{file.kind}/{file.path}": file.data.replace(b"@ROOT@", root) for file in files}


def leftovers(roots):
    return [path for root in roots.values() for path in (root / PRIVATE).glob("*") if path.name != "lock"]


def test_staged_files_lie_beside_their_places_until_the_install(tmp_path, packed, roots):
    def nothing_is_in_its_place(_path):
        assert contents(roots) == {}
        assert len(leftovers(roots)) == 2, "the files take their places only in the install"

    result = fetch_and_install(tmp_path, packed, roots, before_install=nothing_is_in_its_place)
    assert contents(roots) == expected(roots)
    assert (result.written, result.kept, result.skipped) == (len(FILES) + len(BIG), 0, 0)
    assert result.bytes == sum(map(len, expected(roots).values()))
    assert (roots["inductor"] / "aa/long.so").stat().st_mode & 0o777 == 0o755
    assert not leftovers(roots)


def test_staged_content_is_not_read_again(tmp_path, roots):
    path, manifest = make_pack(tmp_path, BIG[:-1])
    whole = path.read_bytes()

    def damage(path):
        path.write_bytes(whole[:16] + bytes(len(whole) - 16))

    result = fetch_and_install(tmp_path, (whole, manifest), roots, before_install=damage)
    assert result.written == len(BIG) - 1
    assert contents(roots) == expected(roots, BIG[:-1])


@settings(max_examples=12, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-c]{2}/[a-z0-9]{1,3}\.(so|py)", fullmatch=True),
        st.builds(
            repeated_bytes,
            st.integers(0, 2),
            st.sampled_from([0, 1, 5000, FRAME_BYTES, FRAME_BYTES + 1, 9_000_000]),
        ),
        max_size=6,
    )
)
def test_any_pack_is_installed_as_without_staging(tmp_path_factory, files):
    work = tmp_path_factory.mktemp("any")
    path, manifest = make_pack(work, [SourceFile("inductor", name, data) for name, data in files.items()])
    roots = {"inductor": work / "cache"}
    fetch_and_install(work, (path.read_bytes(), manifest), roots)
    assert contents(roots) == {f"inductor/{name}": data for name, data in files.items()}
    assert not leftovers(roots)


@pytest.mark.parametrize("frame", [0, 2, -1])
def test_a_download_with_a_damaged_frame_installs_nothing(tmp_path, packed, roots, frame):
    data, manifest = packed
    damaged = bytearray(data)
    damaged[manifest.frames[frame].offset + 9] ^= 1
    with pytest.raises(Corrupt, match="is not this pack"):
        fetch_and_install(tmp_path, packed, roots, download_of(bytes(damaged)))
    assert contents(roots) == {}
    assert not leftovers(roots)
    assert not list((tmp_path / "store/v1/packs").iterdir())


@pytest.mark.parametrize("leftover", [b"rubbish", "half", "whole", "half, then rubbish"])
def test_after_a_killed_process_with_any_leftover_the_next_has_all_files(tmp_path, packed, roots, leftover):
    data, manifest = packed
    half = data[: len(data) // 2]
    leftover = {"half": half, "whole": data, "half, then rubbish": half + b"rubbish"}.get(leftover, leftover)
    NodeStore(tmp_path / "store")
    (tmp_path / "store/v1/partial" / manifest.pack.digest.hex).write_bytes(leftover)
    fetch_and_install(tmp_path, packed, roots, download_of(data, data))
    assert contents(roots) == expected(roots)


def test_a_second_download_does_not_trust_the_checks_of_the_first(tmp_path, packed, roots):
    """The first download continues beyond the pack's end: all frames were good, and yet the store begins
    again."""
    data, manifest = packed
    NodeStore(tmp_path / "store")
    (tmp_path / "store/v1/partial" / manifest.pack.digest.hex).write_bytes(data[:1000])

    def download(offset):
        if offset:
            yield data[offset:]
            yield b"more"
        else:
            yield data[:-1] + bytes([data[-1] ^ 1])

    with pytest.raises(Corrupt, match="is not this pack"):
        fetch_and_install(tmp_path, packed, roots, download)
    assert contents(roots) == {}
    assert not list((tmp_path / "store/v1/packs").iterdir())


def test_local_files_are_kept_if_they_equal_the_packs(tmp_path, packed, roots):
    folder = roots["inductor"] / "aa"
    fetch_and_install(tmp_path / "first", packed, roots)
    whole = contents(roots)
    (folder / "f3.so").write_bytes(b"planted before the download")
    before = {path: path.stat().st_ino for path in folder.iterdir()}

    def another(_path):  # This happens after the staging.
        (folder / "f4.so").write_bytes(b"planted during the download")

    result = fetch_and_install(tmp_path / "second", packed, roots, before_install=another)
    assert contents(roots) == whole
    assert result.written == 2 and result.kept == len(whole) - 2
    changed = {path.name for path, inode in before.items() if path.stat().st_ino != inode}
    assert changed <= {"f3.so", "f4.so"}
    assert not leftovers(roots)


def test_a_file_that_appears_after_it_was_staged_is_replaced(tmp_path, packed, roots):
    folder = roots["inductor"] / "aa"

    def another(_path):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "f4.so").write_bytes(b"planted during the download")

    result = fetch_and_install(tmp_path, packed, roots, before_install=another)
    assert (folder / "f4.so").read_bytes() != b"planted during the download"
    assert result.kept == 0 and not leftovers(roots)


def test_without_hard_links_files_are_renamed(tmp_path, packed, roots, monkeypatch):
    def no_links(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(safe_files.os, "link", no_links)
    fetch_and_install(tmp_path, packed, roots)
    assert contents(roots) == expected(roots)
    assert not leftovers(roots)


def test_a_process_killed_at_any_step_leaves_nothing_and_the_next_completes(tmp_path, packed):
    killed = 0
    for at in range(1, 100):
        roots = {kind: tmp_path / str(at) / kind for kind in RULES}
        work = functools.partial(fetch_and_install, tmp_path / str(at), packed, roots, step=kill_at_step(at))
        if (status := run_in_child(work)) == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        assert contents(roots) == {}
        fetch_and_install(tmp_path / str(at), packed, roots)
        assert contents(roots) == expected(roots)
    # Each file is created and filled, except the merge file, the group file, and the twin that ended frames
    # ago.
    assert killed == 2 * (len(FILES) + len(BIG) - 3)


def test_a_folder_that_cannot_be_written_does_not_spoil_the_download(tmp_path, packed, roots):
    data, manifest = packed
    roots["inductor"].parent.mkdir()
    roots["inductor"].write_bytes(b"a file in the way")
    with Staging(manifest, RULES, lambda: roots) as staged:
        path, downloaded_bytes = NodeStore(tmp_path).fetch(
            manifest.pack.digest, manifest.pack.size, download_of(data), staged
        )
    assert (path.read_bytes(), downloaded_bytes) == (data, len(data))


def test_a_slow_folder_does_not_delay_the_download(tmp_path, packed, roots, monkeypatch):
    monkeypatch.setattr(staging, "_FRAMES_AHEAD", 1)
    monkeypatch.setattr(staging, "_STALL_SECONDS", 0.001)
    data, _ = packed
    downloaded = threading.Event()

    def download(offset):
        yield from download_of(data)(offset)
        downloaded.set()

    fetch_and_install(tmp_path, packed, roots, download, step=lambda _name: downloaded.wait(60) or None)
    assert downloaded.is_set()
    assert contents(roots) == expected(roots)


def test_after_staging_is_stopped_only_the_store_is_filled(tmp_path, packed, roots):
    data, manifest = packed
    answers = iter([True] * 5)
    with Staging(manifest, RULES, lambda: roots, may_go_on=lambda: next(answers, False)) as staged:
        path, _ = NodeStore(tmp_path).fetch(
            manifest.pack.digest, manifest.pack.size, download_of(data), staged
        )
    assert path.read_bytes() == data
    assert contents(roots) == {}
    assert not leftovers(roots)


def test_small_packs_are_not_staged(tmp_path, roots, monkeypatch):
    monkeypatch.undo()
    path, manifest = make_pack(tmp_path)
    before = threading.active_count()
    with Staging(manifest, RULES, lambda: roots) as staged:
        staged.receive(path, manifest.pack.size)
        assert threading.active_count() == before
        assert not roots["inductor"].exists()
