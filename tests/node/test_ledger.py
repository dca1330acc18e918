"""Test where the ledger says that a file comes from, and what a signer may sign of it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.kinds import RULES
from cachesvc_client.node.ledger import KnownFile, Ledger, Source, select
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FileRecord, Frame, Manifest, PackRecord, Statement, Workload
from cachesvc_client.wire.names import Lane, Name, Target
from tests.mounts import bind

OURS, THEIRS = (SigningKey.generate().public for _ in range(2))
LANE = Lane("unproven")
SOME = Digest.of(b"some")
KEYS = {letter: "f" + letter * 50 for letter in "abc"}
PATHS = {letter: f"fxgraph/{letter * 2}/{key}/{letter * 40}" for letter, key in KEYS.items()}


class Signed(NamedTuple):
    """A revision that was checked."""

    manifest: Manifest
    revision: Digest
    signer: PublicKey


def signed(signer: PublicKey, lane: Lane | None, **contents: bytes) -> Signed:
    name = Name.parse("team/m")
    manifest = Manifest(
        Statement(name.namespace, name.name, Target("t"), 1, lane=lane),
        PackRecord(SOME, 10),
        (Frame(0, 10, 10, SOME),),
        tuple(
            FileRecord("inductor", PATHS[letter], len(data), Digest.of(data), 0, 0)
            for letter, data in contents.items()
        ),
        {},
        Workload(script=SOME),
    )
    return Signed(manifest, Digest.of(f"{signer}{lane}{sorted(contents)}".encode()), signer)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "inductor"
    folder.mkdir()
    return folder


def known(
    ledger: Ledger, root: Path, captured: dict[str, bytes], made: str = "", strangers: str = ""
) -> list[KnownFile]:
    files = [SourceFile("inductor", PATHS[letter], data) for letter, data in captured.items()]
    digests = {("inductor", PATHS[letter]): Digest.of(captured[letter]) for letter in made}
    traced = ledger.trace(files, digests, {"inductor": root})
    return ledger.derive(list(traced), {("inductor", PATHS[letter]) for letter in strangers})


def letters(files: list[KnownFile]) -> str:
    return "".join(one.file.path[-1] for one in files)


def test_a_signer_signs_what_was_made_here_and_its_own_revisions_of_the_lane(root: Path) -> None:
    ledger = Ledger(0)
    ledger.note(signed(OURS, LANE, a=b"1"))
    ledger.note(signed(OURS, None, b=b"2"))
    files = known(ledger, root, {"a": b"1", "b": b"2", "c": b"3"}, made="c")
    assert letters(select(files, Source(OURS, LANE)).files) == "ac"
    assert letters(select(files, Source(OURS, None)).files) == "bc"
    other = select(files, Source(THEIRS, LANE))
    assert letters(other.files) == "c" and sum(other.left_out.values()) == 2
    assert letters(select(files, None).files) == "c"


def test_a_file_that_was_changed_after_its_install_is_unknown(root: Path) -> None:
    ledger = Ledger(0)
    ledger.note(signed(OURS, None, a=b"1"))
    selection = select(known(ledger, root, {"a": b"hostile"}), Source(OURS, None))
    assert selection.files == [] and "1 file whose content changed" in selection.text


def test_a_copy_that_a_lane_has_of_our_own_file_takes_it_from_nobody(root: Path) -> None:
    ledger = Ledger(0)
    ledger.note(signed(OURS, None, a=b"1"))
    ledger.note(signed(THEIRS, LANE, a=b"1"))
    assert letters(select(known(ledger, root, {"a": b"1"}), Source(OURS, None)).files) == "a"


def test_what_was_replaced_after_it_was_made_is_unknown(root: Path) -> None:
    files = [SourceFile("inductor", PATHS["a"], b"hostile")]
    made = {("inductor", PATHS["a"]): Digest.of(b"1")}
    [one] = Ledger(0).trace(files, made, {"inductor": root})
    assert one.origin.unknown


def test_what_lay_beside_it_before_the_process_began_was_not_made_by_it(root: Path) -> None:
    """Triton's kind names the folders of what it compiled, in which another process has left a file."""
    for letter in "ab":
        (root / PATHS[letter]).parent.mkdir(parents=True)
    (root / PATHS["a"]).write_bytes(b"hostile")
    time.sleep(0.05)
    ledger = Ledger(time.time_ns())
    time.sleep(0.05)
    (root / PATHS["b"]).write_bytes(b"1")
    files = [SourceFile("inductor", PATHS[letter], (root / PATHS[letter]).read_bytes()) for letter in "ab"]
    made = {("inductor", PATHS[letter]): None for letter in "ab"}
    traced = list(ledger.trace(files, made, {"inductor": root}))
    assert letters(select(traced, Source(OURS, None)).files) == "b"


def test_what_a_rank_of_the_job_made_is_ours_as_it_was_made(root: Path) -> None:
    by_ranks = {("inductor", PATHS[letter], Digest.of(b"1")) for letter in "ab"}
    files = [SourceFile("inductor", PATHS["a"], b"1"), SourceFile("inductor", PATHS["b"], b"hostile")]
    traced = list(Ledger(0).trace(files, {}, {"inductor": root}, by_ranks))
    assert letters(select(traced, Source(OURS, None)).files) == "a"


def test_what_holds_the_file_of_another_has_that_ones_origin(root: Path) -> None:
    """A pickle has the length of a text before it, and 51 is a digit too."""
    ledger = Ledger(0)
    ledger.note(signed(THEIRS, LANE, a=b"1"))
    embeds = b"graph: 3" + KEYS["a"].encode() + b"x and its code"
    files = known(ledger, root, {"b": embeds, "c": b"nothing"}, made="bc")
    assert letters(select(files, Source(OURS, None)).files) == "c"
    unknown = known(Ledger(0), root, {"b": embeds, "c": b"nothing"}, made="bc", strangers="a")
    selection = select(unknown, Source(OURS, None))
    assert letters(selection.files) == "c" and "made of files of unknown origin" in selection.text


def test_a_folder_below_that_others_can_write_makes_its_files_unknown() -> None:
    with tempfile.TemporaryDirectory(prefix="open-") as above:  # pytest's own are shut
        root = Path(above, "inductor")
        (root / PATHS["a"]).parent.mkdir(parents=True)
        for folder in (above, root):
            Path(folder).chmod(0o755)
        assert known(Ledger(0), root, {"a": b"1"}, made="a")[0].origin.unknown == ""
        (root / "fxgraph").chmod(0o777)
        assert known(Ledger(0), root, {"a": b"1"}, made="a")[0].origin.unknown


def test_a_shut_folder_may_be_as_open_below_as_a_umask_leaves_it(root: Path) -> None:
    root.parent.chmod(0o700)
    root.chmod(0o777)
    assert known(Ledger(0), root, {"a": b"1"}, made="a")[0].origin.unknown == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("place", ["", "inductor", "inductor/fxgraph"])
@pytest.mark.parametrize("name", ["shut", "shut to others"])
def test_a_volume_below_a_shut_folder_is_as_open_as_it_is(tmp_path: Path, place: str, name: str) -> None:
    """Another container has the same volume by another way, and replaces what this process made."""
    home, volume = tmp_path / name, tmp_path / "volume"
    root, at = home / "cache/inductor", home / "cache" / place
    volume.mkdir()
    at.mkdir(parents=True)
    home.chmod(0o700)
    for mode, is_known in ((0o755, True), (0o777, False)):
        with bind(volume, at):
            at.chmod(mode)
            (root / PATHS["a"]).parent.mkdir(parents=True, exist_ok=True)
            assert (known(Ledger(0), root, {"a": b"1"}, made="a")[0].origin.unknown == "") is is_known
    assert known(Ledger(0), root, {"a": b"1"}, made="a")[0].origin.unknown == ""


def test_what_is_older_than_the_process_is_a_stranger(root: Path) -> None:
    for letter in "ab":
        (root / PATHS[letter]).parent.mkdir(parents=True)
    (root / PATHS["a"]).write_bytes(b"1")
    time.sleep(0.05)
    began = time.time_ns()
    time.sleep(0.05)
    (root / PATHS["b"]).write_bytes(b"2")
    present = Ledger(began).present([{"inductor": root}], RULES)
    assert present == {("inductor", PATHS["a"]): True, ("inductor", PATHS["b"]): False}


def test_a_kernel_that_was_written_out_of_a_graph_has_the_graphs_origin(root: Path) -> None:
    """PyTorch writes the kernels of a graph that it loads into the folder. No manifest names them, and the
    next graph may be made of them."""
    kernel = "K" * 52
    holds, embeds = f"kernel {kernel}".encode(), f"my kernel {kernel}".encode()
    present = [("triton", f"{kernel}/k.cubin")]
    for source, expected in ((Source(THEIRS, LANE), "c"), (Source(OURS, None), "abc")):
        ledger = Ledger(0)
        ledger.note(signed(source.signer, source.lane, a=holds))
        files = known(ledger, root, {"a": holds, "b": embeds, "c": b"nothing"}, made="bc")
        derived = ledger.derive(files, set(), present)
        assert letters(select(derived, Source(OURS, None)).files) == expected
    unknown = known(Ledger(0), root, {"a": holds, "b": embeds, "c": b"nothing"}, made="bc")
    assert letters(select(Ledger(0).derive(unknown, set(), present), Source(OURS, None)).files) == "c"
