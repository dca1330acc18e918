"""Test the CUDA driver's own cache: its folder, which of its files belong to this process, and whether the
driver compiled.

`benchmarks/gpu/ptx.py` shows on a GPU what the driver takes and refuses."""

from __future__ import annotations

import _ctypes
import ctypes
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.kinds import KINDS
from cachesvc_client.kinds.cuda.kind import KIND, CudaState
from cachesvc_client.kinds.folders import Folders
from cachesvc_client.kinds.kind import KindState
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target
from tests.e2e.harness import environment

RESTORED, THERE, MADE = "0/1/6ccdff9c1448c4", "a/2/daf144f9da5951", "f/c/9183179f32b83f"


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(THERE, b"source, compiler, architecture and machine code"),
        Example("0/1/0a67439f97f785", b"another"),
    )
    others = (
        *("index", "a/2/index", "a/2/DAF144F9DA5951", "a/2/../daf144f9da5951", "a/2/daf144f9da5951.tmp"),
        ".cachesvc/2/daf144f9da5951",
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        state.use_folder(root)
        state.accept(root, [THERE])
        return {THERE}


def write_entries(root: Path, *paths: str) -> None:
    for path in (*paths, "index"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())


def test_entries_from_before_the_attach_belong_to_others(tmp_path: Path) -> None:
    state = CudaState()
    write_entries(tmp_path, THERE)
    state.use_folder(tmp_path)
    assert state.used_files(tmp_path) == set()
    write_entries(tmp_path, MADE)
    # Every attach does this again; the entries from before still belong to others.
    state.use_folder(tmp_path)
    assert state.used_files(tmp_path) == {MADE}


def test_a_restored_entry_is_captured_whichever_process_installed_it(tmp_path: Path) -> None:
    state = CudaState()
    write_entries(tmp_path, RESTORED, THERE)
    state.use_folder(tmp_path)
    state.accept(tmp_path, [RESTORED, MADE])
    assert state.used_files(tmp_path) == {RESTORED}, "an entry that the driver has evicted is no file"


def test_a_restored_entry_was_not_compiled_here(tmp_path: Path) -> None:
    state = CudaState()
    state.use_folder(tmp_path)
    state.accept(tmp_path, [RESTORED])
    write_entries(tmp_path, RESTORED, MADE)
    ctypes.CDLL(str(library_of_the_drivers_name(tmp_path)))
    assert state.compiled() == {MADE}


def test_a_folder_with_entries_has_an_index_or_the_driver_would_empty_it(tmp_path: Path) -> None:
    """The test writes an empty index as driver 580 writes one: the format, the number of entries, their bytes
    in all."""
    CudaState().use_folder(tmp_path / "new")
    assert (tmp_path / "new" / "index").read_bytes().hex() == "41000000" + "00" * 12
    write_entries(tmp_path / "old", THERE)
    CudaState().use_folder(tmp_path / "old")
    assert (tmp_path / "old" / "index").read_bytes() == b"index", "the driver's own index stays"
    (tmp_path / "file").touch()
    CudaState().use_folder(tmp_path / "file")  # No folder can be made there: the client logs nothing.


def test_an_absent_folder_holds_no_entries(tmp_path: Path) -> None:
    state = CudaState()
    state.use_folder(tmp_path / "later")
    assert state.used_files(tmp_path / "later") == set()
    write_entries(tmp_path / "later", MADE)
    assert state.used_files(tmp_path / "later") == {MADE}


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KIND.folder.variable, "")  # so that what a test sets is taken back
    monkeypatch.delenv(KIND.folder.variable)


@pytest.mark.usefixtures("unset")
def test_the_driver_gets_a_private_folder_and_loses_it_if_nothing_is_restored(tmp_path: Path) -> None:
    folders = Folders(KINDS)
    folders.settle_early(lambda _: tmp_path / "private")
    assert os.environ[KIND.folder.variable] == str(tmp_path / "private")
    folders.leave_early()
    assert KIND.folder.variable not in os.environ


@pytest.mark.usefixtures("unset")
def test_a_folder_that_the_user_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KIND.folder.variable, str(tmp_path / "mine"))
    folders = Folders(KINDS)
    folders.settle_early(lambda _: tmp_path / "private")
    folders.settle(lambda: tmp_path / "others")
    assert folders.roots()[KIND.name] == tmp_path / "mine"
    folders.leave_early()
    assert os.environ[KIND.folder.variable] == str(tmp_path / "mine")


PROGRAM = """
import ctypes, json, os, sys
import cachesvc_client
if os.environ["DRIVER"]:
    ctypes.CDLL(os.environ["DRIVER"])
session = cachesvc_client.attach(bundle=sys.argv[1])
assert session.wait(60), session.status
quiet = cachesvc_client.report().reasons
for path in sys.argv[2:]:
    made = os.path.join(os.environ["CUDA_CACHE_PATH"], path)
    os.makedirs(os.path.dirname(made))
    open(made, "wb").write(b"made")  # as a library does
captured = [f"{file.kind}/{file.path}" for file in session.capture()]
print(json.dumps({
    "folder": os.environ["CUDA_CACHE_PATH"],
    "captured": captured,
    "status": session.status,
    "quiet": quiet,
    "reasons": cachesvc_client.report().reasons,
}))
"""


def library_of_the_drivers_name(folder: Path) -> Path:
    library = folder / "libcuda.so.1"
    library.write_bytes(Path(_ctypes.__file__).read_bytes())
    return library


def start(tmp_path: Path, driver: str = "", loads: bool = True, **variables: str) -> dict[str, Any]:
    """Start a process that restores a bundle with one entry and makes another entry.

    ``driver``: the driver version of the bundle. ``loads``: whether the process has a library of the driver's
    name."""
    key, bundle = SigningKey.generate(), tmp_path / "one.cachesvc"
    variables["DRIVER"] = str(library_of_the_drivers_name(tmp_path)) if loads else ""
    environ = environment(tmp_path, CACHESVC_TRUSTED_KEYS=str(key.public), **variables)
    draft = Draft(
        name=Name.parse("team/one"),
        target=Target("one"),
        fingerprint=detect(environ) | ({"driver": driver} if driver else {}),
        workload=Workload(script=Digest.of(b"one")),
        scopes=("host",),
    )
    build_bundle([SourceFile(KIND.name, RESTORED, b"machine code")], draft, key, bundle)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(bundle), MADE],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_process_restores_into_a_folder_of_its_user_alone(tmp_path: Path) -> None:
    answer = start(tmp_path)
    folder = Path(answer["folder"])
    assert answer["status"] == "restored" and folder.is_relative_to(tmp_path / "home")
    assert (folder / RESTORED).read_bytes() == b"machine code"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("loads", [True, False], ids=["with the driver", "without the driver"])
def test_what_appears_in_the_folder_is_not_known_as_the_processs_own(tmp_path: Path, loads: bool) -> None:
    """No library says what it made, and another process of the user could have put it there: never signed."""
    assert start(tmp_path, loads=loads)["captured"] == [f"cuda/{RESTORED}"]


def test_a_process_restores_into_the_folder_that_its_user_set(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write_entries(mine, THERE)
    answer = start(tmp_path, CUDA_CACHE_PATH=str(mine))
    assert answer["folder"] == str(mine)
    assert (mine / RESTORED).read_bytes() == b"machine code"
    assert answer["captured"] == [f"cuda/{RESTORED}"]


@pytest.mark.parametrize(("driver", "why"), [("570.1", "are of driver 570.1"), ("", "(cwd in the spec)")])
def test_the_reason_for_a_librarys_compile_is_reported(tmp_path: Path, driver: str, why: str) -> None:
    answer = start(tmp_path, driver)
    assert answer["quiet"] == [], "nothing was compiled until then"
    assert [why in reason and reason.startswith("1 kernel ") for reason in answer["reasons"]] == [True]
