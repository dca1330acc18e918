"""Start services whose folder of compiled code is moved, emptied or removed while they run: by the program's
own settings, by PyTorch's ``fresh_cache``, by a cleaner. The program's settings win, the report names the
cause, and what is left is published."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Built
from .harness import SCALAR, ProgramResult, run
from .registries import Served, wait_for
from .test_as_you_go import READWRITE, service

pytestmark = pytest.mark.compiles
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def move(tmp_path: Path, small: Built, how: str, **variables: str) -> ProgramResult:
    words = (f"bundle={small.bundle}", f"how={how}", f"folder={tmp_path}/own")
    trusted = {"CACHESVC_TRUSTED_KEYS": small.trusted}
    return run("moved_folder.py", *words, place=tmp_path, prepared=True, **{**SCALAR, **trusted, **variables})


@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_folder_that_the_program_names_after_attach_stays_the_programs(
    tmp_path: Path, small: Built, how: str
) -> None:
    answer = move(tmp_path, small, how).answer
    own = str(tmp_path / "own")
    assert answer["variable"] == own and list(Path(own).rglob("*.so")), "it compiles where it said"
    assert answer["state"] == "inert" and answer["difference"] < 1e-5
    assert answer["reasons"][0].startswith(
        f"1 graph compiled in a folder that the program chose after attach ({VARIABLE}={own}): "
    )
    assert answer["line"].count(own) == 1, "the first reason is in the log's line"


def test_a_relative_folder_is_that_of_the_time_of_attach(tmp_path: Path, small: Built) -> None:
    stays = move(tmp_path / "stays", small, "nothing", **{VARIABLE: "mine"}).answer
    assert (stays["state"], stays["reasons"]) == ("hit", [])
    moved = move(tmp_path / "moved", small, "chdir", **{VARIABLE: "mine"}).answer
    elsewhere = tmp_path / "moved" / "own" / "mine"
    assert moved["state"] == "inert" and f"({VARIABLE}={elsewhere})" in moved["reasons"][0]
    assert moved["variable"] == str(elsewhere)
    assert list((tmp_path / "moved" / "work" / "mine").glob("fxgraph/*")), "restored where it was named"


def test_a_fresh_cache_is_cold(tmp_path: Path, small: Built) -> None:
    """What is restored is in no block of PyTorch's that measures a cold compile."""
    answer = move(tmp_path, small, "fresh_cache").answer
    assert answer["state"] == "inert" and answer["cpp_builds"] > 0
    assert "/cachesvc/v1/folders/" in answer["variable"], "PyTorch has set it back"
    assert f"({VARIABLE}={tmp_path}/tmp/" in answer["reasons"][0]


@pytest.mark.parametrize("how", ["cleaned", "removed"])
def test_restored_files_that_vanish_are_named_and_the_next_start_heals(
    tmp_path: Path, small: Built, how: str
) -> None:
    answer = move(tmp_path, small, how).answer
    assert answer["state"] == "inert" and answer["difference"] < 1e-5
    [reason] = answer["reasons"]
    assert " restored files vanished after the install, such as " in reason
    assert move(tmp_path, small, "nothing").answer["state"] == "hit"


@pytest.mark.parametrize("how", ["fresh_cache", "cleaned after"])
def test_what_has_vanished_is_left_out_of_a_publication_and_the_rest_is_published(
    tmp_path: Path, registry: Served, how: str
) -> None:
    name = f"team/{how.replace(' ', '-')}"
    words = (f"name={name}", f"how={how}", "again=1", "publish=1")
    mode = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "0"}
    variables = {**SCALAR, **registry.publisher, **mode}
    first = run("moved_folder.py", *words, place=tmp_path / "first", prepared=True, **variables)
    assert "published" in first.answer, first.answer
    reader = {**SCALAR, **registry.variables}
    words = (f"name={name}", "small=1", "batch=6")
    second = run("serve.py", *words, place=tmp_path / "second", compilers=False, prepared=True, **reader)
    assert second.answer["state"] == "hit", second.answer


def test_a_publication_that_failed_is_one_warning_and_comes_with_the_next(
    tmp_path: Path, registry: Served
) -> None:
    """A cleaner removes TMPDIR, in which the bundle is made."""
    with service(tmp_path, "team/survives", **registry.publisher, **READWRITE) as one:
        one.ask(4)
        shutil.rmtree(tmp_path / "tmp")
        [line] = wait_for(lambda: [line for line in one.lines() if "not published" in line["message"]])
        assert line["level"] == "warning" and "it is tried again: " in line["message"]
        (tmp_path / "tmp").mkdir()
        one.ask(6)
        wait_for(lambda: one.lines("published"))
        assert len([line for line in one.lines() if "not published" in line["message"]]) == 1
