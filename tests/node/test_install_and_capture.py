"""Test install and capture: each is the inverse of the other, files are whole, none is overwritten, and no
path leads out of the folder."""

import errno
import functools
import json
import logging
import os
import random
import signal
import stat
import subprocess
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import FILES, RULES, contents, kill_at_step, make_pack, run_in_child

from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.node import safe_files
from cachesvc_client.node.capture import capture
from cachesvc_client.node.install import install, remove
from cachesvc_client.node.safe_files import PRIVATE
from cachesvc_client.wire.errors import Corrupt, StorageFull, Untrusted


@pytest.fixture
def packed(tmp_path):
    return make_pack(tmp_path)


@pytest.fixture
def roots(tmp_path):
    return {kind: tmp_path / "caches" / kind for kind in RULES}


def install_pack(packed, roots, rules=RULES, **options):
    with PackReader(*packed) as reader:
        return install(reader, rules, roots, **options)


def expected(roots, files=FILES):
    root = str(roots["triton"]).encode()
    return {f"{file.kind}/{file.path}": file.data.replace(b"@ROOT@", root) for file in files}


def leftovers(roots):
    return [path for root in roots.values() for path in (root / PRIVATE).glob("*") if path.name != "lock"]


def test_every_file_is_installed_and_no_other_file_is_left(packed, roots):
    result = install_pack(packed, roots)
    assert contents(roots) == expected(roots)
    assert (result.written, result.kept, result.merged, result.skipped) == (len(FILES), 0, 0, 0)
    assert result.bytes == sum(map(len, expected(roots).values()))
    assert not leftovers(roots)


def test_file_modes_are_those_of_the_records_less_the_umask(packed, roots):
    before = os.umask(0o077)
    try:
        install_pack(packed, roots)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in roots["inductor"].rglob("*.*")}
    assert (modes["cab.so"], modes["ccd.py"]) == (0o700, 0o600)


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.from_regex(r"K[0-9]/[a-z]{1,5}\.cubin|K[0-9]/__grp__k\.json", fullmatch=True),
        st.binary(max_size=300).filter(lambda data: b"@ROOT@" not in data),
        max_size=6,
    ),
    st.booleans(),
)
def test_capture_is_the_inverse_of_install(tmp_path_factory, files, threaded):
    work = tmp_path_factory.mktemp("inverse")
    source, target = {"triton": work / "here"}, {"triton": work / "there"}
    for path, data in files.items():
        (source["triton"] / path).parent.mkdir(parents=True, exist_ok=True)
        (source["triton"] / path).write_bytes(data + str(source["triton"]).encode())
    first = capture({"triton": files}, RULES, source)
    install_pack(make_pack(work, first), target, threads=3 if threaded else 1)
    assert capture({"triton": files}, RULES, target) == first
    for path, data in files.items():
        portable = path.endswith(".json")  # Only group files hold paths.
        where = target if portable else source
        assert (target["triton"] / path).read_bytes() == data + str(where["triton"]).encode()


@pytest.mark.parametrize("same_size", [True, False])
def test_an_immutable_file_with_another_content_is_replaced(packed, roots, same_size):
    path = roots["inductor"] / "ab/cab.so"
    path.parent.mkdir(parents=True)
    planted = b"x" * len(expected(roots)["inductor/ab/cab.so"]) if same_size else b"somebody else's"
    path.write_bytes(planted)
    with open(path, "rb") as opened:
        result = install_pack(packed, roots)
        assert opened.read() == planted, "a process that has the file open goes on"
    assert contents(roots) == expected(roots)
    assert (result.written, result.kept) == (len(FILES), 0)


def test_a_removal_deletes_the_revisions_code_and_nothing_else(packed, roots, tmp_path):
    own = roots["inductor"] / "ab" / "own.so"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"the user's own")
    install_pack(packed, roots)
    elsewhere = tmp_path / "elsewhere"
    (roots["triton"] / "K1").rename(elsewhere)
    (roots["triton"] / "K1").symlink_to(elsewhere)
    assert remove(packed[1], RULES, roots) == 4
    assert contents(roots).keys() == {"inductor/ab/own.so", "triton/tuned.json"}
    assert len(list(elsewhere.iterdir())) == 2, "no link is followed"
    assert remove(packed[1], RULES, roots) == 0 and remove(packed[1], RULES, {}) == 0


def test_a_second_install_changes_nothing(packed, roots):
    install_pack(packed, roots)
    before = {
        path: path.stat().st_ino for root in roots.values() for path in root.rglob("*") if path.is_file()
    }
    result = install_pack(packed, roots)
    assert (result.written, result.kept, result.bytes) == (0, len(FILES), 0)
    after = {path: path.stat().st_ino for path in before}
    assert after == before


def test_merge_files_are_joined_and_local_entries_win(packed, roots):
    roots["triton"].mkdir(parents=True)
    (roots["triton"] / "tuned.json").write_text('{"a":9,"b":2}')
    assert install_pack(packed, roots).kept == 1
    (roots["triton"] / "tuned.json").write_text('{"b":2}')
    assert install_pack(packed, roots).merged == 1
    assert json.loads((roots["triton"] / "tuned.json").read_text()) == {"a": 1, "b": 2}


def test_a_damaged_local_merge_file_is_kept_with_a_warning(packed, roots, caplog):
    roots["triton"].mkdir(parents=True)
    (roots["triton"] / "tuned.json").write_text("{damaged")
    with caplog.at_level(logging.WARNING, "cachesvc"):
        install_pack(packed, roots)
    assert (roots["triton"] / "tuned.json").read_text() == "{damaged"
    assert "tuned.json: kept as it is" in caplog.text


def test_installs_that_merge_at_once_lose_no_line(tmp_path, roots):
    packs = []
    for index in range(8):
        (tmp_path / str(index)).mkdir()
        files = [SourceFile("triton", "tuned.json", b'{"k%d":%d}' % (index, index))]
        packs.append(make_pack(tmp_path / str(index), files))
    threads = [threading.Thread(target=install_pack, args=(packed, roots)) for packed in packs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    present = json.loads((roots["triton"] / "tuned.json").read_text())
    assert present == {f"k{index}": index for index in range(8)}


def test_a_path_without_a_rule_is_refused_before_anything_is_written(tmp_path, roots):
    packed = make_pack(tmp_path, [*FILES, SourceFile("triton", "sitecustomize.py", b"import os")])
    with pytest.raises(Corrupt, match=r"triton/sitecustomize\.py is no file that this kind has"):
        install_pack(packed, roots)
    assert not any(root.exists() for root in roots.values())


def test_kinds_without_rules_or_folder_are_skipped(packed, roots):
    only = {"triton": roots["triton"]}
    result = install_pack(packed, only)
    assert result.skipped == sum(file.kind == "inductor" for file in FILES)
    assert set(contents(only)) == {f"triton/{file.path}" for file in FILES if file.kind == "triton"}


def test_a_folder_in_place_of_a_merge_file_is_an_error(packed, roots):
    (roots["triton"] / "tuned.json").mkdir(parents=True)
    with pytest.raises(StorageFull, match=r"tuned\.json: not a regular file"):
        install_pack(packed, roots)


@pytest.mark.parametrize("place", ["ab", PRIVATE])
def test_a_link_that_replaces_a_folder_is_not_followed(packed, roots, tmp_path, place):
    outside = tmp_path / "outside"
    outside.mkdir()
    roots["inductor"].mkdir(parents=True)
    (roots["inductor"] / place).symlink_to(outside)
    with pytest.raises(Untrusted, match="remove it"):
        install_pack(packed, roots)
    assert not list(outside.iterdir())


def test_a_link_in_place_of_a_file_is_not_followed(packed, roots, tmp_path):
    outside = tmp_path / "outside"
    for kind, name in (("inductor", "ab/cab.so"), ("triton", "tuned.json")):
        (roots[kind] / name).parent.mkdir(parents=True, exist_ok=True)
        (roots[kind] / name).symlink_to(outside)
    with pytest.raises(StorageFull, match=r"tuned\.json"):
        install_pack(packed, roots)
    assert not outside.exists()
    assert (roots["triton"] / "tuned.json").is_symlink(), "a link in place of a merge file is refused"
    (roots["triton"] / "tuned.json").unlink()
    install_pack(packed, roots)
    assert not outside.exists()
    path = roots["inductor"] / "ab/cab.so"
    assert not path.is_symlink() and path.read_bytes() == expected(roots)["inductor/ab/cab.so"]


def test_the_root_itself_may_be_a_link_of_the_user(packed, roots, tmp_path):
    (tmp_path / "real").mkdir()
    roots["triton"].parent.mkdir(parents=True)
    roots["triton"].symlink_to(tmp_path / "real")
    install_pack(packed, roots)
    assert (tmp_path / "real/K1/k.cubin").exists()


def test_an_install_killed_at_any_step_leaves_whole_files_and_the_next_completes(packed, tmp_path):
    killed = 0
    for at in range(1, 100):
        roots = {kind: tmp_path / str(at) / kind for kind in RULES}
        status = run_in_child(
            functools.partial(install_pack, packed, roots, threads=1, step=kill_at_step(at))
        )
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        present, whole = contents(roots), expected(roots)
        assert all(whole[path] == data for path, data in present.items())
        if "triton/K1/__grp__k.json" in present:
            assert "triton/K1/k.cubin" in present, "a file comes after the files that it points to"
        install_pack(packed, roots)
        assert contents(roots) == whole
    assert killed == 3 * len(FILES)  # Each file is created, filled and placed.


def test_old_leftovers_of_a_killed_install_are_deleted(packed, roots):
    run_in_child(functools.partial(install_pack, packed, roots, threads=1, step=kill_at_step(2)))
    assert leftovers(roots)
    install_pack(packed, roots)
    assert leftovers(roots), "another process might still use it"
    for path in leftovers(roots):
        os.utime(path, (1, 1))
    install_pack(packed, roots)
    assert not leftovers(roots)


def test_a_full_disk_is_one_error_and_leaves_whole_files(tmp_path):
    chance = random.Random(8)
    files = [SourceFile("inductor", f"aa/f{index}.so", chance.randbytes(60_000)) for index in range(20)]
    packed = make_pack(tmp_path, files)
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        roots = {"inductor": mounted / "cache"}
        with pytest.raises(StorageFull, match="No space left"):
            install_pack(packed, roots, threads=2)
        present = contents(roots)
        assert 0 < len(present) < 20
        assert present.items() <= {f"inductor/{file.path}": file.data for file in files}.items()
        assert not leftovers(roots)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_an_unwritable_folder_is_one_error(packed, roots, tmp_path):
    (tmp_path / "caches").write_bytes(b"a file in the way")
    with pytest.raises(StorageFull, match=r"install: .*(Not a directory|File exists)"):
        install_pack(packed, roots)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_folder_without_permission_is_one_error(packed, roots, tmp_path):
    tmp_path.chmod(0o755)

    def as_nobody():
        with PackReader(*packed) as reader:
            os.setuid(65534)
            with pytest.raises(StorageFull, match="Permission denied"):
                install(reader, RULES, roots)

    assert run_in_child(as_nobody) == 0


def test_a_damaged_pack_installs_no_damaged_file(packed, roots):
    path, _ = packed
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="frame 0"):
        install_pack(packed, roots)
    assert set(contents(roots)) <= {"inductor/cd/empty.py"}, "an empty file needs no byte of the pack"
    assert not leftovers(roots)


def test_without_hard_links_files_are_renamed(packed, roots, monkeypatch):
    def no_links(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(safe_files.os, "link", no_links)
    install_pack(packed, roots)
    assert contents(roots) == expected(roots)
    assert install_pack(packed, roots).kept == len(FILES)
    assert not leftovers(roots)


def test_many_folders_need_few_open_files(tmp_path):
    files = [SourceFile("triton", f"K{index}/k.cubin", b"%d" % index) for index in range(300)]
    packed, roots = make_pack(tmp_path, files), {"triton": tmp_path / "cache"}

    def limited():
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
        install_pack(packed, roots, threads=1)

    assert run_in_child(limited) == 0
    assert len(contents(roots)) == 300


def test_capture_omits_everything_but_plain_files_of_the_kind(tmp_path):
    root = tmp_path / "triton"
    (root / "K1").mkdir(parents=True)
    (root / "K1/good.cubin").write_bytes(b"1")
    (root / "K1/link.cubin").symlink_to(root / "K1/good.cubin")
    os.mkfifo(root / "K1/pipe.cubin")
    (root / "K1/dir.cubin").mkdir()
    (root / "K1/other.txt").write_bytes(b"1")
    (root / "K2").symlink_to(root / "K1")
    (tmp_path / "secret.cubin").write_bytes(b"secret")
    loose = {"triton": KindRules("triton", (FileRule(r".*\.cubin"),))}
    names = ["good", "link", "pipe", "dir", "gone"]
    present = [*(f"K1/{name}.cubin" for name in names), "K1/other.txt", "K2/good.cubin", "../secret.cubin"]
    captured = capture({"triton": present, "unknown": ["x"]}, loose, {"triton": root})
    assert [(file.path, file.data) for file in captured] == [("K1/good.cubin", b"1")]


def test_capture_reads_a_file_again_that_changes_meanwhile(tmp_path):
    root = tmp_path / "triton"
    (root / "K1").mkdir(parents=True)
    path, stop = root / "K1/k.cubin", threading.Event()
    path.write_bytes(b"a" * 100)

    def rewrite():  # g++ writes like this: in place, truncated first.
        for letter in b"bcdefgh" * 40:
            with open(path, "wb") as file:
                file.write(bytes([letter]) * 50_000)
                file.flush()
                file.write(bytes([letter]) * 50_000)
            time.sleep(0.001)
        stop.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = []
    while not stop.is_set():
        reads.extend(capture({"triton": ["K1/k.cubin"]}, RULES, {"triton": root}))
    writer.join()
    reads.extend(capture({"triton": ["K1/k.cubin"]}, RULES, {"triton": root}))
    assert reads[-1].data == b"h" * 100_000
    assert all(len(set(file.data)) <= 1 for file in reads)


def test_an_empty_pack_installs_nothing(tmp_path, roots):
    assert install_pack(make_pack(tmp_path, []), roots).written == 0
