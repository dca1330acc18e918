"""Test how a process of `warm` names its files, which files it captures, and what identifies a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachesvc.warm.spec.plan import Job, plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.cache_files import capture_files, name_files
from cachesvc.warm.worker.execution import script_digest
from cachesvc.warm.worker.main import perform
from cachesvc.warm.worker.phase import PhaseRequest
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.wire.errors import Unsupported
from tests.environment.test_cpu_flags import record

KEY = "7P335DUZQWC3FD5RRF4O6ZXEG2U3NY34Z46BPF4ZH7D226SIEGZA"


def test_a_file_belongs_to_the_innermost_kind(tmp_path: Path) -> None:
    roots = {"inductor": tmp_path / "i", "triton": tmp_path / "i/triton/0"}
    paths = [tmp_path / "i/aa/a", tmp_path / f"i/triton/0/{KEY}/k.cubin", tmp_path / "elsewhere"]
    assert name_files(roots, paths) == {"inductor/aa/a", f"triton/{KEY}/k.cubin"}


def test_a_file_that_an_entry_holds_is_not_captured_beside_it(tmp_path: Path) -> None:
    class Session:
        def capture(self, whole: bool) -> list[SourceFile]:
            assert whole
            paths = (f"{KEY}/k.cubin", f"{KEY}/k.ptx")
            return [SourceFile("triton", path, b"bytes", 0o644) for path in paths]

    session: Any = Session()
    capture = capture_files(session, tmp_path / "stage", [f"triton/{KEY}/k.ptx"])
    assert [file.name for file in capture] == [f"triton/{KEY}/k.cubin"]
    assert [path.name for path in (tmp_path / "stage").rglob("*.*")] == ["k.cubin"]


SCRIPT = 'name = "a/b"\n[[target]]\nid = "x"\nscript = "it.py"\nargs = ["{}"]\nfiles = ["data"]\n'


def script_job(folder: Path, script: str = "print()", argument: str = "-x", data: str = "1") -> Job:
    folder.mkdir()
    (folder / "it.py").write_text(script)
    (folder / "data").write_text(data)
    (job,) = plan(parse_spec(SCRIPT.format(argument), folder / "w.toml"))
    return job


def test_a_script_is_identified_by_its_bytes_its_options_and_its_files(tmp_path: Path) -> None:
    digest = script_digest(script_job(tmp_path / "1"))
    assert digest == script_digest(script_job(tmp_path / "elsewhere"))
    assert digest != script_digest(script_job(tmp_path / "2", script="print(1)"))
    assert digest != script_digest(script_job(tmp_path / "3", argument="-y"))
    assert digest != script_digest(script_job(tmp_path / "4", data="2"))


ENDING = """
import atexit, sys, threading, time
from cachesvc.warm.worker import main as worker

def work(arguments):
    atexit.register(print, "exit function")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("work")
    return 7

class Left:
    def __del__(self): print("taken apart")

left = Left()
worker.run_to_the_end(work)
"""


def test_a_worker_ends_with_its_threads_and_exit_functions_and_is_not_taken_apart() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == ["work", "thread", "exit function"], ended.stderr
    assert ended.returncode == 7


@pytest.mark.parametrize("torch", ["2.12.1+cpu", "2.99.0"])
def test_a_level_is_refused_where_torch_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str
) -> None:
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text(f"__version__ = {torch!r}\n")
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    (tmp_path / "it.py").write_text("print()")
    text = 'name = "a/b"\n[[target]]\nid = "x"\nscript = "it.py"\nmarch = "x86-64-v3"\n'
    (job,) = plan(parse_spec(text, tmp_path / "w.toml"))
    result = perform(PhaseRequest("eager", job))
    assert result.error.startswith(f'march = "x86-64-v3": torch {torch} compiles for the CPU that it runs on')


def test_a_level_that_this_builder_lacks_is_one_line_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each level is a process of its own, so one that fails ends no other."""
    (tmp_path / "it.py").write_text("print()")
    text = 'name = "a/b"\n[[target]]\nid = "x"\nscript = "it.py"\nmarch = ["x86-64-v4", "x86-64-v3"]\n'
    jobs = plan(parse_spec(text, tmp_path / "w.toml"))
    monkeypatch.setattr("cachesvc_client.environment.cpu.read_cpuinfo", lambda: record("haswell"))
    monkeypatch.setattr("cachesvc_client.environment.releases.torch", lambda: ("2.13.0+cpu", None))
    fourth, third = (perform(PhaseRequest("eager", job)) for job in jobs)
    assert fourth.error.startswith('march = "x86-64-v4": this CPU lacks avx512bw, avx512cd, avx512dq')
    assert "\n" not in fourth.error and fourth.error_status == Unsupported.exit_status
    assert third.error == ""
