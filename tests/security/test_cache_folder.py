"""Another process of the node changes the cache folder or the node store while a service uses it: nothing is
written outside, nothing waits for ever, and nothing of theirs stays in a new folder."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from packing import FILES, RULES, make_pack, run_in_child

from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.node.install import InstallCounts, install
from cachesvc_client.node.safe_files import PRIVATE
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, StorageFull, Untrusted

NAME = Digest.of(b"a folder")
CONTENT = {file.path: file.data for file in FILES}


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    return {kind: tmp_path / "caches" / kind for kind in RULES}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the victim's that no cache has business in."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_bytes(b"precious")
    return folder


def install_all(
    tmp_path: Path, roots: dict[str, Path], step: Callable[[str], None] = lambda _name: None
) -> InstallCounts:
    with PackReader(*make_pack(tmp_path)) as reader:
        return install(reader, RULES, roots, threads=1, step=step)


def untouched(outside: Path) -> bool:
    return [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("at", ["created", "filled", "placed"])
@pytest.mark.parametrize("victim", ["cd", PRIVATE])
def test_a_peer_swaps_a_folder_for_a_link_between_check_and_write(
    tmp_path: Path, roots: dict[str, Path], outside: Path, at: str, victim: str
) -> None:
    swapped: list[bool] = []

    def swap(step: str) -> None:
        place = roots["inductor"] / victim
        if step == at and not swapped and place.is_dir():
            swapped.append(True)
            place.rename(tmp_path / "moved-aside")
            place.symlink_to(outside)

    with contextlib.suppress(CacheSvcError):  # a refusal is as good
        install_all(tmp_path, roots, swap)
    assert swapped, "the attack is one"
    assert untouched(outside)


def test_a_peer_swaps_a_folder_back_and_forth_while_files_are_installed(
    tmp_path: Path, roots: dict[str, Path], outside: Path
) -> None:
    """A race that is run for real, many times."""
    over = threading.Event()
    place, aside = roots["inductor"] / "cd", tmp_path / "aside"

    def swap() -> None:
        while not over.is_set():
            try:
                place.rename(aside)
                place.symlink_to(outside)
                place.unlink()
                aside.rename(place)
            except OSError:
                shutil.rmtree(aside, ignore_errors=True)

    thread = threading.Thread(target=swap)
    packed = make_pack(tmp_path)
    thread.start()
    try:
        for _ in range(60):
            with PackReader(*packed) as reader:
                try:
                    install(reader, RULES, roots, threads=1)
                except CacheSvcError:
                    continue
    finally:
        over.set()
        thread.join()
    assert untouched(outside)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("special", [_pipe, _socket, _device, _link_to_pipe])
@pytest.mark.parametrize("file", ["inductor/cd/ccd.py", "triton/tuned.json", "triton/K1/__grp__k.json"])
def test_a_peer_puts_a_pipe_or_a_device_in_the_place_of_a_file(
    tmp_path: Path, roots: dict[str, Path], special: Callable[[Path], None], file: str
) -> None:
    """The install neither waits for a writer nor reads without end; what it leaves are plain, whole files."""
    kind, _, path = file.partition("/")
    place = roots[kind] / path
    place.parent.mkdir(parents=True)
    special(place)
    done: list[object] = []

    def work() -> None:
        try:
            done.append(install_all(tmp_path, roots))
        except CacheSvcError as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    assert done, "it waits"
    if isinstance(done[0], InstallCounts):
        assert place.is_file() and not place.is_symlink()
    else:
        assert isinstance(done[0], (StorageFull, Untrusted)) and str(done[0]).isprintable()


def test_a_peer_changes_a_file_through_a_hard_link_of_its_own(
    tmp_path: Path, roots: dict[str, Path], outside: Path
) -> None:
    """A file whose content is verified may be linked elsewhere too: it is replaced, not written into, and
    the next start finds what was changed."""
    install_all(tmp_path, roots)
    place = roots["inductor"] / "cd/ccd.py"
    os.link(place, outside / "link")
    (outside / "link").write_bytes(b"hostile")
    assert place.read_bytes() == b"hostile"
    install_all(tmp_path, roots)
    assert place.read_bytes() == CONTENT["cd/ccd.py"]
    assert (outside / "link").read_bytes() == b"hostile", "the other name is not written through"


def test_a_hard_link_to_a_precious_file_is_not_written_through(
    tmp_path: Path, roots: dict[str, Path], outside: Path
) -> None:
    for kind, path in (("inductor", "cd/ccd.py"), ("triton", "tuned.json"), ("triton", "K1/__grp__k.json")):
        place = roots[kind] / path
        place.parent.mkdir(parents=True)
        os.link(outside / "precious", place)
    install_all(tmp_path, roots)
    assert (outside / "precious").read_bytes() == b"precious"


def _own_folder(store: Path, act: Callable[[Path], None]) -> None:
    """Open the private folder in a process that ends, as a service does, and act in it."""

    def work() -> None:
        act(NodeStore(store).folders.open(NAME))

    assert run_in_child(work) == 0


def _sweep(store: Path) -> None:
    """Remove the private folders that nobody uses, as a start does a while later."""
    opened = NodeStore(store)
    opened.folders.sweep(settled=0)


def test_a_link_in_a_private_folder_is_not_followed_when_it_is_removed(tmp_path: Path, outside: Path) -> None:
    _own_folder(tmp_path / "store", lambda folder: (folder / "link").symlink_to(outside))
    assert os.listdir(NodeStore(tmp_path / "store").folders.open(NAME)) == []
    assert len(os.listdir(tmp_path / "store/v1/folders")) == 2
    _sweep(tmp_path / "store")
    assert len(os.listdir(tmp_path / "store/v1/folders")) == 1
    assert untouched(outside)


def test_a_private_folder_that_is_a_link_is_not_used(tmp_path: Path, outside: Path) -> None:
    """Also where a mark, which came with the store, says that a process uses it."""
    store, root = NodeStore(tmp_path / "store"), tmp_path / "store/v1"
    [mark] = _marks_of(store)
    name = f"{NAME.hex[:48]}{'0' * 16}"
    (root / "folders" / name).symlink_to(outside)
    (root / "users" / f"{name}.0").write_bytes(mark)
    try:
        assert store.folders.open(NAME).is_symlink() is False
    except Untrusted as error:
        assert "is not a folder" in str(error)
    _sweep(tmp_path / "store")
    assert untouched(outside)


def _marks_of(store: NodeStore) -> list[bytes]:
    """Return what the marks of this process say."""
    store.folders.open_own("marked")
    return [path.read_bytes() for path, _ in store._files.entries("users")]


def test_a_process_that_kept_a_handle_writes_into_no_new_folder(tmp_path: Path) -> None:
    """Somebody who had the folder before, and whose right ended, still has it open."""
    kept: list[int] = []
    _own_folder(tmp_path / "store", lambda _: None)
    [path] = (tmp_path / "store/v1/folders").iterdir()
    kept.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    folder = NodeStore(tmp_path / "store").folders.open(NAME)
    os.close(os.open("late", os.O_CREAT | os.O_WRONLY, dir_fd=kept[0]))
    os.close(kept[0])
    assert folder != path and os.listdir(folder) == []


def test_a_peer_who_writes_at_all_times_leaves_nothing_in_a_new_folder(tmp_path: Path) -> None:
    """A process of the same user can write into a folder at any time; what it wrote before is not used."""
    store = tmp_path / "store"
    _own_folder(store, lambda folder: (folder / "before").touch())
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for path in (store / "v1/folders").glob("*"):
                with contextlib.suppress(OSError):
                    (path / ("before" if (path / "before").exists() else "during")).write_bytes(b"x")
            over.wait(0.001)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            opened = NodeStore(store)
            folder = opened.folders.open(NAME)
            assert "before" not in os.listdir(folder)
            (folder / "before").touch()
            opened.folders.leave(folder)
            _sweep(store)
    finally:
        over.set()
        thread.join()


def ended(work: Callable[[], None], seconds: float = 4.0) -> int | None:
    """Run ``work`` in a forked child; return its wait status, or ``None`` if it did not end in time."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


STORE_FILES = ("seen", "distrusted", "loading", "resolved", "packs", "partial", "users")


@pytest.mark.parametrize("special", [_pipe, _device, _socket])
@pytest.mark.parametrize("part", STORE_FILES)
def test_a_store_from_elsewhere_holds_a_pipe_or_a_device(
    tmp_path: Path, part: str, special: Callable[[Path], None]
) -> None:
    """As a CI cache that was restored: the client does not wait, and reads no more than a bound."""
    pack, _ = make_pack(tmp_path)
    data = pack.read_bytes()
    digest = Digest.of(data)
    root = tmp_path / "store"
    NodeStore(root)
    special(root / "v1" / part / digest.hex)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        store = NodeStore(root)
        try:
            assert store.marks.sequences(digest) == {}
            assert not store.marks.distrusts(digest, digest)
            assert store.answers.recent_answer(digest) is None
            path, _ = store.fetch(digest, len(data), lambda offset: iter([data[offset:]]))
            assert path.read_bytes() == data
            assert store.folders.open(NAME).is_dir()
            store.sweep_folders()
        except (StorageFull, Untrusted, Corrupt):
            return

    assert ended(work) == 0, "it waits, or it failed"


@pytest.mark.parametrize("part", ["jobs", "tmp", "partial", "locks", "own", "folders", "packs", "resolved"])
def test_a_store_from_elsewhere_has_a_link_in_the_place_of_a_part(
    tmp_path: Path, outside: Path, part: str
) -> None:
    """What is old is removed from a part: through a link that would be the files of somebody else."""
    root = tmp_path / "store"
    NodeStore(root)
    (root / "v1" / part).rmdir()
    (root / "v1" / part).symlink_to(outside)
    os.utime(outside / "precious", (1, 1))
    with pytest.raises(Untrusted, match="is a link"):
        NodeStore(root).evict()
    assert untouched(outside)


def test_a_store_from_elsewhere_sends_a_download_into_a_precious_file(tmp_path: Path, outside: Path) -> None:
    """A partial download that is a link would be continued, or cut to nothing, in its target."""
    data = make_pack(tmp_path)[0].read_bytes()
    digest = Digest.of(data)
    store = NodeStore(tmp_path / "store")
    partial = tmp_path / "store/v1/partial" / digest.hex
    partial.symlink_to(outside / "precious")
    with pytest.raises(StorageFull):
        store.fetch(digest, len(data), lambda offset: iter([data[offset:]]))
    assert (outside / "precious").read_bytes() == b"precious"
    partial.unlink()
    partial.symlink_to(outside / "new")
    with pytest.raises(StorageFull):
        store.fetch(digest, len(data), lambda offset: iter([data[offset:]]))
    assert untouched(outside)


def test_a_bundle_that_is_a_pipe_or_endless_is_refused_at_once(tmp_path: Path) -> None:
    _pipe(tmp_path / "pipe")
    _device(tmp_path / "zero")
    for name in ("pipe", "zero"):

        def work(path: Path = tmp_path / name) -> None:
            with pytest.raises(Corrupt):
                open_bundle(path)

        assert ended(work) == 0, name
