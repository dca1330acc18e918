"""Test the folders that SGLang names for other compilers, with SGLang's own ``sglang.srt.environ`` (0.5.23).

The rest of SGLang needs a GPU; ``make test-engines`` unpacks its wheel beside Helion's environment."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.registries import Served, serve

from .engine import PROGRAMS, VARIABLE, EngineResult, run_on_host
from .helion_host import PYTHON
from .tilelang_host import host_environment, without_compiler

WHEEL = PYTHON.parents[1] / "sglang"
NAME = "team/sglang"


@pytest.fixture(scope="module")
def sglang() -> Path:
    """Return the folder with SGLang's package."""
    if not os.environ.get(VARIABLE):
        pytest.skip("engines take minutes: make test-engines starts them")
    if not (WHEEL / "sglang").exists():
        pytest.fail("no wheel of SGLang: make test-engines unpacks it")
    return WHEEL


def start(
    place: Path, registry: Served, wheel: Path, order: str, publish: str = "", **variables: str
) -> EngineResult:
    """Run the program on the host ``place``; its PATH has a compiler only to publish.

    ``order``: it attaches by ``cachesvc run``, or itself, *early* or *late*: before or after SGLang has named
    its folders."""
    env = host_environment(place) | registry.variables | {"CACHESVC_DEADLINE": "60"}
    if publish:
        env |= {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": registry.signing_key}
    else:
        env["PATH"] = str(without_compiler(place / "trap"))
    program = [sys.executable, str(PROGRAMS / "sglang_folders.py"), str(wheel), order, publish]
    if order == "run":
        program = [sys.executable, "-m", "cachesvc", "run", NAME, "--", *program]
    else:
        env["CACHESVC_NAME"] = ""
    return run_on_host(program, place, {**env, **variables})


@pytest.fixture(scope="module")
def registry(sglang: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry, in which a builder publishes; then the builder's host is gone."""
    place = tmp_path_factory.mktemp("builder")
    with serve(tmp_path_factory.mktemp("registry")) as served:
        built = start(place, served, sglang, "run", NAME)
        assert built.answer["state"] == "miss" and built.answer["observed"]["torch"]["graphs_compiled"] == 1
        shutil.rmtree(place)
        yield served


@pytest.mark.parametrize("order", ["run", "early", "late"])
def test_what_sglang_chooses_is_no_folder_of_the_users(
    tmp_path: Path, registry: Served, sglang: Path, order: str
) -> None:
    """A folder in the user's home holds what any process left there."""
    result = start(tmp_path, registry, sglang, order)
    answer = result.answer
    assert (answer["state"], answer["right"], result.compilers) == ("hit", True, []), answer
    assert answer["observed"]["compilations"] == 0
    private = str(tmp_path / "home" / ".cache" / "cachesvc")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert answer["folders"][name].startswith(private), (name, json.dumps(answer["folders"]))
    assert not list((tmp_path / "home").glob(".cache/sglang/**/*.py"))


def test_a_folder_below_sglangs_is_none_of_the_users_either(
    tmp_path: Path, registry: Served, sglang: Path
) -> None:
    named = tmp_path / "volume"
    answer = start(tmp_path, registry, sglang, "late", SGLANG_CACHE_DIR=str(named)).answer
    assert (answer["state"], answer["right"]) == ("hit", True), answer
    private = str(tmp_path / "home" / ".cache" / "cachesvc")
    assert answer["folders"]["TORCHINDUCTOR_CACHE_DIR"].startswith(private)
    assert answer["folders"]["TILELANG_CACHE_DIR"] == str(named / "tilelang"), "TileLang keeps its own"
    assert not named.exists()
