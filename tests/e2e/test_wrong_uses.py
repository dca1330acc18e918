"""Uses that nobody should make: right numbers in each, nothing raised, and the user is told what to change.

Others are where their subject is: attached after a compile, twice, before a fork and with a reset
(test_restored), under torchrun and in spawned workers (test_by_name).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import QUICK

from .conftest import Built
from .harness import Ran, run

pytestmark = pytest.mark.compiles


def _use(how: str, place: Path, small: Built, compilers: bool = False, **more: Any) -> Ran:
    variables = {**QUICK, "CACHESVC_TRUSTED_KEYS": small.trusted, **more}
    done = run("wrong.py", how, str(small.bundle), place=place, compilers=compilers, **variables)
    assert "Traceback" not in done.err, done.err
    assert max(done.answer["differences"]) < 1e-5, done.answer
    return done


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["notebook", "thread", "after fork"])
def test_it_is_used_all_the_same_and_hits(tmp_path: Path, small: Built, how: str) -> None:
    """A notebook whose cells are run three times, with resets between; an attach from another thread than
    the one that imports torch; an attach in a child of a process that had imported torch."""
    done = _use(how, tmp_path, small)
    answer = done.answer
    assert (answer["state"], answer["compilations"]) == ("hit", 0) and done.compilers == [], answer
    assert answer["reasons"] == []
    if how == "notebook":
        assert len(answer["differences"]) == 3 and answer["hits"] == 3
        assert answer["sessions"] == 1, "the same attach again is the session that is there"


@pytest.mark.parametrize("how", ["plain", "switched off"])
def test_caches_that_the_user_switched_off_stay_off(tmp_path: Path, small: Built, how: str) -> None:
    """By the variable, and by the setting after the attach."""
    variables = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"} if how == "plain" else {}
    answer = _use(how, tmp_path, small, compilers=True, **variables).answer
    assert answer["state"] == "inert" and answer["compilations"] > 0, answer
    assert any("switched off in this process (force_disable_caches)" in text for text in answer["reasons"])


def test_what_pytorch_caches_nowhere_is_told_in_its_words(tmp_path: Path, small: Built) -> None:
    answer = _use("plain", tmp_path, small, compilers=True, TORCHINDUCTOR_FREEZING="1").answer
    assert answer["state"] in ("inert", "partial") and answer["compilations"] > 0, answer
    [told] = [why for why in answer["reasons"] if "does not cache a graph of this model: Cannot" in why]
    assert told.endswith("compile without freezing")


def _unwritable(folder: Path) -> tuple[str, ...]:
    """Makes it so, and answers what must stand before a command of root's for that to count."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555)
    if os.geteuid() != 0:
        return ()
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("root may write anywhere, and there is no setpriv (util-linux) to give that up")
    return (program, "--bounding-set=-dac_override,-dac_read_search")


def test_the_users_own_warm_cache_stays_as_it_was_and_goes_on_working(tmp_path: Path, small: Built) -> None:
    """Read-only in the end, as in an image."""
    own = tmp_path / "own"
    first = _use("without", tmp_path, small, compilers=True, TORCHINDUCTOR_CACHE_DIR=str(own)).answer
    assert first["graphs"] == 1
    before = _contents(own)
    attached = _use("plain", tmp_path, small, TORCHINDUCTOR_CACHE_DIR=str(own)).answer
    assert (attached["state"], attached["compilations"]) == ("hit", 0)
    without = _use("without", tmp_path, small, compilers=True, TORCHINDUCTOR_CACHE_DIR=str(own)).answer
    assert (without["graphs"], without["hits"]) == (0, 1), without
    after = _contents(own)
    assert before and {path: after.get(path) for path in before} == before
    last = _use("plain", tmp_path, small, before=_unwritable(own), TORCHINDUCTOR_CACHE_DIR=str(own)).answer
    assert (last["state"], last["compilations"], last["reasons"]) == ("hit", 0, []), last


def test_an_empty_cache_folder_that_is_read_only_is_told(tmp_path: Path, small: Built) -> None:
    """PyTorch cannot compile there either, with or without a cache service; the log says where it began."""
    own = tmp_path / "own"
    own.mkdir()
    done = run(
        "wrong.py",
        "plain",
        str(small.bundle),
        place=tmp_path,
        before=_unwritable(own),
        CACHESVC_TRUSTED_KEYS=small.trusted,
        TORCHINDUCTOR_CACHE_DIR=str(own),
        **QUICK,
    )
    assert done.code != 0 and "InductorError: PermissionError" in done.err
    assert f"not restored, this process compiles: install: {own}: Permission denied" in done.err


def test_a_canary_that_is_never_called_is_told(tmp_path: Path, small: Built) -> None:
    done = _use("around the canary", tmp_path, small, CACHESVC_CANARY="1")
    assert done.answer["state"] == "hit", done.answer
    said = "canary: 1 restored graphs were not called through the canary: nothing of them was compared"
    assert done.answer["reasons"] == [said] and done.err.count(said) == 1, done.err
    quiet = _use("plain", tmp_path / "called", small, CACHESVC_CANARY="1")
    assert quiet.answer["reasons"] == [] and "canary" not in quiet.err


def test_without_a_safety_hook_nothing_restored_is_used(tmp_path: Path, small: Built) -> None:
    """As in a torch whose keys are made otherwise: what was installed before torch was imported is taken out
    before the first compile looks for it."""
    done = _use("hook taken out", tmp_path, small, compilers=True)
    assert done.answer["compilations"] > 0 and done.answer["hits"] == 0, done.answer
    said = "hook torch._inductor.codecache.FxGraphHashDetails.__init__ is missing in this torch"
    assert any(said in reason for reason in done.answer["reasons"]), done.answer
    assert done.err.count(said) == 1
