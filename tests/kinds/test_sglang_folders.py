"""Test that a folder which SGLang chose is no folder of the user's.

`tests/engines` has SGLang's own module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cachesvc_client import kinds
from cachesvc_client.kinds import KINDS
from cachesvc_client.kinds.folders import Folders, chosen_by_sglang

CHOSEN = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "nv",
    "TILELANG_CACHE_DIR": "tilelang",
}


@pytest.fixture
def redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that does what ``import sglang`` does."""
    defaults = {name: str(tmp_path / "sglang" / folder) for name, folder in CHOSEN.items()}
    for name in kinds.VARIABLES:
        monkeypatch.setenv(name, "")  # The fixture restores the variables that the test sets below.
        monkeypatch.delenv(name)
    module = ModuleType("sglang.srt.environ")
    vars(module).update(third_party_cache_defaults=lambda: defaults)

    def run() -> None:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for name, value in defaults.items():
            os.environ.setdefault(name, value)

    return run


def settled(place: Path) -> Folders:
    folders = Folders(KINDS)
    folders.settle_early(lambda name: place / "early" / name)
    folders.settle(lambda: place / "v1" / "folders" / ("0a" * 32))
    return folders


def test_private_folders_are_used_after_sglang_named_its_own(
    tmp_path: Path, redirect: Callable[[], None]
) -> None:
    redirect()
    roots = settled(tmp_path).roots()
    assert not any(root.is_relative_to(tmp_path / "sglang") for root in roots.values()), roots
    for kind in KINDS:
        if kind.folder.sets_variable:
            assert os.environ[kind.folder.variable] == str(roots[kind.name])
    assert os.environ["TILELANG_CACHE_DIR"] == str(tmp_path / "sglang" / "tilelang"), "TileLang keeps its own"


def test_both_orders_have_the_same_folders(tmp_path: Path, redirect: Callable[[], None]) -> None:
    folders = settled(tmp_path)
    redirect()
    folders.settle(lambda: tmp_path / "v1" / "folders" / ("0a" * 32))
    first = folders.roots()
    for name in kinds.VARIABLES:
        os.environ.pop(name, None)
    redirect()
    assert settled(tmp_path).roots() == first


def test_a_folder_that_the_user_named_stays(
    tmp_path: Path, redirect: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    redirect()
    roots = settled(tmp_path).roots()
    assert roots["triton"] == tmp_path / "mine"
    assert not roots["inductor"].is_relative_to(tmp_path / "sglang")


def test_another_release_of_sglang_changes_nothing(
    tmp_path: Path, redirect: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect()
    chosen = os.environ["TRITON_CACHE_DIR"]
    assert chosen_by_sglang("TRITON_CACHE_DIR", chosen)
    assert not chosen_by_sglang("TRITON_CACHE_DIR", str(tmp_path))
    for module in (ModuleType("sglang.srt.environ"), None):
        monkeypatch.setitem(sys.modules, "sglang.srt.environ", module)
        assert not chosen_by_sglang("TRITON_CACHE_DIR", chosen)
    vars(changed := ModuleType("sglang.srt.environ")).update(third_party_cache_defaults=lambda: 1)
    monkeypatch.setitem(sys.modules, "sglang.srt.environ", changed)
    assert not chosen_by_sglang("TRITON_CACHE_DIR", chosen)
