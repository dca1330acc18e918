"""The one claim: a fresh process does not compile. Proven by counting, on a PATH whose compilers only
tell that they were called, and against eager and the builder's own output."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.hooks.child_processes import python_path

from .conftest import Built
from .harness import environment, run

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
    done = _serve(tmp_path, built, f"when={when}")
    answer, seen = done.answer, done.answer["observed"]
    assert answer["state"] == "hit", answer
    assert (seen["compilations"], seen["tuning_runs"], seen["compiler_processes"]) == (0, 0, 0), seen
    assert done.compilers == [] and seen["processes"] == []
    assert seen["aot_hits"] >= 1 and seen["fx_hits"] >= 1
    assert answer["same_as_builder"] and answer["eager_difference"] < 1e-5


@pytest.mark.parametrize("hold", ["", "0"])
def test_the_collector_is_as_it_was(tmp_path: Path, built: Built, hold: str) -> None:
    done = _serve(tmp_path, built, "quiet=1", compilers=False, CACHESVC_HOLD_COLLECTOR=hold)
    seen = done.answer["collector"]
    assert done.answer["state"] == "hit" and seen["numbers"] == seen["before"], done.answer
    assert (seen["held"] > 0.5) is (not hold)


def test_a_process_that_restores_nothing_keeps_its_collector(tmp_path: Path, built: Built) -> None:
    (tmp_path / "none").mkdir()
    done = _serve(
        tmp_path, built, f"bundle={tmp_path / 'none'}", "small=1", compilers=True, TMPDIR=built.headers
    )
    assert done.answer["collector"]["held"] == 0, done.answer


@pytest.mark.parametrize("way", ["auto", "every process"])
def test_a_variable_names_the_bundle_and_no_code_does(tmp_path: Path, built: Built, way: str) -> None:
    """As an image has it: the folder that `pull` filled, and no registry."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    shutil.copy(built.bundle, bundles)
    variables = {"CACHESVC_BUNDLE": str(bundles), "CACHESVC_TRUSTED_KEYS": built.trusted}
    if way != "auto":
        variables["PYTHONPATH"] = python_path(environment(tmp_path)["PYTHONPATH"])
    when = "when=auto" if way == "auto" else "when=never"
    done = run("serve.py", when, f"expect={built.expect}", place=tmp_path, compilers=False, **variables)
    answer, seen = done.answer, done.answer["observed"]
    assert answer["state"] == "hit" and answer["same_as_builder"], (answer, done.err)
    assert (seen["compilations"], seen["processes"], done.compilers) == (0, [], [])


@pytest.fixture
def other_venv(tmp_path: Path) -> Iterator[Path]:
    """This virtual environment under another path: hard links, or links across file systems."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in a virtual environment, so there is none to copy")
    copy = tmp_path / "elsewhere"
    if subprocess.run(["cp", "-al", sys.prefix, copy], capture_output=True, check=False).returncode:
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run(["cp", "-as", sys.prefix, copy], check=True)
    yield copy
    shutil.rmtree(copy)  # else pytest keeps it: as many entries as the environment has files


def test_another_path_of_the_virtual_environment_is_no_other_environment(
    tmp_path: Path, built: Built, other_venv: Path
) -> None:
    """torch's include folders are in PyTorch's own keys of host kernels, not in ours."""
    done = _serve(tmp_path, built, python=str(other_venv / "bin" / "python"))
    answer, seen = done.answer, done.answer["observed"]
    assert Path(answer["torch"]).is_relative_to(other_venv)
    assert answer["state"] == "hit" and answer["same_as_builder"], answer
    assert (seen["compilations"], seen["processes"], done.compilers) == (0, [], [])


def test_without_a_bundle_the_same_process_compiles(tmp_path: Path, built: Built) -> None:
    """The counters can count: otherwise the test above would prove nothing."""
    done = run("serve.py", "when=never", f"expect={built.expect}", place=tmp_path, TMPDIR=built.headers)
    seen = done.answer["observed"]
    assert seen["graphs_compiled"] >= 1 and seen["cpp_builds"] >= 1 and seen["compiler_processes"] >= 1
    assert any(name.endswith("g++") for name in seen["processes"]), seen


def test_a_cache_folder_of_the_users_own_is_used_and_kept(tmp_path: Path, built: Built) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "theirs").write_text("untouched")
    done = _serve(tmp_path, built, TORCHINDUCTOR_CACHE_DIR=str(own))
    assert done.answer["state"] == "hit" and done.compilers == []
    assert (own / "theirs").read_text() == "untouched"
    assert list(own.glob("fxgraph/*/*/*"))


def test_a_capture_holds_what_its_process_produced_or_used_and_nothing_else(
    tmp_path: Path, built: Built
) -> None:
    """Two programs in one folder, as on a developer's machine."""
    shared = tmp_path / "shared"
    shutil.copytree(built.folder, shared)

    def build(*arguments: str) -> set[str]:
        out = tmp_path / "out.cachesvc"
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(shared), "TMPDIR": built.headers}
        done = run("build.py", str(out), str(built.key_file), *arguments, place=tmp_path, **variables)
        assert done.code == 0, done.err[-4000:]
        return built.files(out)

    theirs = built.files(built.bundle)
    produced = build("team/function", "small")
    assert produced and not produced & theirs
    assert all((shared / path.removeprefix("inductor/")).is_file() for path in produced | theirs)
    used = build("team/small")
    assert used == theirs, "what was there already and is used belongs to it, the function's does not"


def test_attached_after_a_compile_serves_the_next_one_and_says_so(tmp_path: Path, built: Built) -> None:
    done = _serve(tmp_path, built, "when=late", compilers=True, TMPDIR=built.headers)
    answer = done.answer
    assert answer["state"] == "hit" and answer["same_as_builder"]
    assert any("before attach" in reason for reason in answer["reasons"])


def test_a_bundle_of_an_unknown_signer_is_refused_and_the_service_runs_on(
    tmp_path: Path, built: Built
) -> None:
    from cachesvc_client.bundle.seal import SigningKey

    other = str(SigningKey.generate().public)
    done = run(
        "serve.py",
        f"bundle={built.bundle}",
        f"expect={built.expect}",
        place=tmp_path,
        CACHESVC_TRUSTED_KEYS=other,
        TMPDIR=built.headers,
    )
    answer = done.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    assert any("trusted" in reason for reason in answer["reasons"]), answer["reasons"]
    assert not list((tmp_path / "home").rglob("fxgraph/*/*/*.so"))


def test_another_isa_is_a_miss_with_a_reason_and_right_numbers(tmp_path: Path, built: Built) -> None:
    done = _serve(tmp_path, built, compilers=True, ATEN_CPU_CAPABILITY="avx2")
    answer = done.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    assert any("cpu_isa" in reason for reason in answer["reasons"]), answer["reasons"]
