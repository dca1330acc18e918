"""Start services on hosts as they are: where a folder of cachesvc can do less than PyTorch's own, the service
does what it does without cachesvc."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import tmpfs

from .conftest import Built
from .harness import SCALAR, ProgramResult, environment, run

pytestmark = pytest.mark.compiles

NOWHERE = "http://127.0.0.1:9"
HOMES = ["a b", "it's", "a$b", 'a"b', "a;b", "noexec", "full"]


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def make(mounts: ExitStack, tmp_path: Path, kind: str) -> Path:
    """Make a folder of this kind: a mount, or one with a name that a command line does not take."""
    options = {"noexec": "noexec", "full": "size=60k"}.get(kind)
    folder = tmp_path / "host" / kind
    if options is None:
        folder.mkdir(parents=True)
        return folder
    return mounts.enter_context(tmpfs(folder, options))


def serve(tmp_path: Path, *arguments: str, compilers: bool = True, **variables: str) -> ProgramResult:
    return run(
        "serve.py",
        "small=1",
        *arguments,
        place=tmp_path,
        prepared=True,
        compilers=compilers,
        **{**SCALAR, "CACHESVC_LOG": "info", **variables},
    )


def serve_alone(tmp_path: Path, small: Built, **more: Any) -> ProgramResult:
    """Run a service of a bundle in an interpreter of its own, which can have a launcher of its own too."""
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": small.trusted, **more}
    return run("serve.py", "small=1", f"bundle={small.bundle}", place=tmp_path, **variables)


def own_store(tmp_path: Path) -> Path:
    return tmp_path / "tmp" / f"cachesvc-{os.geteuid()}"


@pytest.mark.parametrize("kind", HOMES)
def test_with_nothing_published_the_service_compiles(tmp_path: Path, mounts: ExitStack, kind: str) -> None:
    home = make(mounts, tmp_path, kind)
    result = serve(tmp_path, "name=team/nothing", HOME=str(home), CACHESVC_URL=NOWHERE)
    assert result.answer["eager_difference"] < 1e-5, result.err[-2000:]
    assert f"node store {home}/.cache/cachesvc: " in result.err
    assert f"; {own_store(tmp_path)} is used" in result.err
    assert list(own_store(tmp_path).glob("v1/folders/*/inductor/*")), "it compiles in the next folder"
    assert not (home / ".cache").exists()


@pytest.mark.parametrize("kind", ["a b", "noexec", "full"])
@pytest.mark.parametrize("setting", ["HOME", "CACHESVC_STORE"])
def test_what_is_published_is_restored_into_the_next_folder(
    tmp_path: Path, mounts: ExitStack, small: Built, kind: str, setting: str
) -> None:
    folder = make(mounts, tmp_path, kind)
    variables = {setting: str(folder), "CACHESVC_TRUSTED_KEYS": small.trusted, "CACHESVC_LOG": "warning"}
    result = serve(tmp_path, f"bundle={small.bundle}", compilers=False, **variables)
    assert result.answer["state"] == "hit", (result.answer, result.err[-2000:])
    assert result.answer["observed"]["compilations"] == 0
    warned = [line for line in result.err.splitlines() if "is not used" in line or "node store" in line]
    assert len(warned) == (setting == "CACHESVC_STORE"), "a store that nobody named is said at info"
    step = {"a b": "path", "noexec": "load", "full": "room"}[kind]
    assert all(f"CACHESVC_STORE is not used: node store {folder}: {step}: " in line for line in warned)


@pytest.mark.parametrize("kind", ["it's", "noexec", "full"])
def test_what_is_missing_from_a_restored_entry_is_compiled(
    tmp_path: Path, mounts: ExitStack, small: Built, kind: str
) -> None:
    home = make(mounts, tmp_path, kind)
    variables = {"HOME": str(home), "CACHESVC_TRUSTED_KEYS": small.trusted}
    result = serve(tmp_path, f"bundle={small.bundle}", "grad=1", **variables)
    assert result.answer["eager_difference"] < 1e-5 and result.answer["installed"] == 1
    assert result.answer["observed"]["compilations"] > 0


def test_where_no_folder_passes_torch_stays_in_its_own(tmp_path: Path, small: Built) -> None:
    home = tmp_path / "a b"
    home.mkdir()
    own_store(tmp_path).parent.mkdir()
    own_store(tmp_path).write_text("a file")
    variables = {"HOME": str(home), "CACHESVC_TRUSTED_KEYS": small.trusted}
    result = serve(tmp_path, f"bundle={small.bundle}", **variables)
    assert result.answer["state"] == "miss" and result.answer["eager_difference"] < 1e-5
    assert (tmp_path / "tmp" / "torchinductor_somebody").is_dir()
    [line] = [line for line in result.err.splitlines() if "not restored, " in line]
    assert f"{home}/.cache/cachesvc: path: " in line and f"{own_store(tmp_path)}: " in line
    assert any("no folder can be used" in reason for reason in result.answer["reasons"])


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", '#!/bin/sh\nexec /absent/g++ "$@"\n'])
def test_a_compiler_that_cannot_run_keeps_nothing_from_being_restored(
    tmp_path: Path, small: Built, text: str
) -> None:
    compiler = tmp_path / "trap" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(text)
    compiler.chmod(0o755)
    variables = {"CACHESVC_TRUSTED_KEYS": small.trusted}
    result = serve(tmp_path, f"bundle={small.bundle}", compilers=False, **variables)
    assert result.answer["state"] == "hit", (result.answer, result.err[-2000:])
    assert result.answer["observed"]["compilations"] == 0


def test_a_process_with_little_around_it_restores(tmp_path: Path, small: Built) -> None:
    """64 open files, no docstrings, no assertions, no folder of the script on the path, an ASCII locale."""
    if (limit := shutil.which("prlimit")) is None:
        pytest.skip("no prlimit (util-linux)")
    launched = {"before": (limit, "--nofile=64"), "launcher": ("-OO",)}
    result = serve_alone(tmp_path, small, compilers=False, **launched, PYTHONSAFEPATH="1", LC_ALL="C")
    assert result.answer["state"] == "hit" and result.answer["reasons"] == [], result.err[-2000:]


@pytest.mark.parametrize("years", [1, -1])
def test_a_store_that_was_written_under_another_clock_restores(
    tmp_path: Path, small: Built, years: int
) -> None:
    """The clock was set back by a year, or ahead: every file is of the future, or old."""
    variables = {"CACHESVC_TRUSTED_KEYS": small.trusted}
    for start in ("before", "after"):
        result = serve(tmp_path, f"bundle={small.bundle}", compilers=False, **variables)
        answer = result.answer
        assert (answer["state"], answer["reasons"]) == ("hit", []), (start, answer, result.err[-2000:])
        moment = time.time() + years * 365 * 86400
        for folder in (tmp_path / "home", tmp_path / "tmp"):
            for path in [folder, *folder.rglob("*")]:
                os.utime(path, (moment, moment), follow_symlinks=False)


def test_with_a_space_in_every_path_the_service_restores(tmp_path: Path, small: Built) -> None:
    """PyTorch alone compiles nothing there, since its own folder is in TMPDIR."""
    home, temporary = tmp_path / "my home", tmp_path / "my tmp"
    home.mkdir()
    temporary.mkdir()
    unshare, mount, shell = (str(shutil.which(name)) for name in ("unshare", "mount", "sh"))
    private = (unshare, "--mount", shell, "-c", f'{mount} -t tmpfs tmpfs /var/tmp && exec "$@"', "sh")
    if os.geteuid() != 0 or subprocess.run([*private, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    variables = {"CACHESVC_STORE": str(tmp_path / "my store"), "HOME": str(home), "TMPDIR": str(temporary)}
    result = serve_alone(tmp_path, small, compilers=False, before=private, **variables)
    answer = result.answer
    assert answer["state"] == "hit" and answer["observed"]["compilations"] == 0, result.err[-2000:]
    [reason] = answer["reasons"]
    assert reason.startswith(f"CACHESVC_STORE is not used: node store {tmp_path}/my store: path: ")


def test_a_frozen_program_is_left_alone_with_one_reason(tmp_path: Path, small: Built) -> None:
    """PyInstaller and cx_Freeze set ``sys.frozen``. With PyInstaller, names of files in torch's code are not
    those of its files, so that all of torch looked replaced, and was read for minutes."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.frozen = True\n")
    paths = os.pathsep.join((str(site), environment(tmp_path)["PYTHONPATH"]))
    result = serve_alone(tmp_path, small, PYTHONPATH=paths)
    answer = result.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    [reason] = answer["reasons"]
    assert "not usable: this program is frozen" in reason
