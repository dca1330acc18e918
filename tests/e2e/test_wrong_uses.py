"""Test uses of the client that nobody should make: the numbers are right in each, nothing raises, and the
user learns what to change.

Other files test related uses: attached after a compile, twice, before a fork and with a reset
(test_restored); under torchrun and in spawned workers (test_by_name)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import Built
from .harness import SCALAR, ProgramResult, run

pytestmark = pytest.mark.compiles

FLAG = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"


def _use(how: str, place: Path, small: Built, compilers: bool = False, **more: Any) -> ProgramResult:
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": small.trusted, **more}
    result = run("wrong.py", how, str(small.bundle), place=place, compilers=compilers, **variables)
    assert "Traceback" not in result.err, result.err
    assert max(result.answer["differences"]) < 1e-5, result.answer
    return result


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["notebook", "thread", "after fork"])
def test_an_unusual_use_works_and_hits(tmp_path: Path, small: Built, how: str) -> None:
    """The uses are a notebook whose cells are run three times, with resets between; an attach from another
    thread than the one that imports torch; and an attach in a child of a process that had imported torch."""
    result = _use(how, tmp_path, small)
    answer = result.answer
    assert (answer["state"], answer["compilations"]) == ("hit", 0) and result.compilers == [], answer
    assert answer["reasons"] == []
    if how == "notebook":
        assert len(answer["differences"]) == 3 and answer["hits"] == 3
        assert answer["sessions"] == 1, "a second attach of the same name returns the same session"


@pytest.mark.parametrize("how", ["plain", "switched off"])
def test_caches_that_the_user_switched_off_stay_off(tmp_path: Path, small: Built, how: str) -> None:
    """The test switches the caches off by the variable, and by the setting after the attach."""
    variables = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"} if how == "plain" else {}
    answer = _use(how, tmp_path, small, compilers=True, prepared=how != "plain", **variables).answer
    assert answer["state"] == "inert" and answer["compilations"] > 0, answer
    assert any("switched off in this process (force_disable_caches)" in text for text in answer["reasons"])


def test_a_graph_that_pytorch_does_not_cache_is_reported_in_pytorchs_words(
    tmp_path: Path, small: Built
) -> None:
    answer = _use("plain", tmp_path, small, compilers=True, TORCHINDUCTOR_FREEZING="1").answer
    assert answer["state"] in ("inert", "partial") and answer["compilations"] > 0, answer
    [reason] = [why for why in answer["reasons"] if "does not cache a graph of this model: Cannot" in why]
    assert reason.endswith("compile without freezing")


def test_a_custom_function_without_pytorchs_flag_names_it_after_what_was_compiled_for(
    tmp_path: Path, small: Built
) -> None:
    """Without the flag PyTorch traces the function at each start, and finds its graphs all the same: what
    was compiled was compiled for another reason."""
    answer = _use("autograd function", tmp_path, small, compilers=True, prepared=True).answer
    assert answer["state"] in ("inert", "partial") and answer["compilations"] > 0, answer
    named = [f"{FLAG}=1" in why for why in answer["reasons"]]
    assert named.count(True) == 1 and named.index(True) > 0, answer["reasons"]
    options = {"compilers": True, "prepared": True, FLAG: "1"}
    flagged = _use("autograd function", tmp_path / "flag", small, **options)
    assert not any("does not cache a graph" in why for why in flagged.answer["reasons"])


def _unwritable(folder: Path) -> tuple[str, ...]:
    """Make the folder unwritable. Return the words that must stand before a command of root's, who may write
    anyway."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555)
    if os.geteuid() != 0:
        return ()
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("root may write anywhere, and there is no setpriv (util-linux) to give that up")
    return (program, "--bounding-set=-dac_override,-dac_read_search")


def test_the_users_own_warm_cache_stays_as_it_was_and_goes_on_working(tmp_path: Path, small: Built) -> None:
    """The folder is read-only in the end, as in an image."""
    own = tmp_path / "own"
    own_folder: dict[str, Any] = {"TORCHINDUCTOR_CACHE_DIR": str(own), "prepared": True}
    first = _use("without", tmp_path, small, compilers=True, **own_folder).answer
    assert first["graphs"] == 1
    before = _contents(own)
    attached = _use("plain", tmp_path, small, **own_folder).answer
    assert (attached["state"], attached["compilations"]) == ("hit", 0)
    without = _use("without", tmp_path, small, compilers=True, **own_folder).answer
    assert (without["graphs"], without["hits"]) == (0, 1), without
    after = _contents(own)
    assert before and {path: after.get(path) for path in before} == before
    last = _use("plain", tmp_path, small, before=_unwritable(own), TORCHINDUCTOR_CACHE_DIR=str(own)).answer
    assert (last["state"], last["compilations"], last["reasons"]) == ("hit", 0, []), last


def test_an_empty_cache_folder_that_is_read_only_is_reported(tmp_path: Path, small: Built) -> None:
    """PyTorch cannot compile there either, with or without a cache service; the log names the folder."""
    own = tmp_path / "own"
    own.mkdir()
    result = run(
        "wrong.py",
        "plain",
        str(small.bundle),
        place=tmp_path,
        before=_unwritable(own),
        CACHESVC_TRUSTED_KEYS=small.trusted,
        TORCHINDUCTOR_CACHE_DIR=str(own),
        **SCALAR,
    )
    assert result.code != 0 and "InductorError: PermissionError" in result.err
    assert f"not restored, this process compiles: install: {own}: Permission denied" in result.err


def test_a_canary_that_is_never_called_is_reported(tmp_path: Path, small: Built) -> None:
    result = _use("around the canary", tmp_path, small, prepared=True, CACHESVC_CANARY="1")
    assert result.answer["state"] == "hit", result.answer
    expected = "canary: 1 restored graphs were not called through the canary: nothing of them was compared"
    assert result.answer["reasons"][0] == expected and result.err.count(expected) == 1, result.err
    quiet = _use("plain", tmp_path / "called", small, prepared=True, CACHESVC_CANARY="1")
    assert quiet.answer["reasons"] == [] and "canary" not in quiet.err


def test_restored_files_are_not_used_without_a_safety_hook(tmp_path: Path, small: Built) -> None:
    """Another torch may make its keys otherwise: files that were installed before the import of torch are
    removed before the first compile looks for them."""
    result = _use("hook taken out", tmp_path, small, compilers=True)
    assert result.answer["compilations"] > 0 and result.answer["hits"] == 0, result.answer
    expected = "hook torch._inductor.codecache.FxGraphHashDetails.__init__ is missing in this torch"
    assert any(expected in reason for reason in result.answer["reasons"]), result.answer
    assert result.err.count(expected) == 1
