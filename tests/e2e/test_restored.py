"""Test that a fresh process does not compile.

The tests count compiles, on a PATH whose compilers only record that they were called, and compare with eager
and with the builder's own output."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.hooks.child_processes import python_path

from .conftest import Built
from .harness import SCALAR, environment, run

pytestmark = pytest.mark.compiles


def _serve(place: Path, built: Built, *arguments: str, compilers: bool = False, **more: str):
    return run(
        "serve.py",
        f"bundle={built.bundle}",
        f"expect={built.expect}",
        *arguments,
        place=place,
        compilers=compilers,
        CACHESVC_TRUSTED_KEYS=built.trusted,
        **more,
    )


@pytest.mark.parametrize("when", ["before", "after", "twice", "fork", "reset"])
def test_a_fresh_process_does_not_compile(tmp_path: Path, built: Built, when: str) -> None:
    result = _serve(tmp_path, built, f"when={when}")
    answer, observed = result.answer, result.answer["observed"]
    assert answer["state"] == "hit", answer
    assert (observed["compilations"], observed["tuning_runs"], observed["compiler_processes"]) == (0, 0, 0), (
        observed
    )
    assert result.compilers == [] and observed["processes"] == []
    assert observed["torch"]["aot_hits"] >= 1 and observed["torch"]["fx_hits"] >= 1
    assert answer["same_as_builder"] and answer["eager_difference"] < 1e-5


@pytest.mark.parametrize("hold", ["", "0"])
def test_the_collector_is_restored_to_its_settings(tmp_path: Path, built: Built, hold: str) -> None:
    result = _serve(tmp_path, built, "quiet=1", compilers=False, CACHESVC_HOLD_COLLECTOR=hold)
    collector = result.answer["collector"]
    assert result.answer["state"] == "hit" and collector["numbers"] == collector["before"], result.answer
    assert (collector["held"] > 0.5) is (not hold)


def test_a_process_that_restores_nothing_keeps_its_collector(tmp_path: Path, small: Built) -> None:
    (tmp_path / "none").mkdir()
    result = _serve(tmp_path, small, f"bundle={tmp_path / 'none'}", "small=1", compilers=True, **SCALAR)
    assert result.answer["collector"]["held"] == 0, result.answer


@pytest.mark.parametrize("way", ["auto", "every process"])
def test_a_variable_names_the_bundle_without_a_change_of_code(tmp_path: Path, built: Built, way: str) -> None:
    """An image works like this: it has the folder that `pull` filled, and no registry."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    shutil.copy(built.bundle, bundles)
    variables = {"CACHESVC_BUNDLE": str(bundles), "CACHESVC_TRUSTED_KEYS": built.trusted}
    if way != "auto":
        variables["PYTHONPATH"] = python_path(environment(tmp_path)["PYTHONPATH"])
    when = "when=auto" if way == "auto" else "when=never"
    result = run("serve.py", when, f"expect={built.expect}", place=tmp_path, compilers=False, **variables)
    answer, observed = result.answer, result.answer["observed"]
    assert answer["state"] == "hit" and answer["same_as_builder"], (answer, result.err)
    assert (observed["compilations"], observed["processes"], result.compilers) == (0, [], [])


@pytest.fixture
def other_venv(tmp_path: Path) -> Iterator[Path]:
    """Copy this virtual environment to another path, by hard links, or by symbolic links across file
    systems."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in a virtual environment, so there is none to copy")
    copy = tmp_path / "elsewhere"
    if subprocess.run(["cp", "-al", sys.prefix, copy], capture_output=True, check=False).returncode:
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run(["cp", "-as", sys.prefix, copy], check=True)
    yield copy
    shutil.rmtree(copy)  # Otherwise pytest keeps the copy, with as many files as the environment has.


def test_another_path_of_the_virtual_environment_counts_as_the_same_environment(
    tmp_path: Path, built: Built, other_venv: Path
) -> None:
    """torch's include folders are in PyTorch's own keys of host kernels, and not in the fingerprint."""
    result = _serve(tmp_path, built, python=str(other_venv / "bin" / "python"))
    answer, observed = result.answer, result.answer["observed"]
    assert Path(answer["torch"]).is_relative_to(other_venv)
    assert answer["state"] == "hit" and answer["same_as_builder"], answer
    assert (observed["compilations"], observed["processes"], result.compilers) == (0, [], [])


def test_without_a_bundle_the_same_process_compiles(tmp_path: Path) -> None:
    """The counters can count: otherwise the tests above would prove nothing."""
    result = run("serve.py", "when=never", "small=1", place=tmp_path, **SCALAR)
    observed = result.answer["observed"]
    assert (
        observed["torch"]["graphs_compiled"] >= 1
        and observed["torch"]["cpp_builds"] >= 1
        and observed["compiler_processes"] >= 1
    )
    assert any(name.endswith("g++") for name in observed["processes"]), observed


def test_a_cache_folder_of_the_users_own_is_used_and_kept(tmp_path: Path, built: Built) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "theirs").write_text("untouched")
    result = _serve(tmp_path, built, TORCHINDUCTOR_CACHE_DIR=str(own))
    assert result.answer["state"] == "hit" and result.compilers == []
    assert (own / "theirs").read_text() == "untouched"
    assert list(own.glob("fxgraph/*/*/*"))


def test_a_capture_holds_exactly_the_files_that_its_process_produced(tmp_path: Path, built: Built) -> None:
    """Two programs use one folder, as on a developer's machine. What a process found there is of unknown
    origin, and nothing that it could sign."""
    shared = tmp_path / "shared"
    shutil.copytree(built.folder, shared)

    out = tmp_path / "out.cachesvc"

    def build(*arguments: str) -> Any:
        command = ("build.py", str(out), str(built.key_file), *arguments)
        return run(*command, place=tmp_path, prepared=True, TORCHINDUCTOR_CACHE_DIR=str(shared))

    theirs = built.files(built.bundle)
    made = build("team/function", "small")
    assert made.code == 0, made.err[-4000:]
    produced = built.files(out)
    assert produced and not produced & theirs
    assert all((shared / path.removeprefix("inductor/")).is_file() for path in produced | theirs)
    found = build("team/small")
    assert found.code == 1 and "nothing was compiled, so there is nothing to publish" in found.err


def test_an_attach_after_a_compile_serves_the_next_compile_and_says_so(tmp_path: Path, built: Built) -> None:
    result = _serve(tmp_path, built, "when=late", compilers=True)
    answer = result.answer
    assert answer["state"] == "hit" and answer["same_as_builder"]
    assert any("before attach" in reason for reason in answer["reasons"])


def test_a_bundle_of_an_unknown_signer_is_refused_and_the_service_runs_on(
    tmp_path: Path, small: Built
) -> None:
    from cachesvc_client.bundle.seal import SigningKey

    other = str(SigningKey.generate().public)
    result = run(
        "serve.py",
        f"bundle={small.bundle}",
        "small=1",
        place=tmp_path,
        prepared=True,
        CACHESVC_TRUSTED_KEYS=other,
        **SCALAR,
    )
    answer = result.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    assert any("trusted" in reason for reason in answer["reasons"]), answer["reasons"]
    assert not list((tmp_path / "home").rglob("fxgraph/*/*/*.so"))


def test_workers_that_are_forked_right_after_attach_restore(tmp_path: Path, small: Built) -> None:
    """The thread of the restore imports then; a child would wait for ever for the lock of such a module."""
    for number in range(2):
        given = {**SCALAR, "CACHESVC_TRUSTED_KEYS": small.trusted}
        result = run("early_fork.py", str(small.bundle), place=tmp_path / str(number), **given)
        lines = result.out.splitlines()
        assert result.code == 0 and len(lines) == 2, result
        assert all(line.startswith("True restored hit: 0 compilations") for line in lines), lines
