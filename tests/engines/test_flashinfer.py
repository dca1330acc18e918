"""Test that FlashInfer builds nothing on a fresh host and needs neither nvcc nor ninja there, and that it
builds whatever differs.

The package and nvcc are real (flashinfer-python 0.6.14, kernels for compute capability 9.0); the libraries
are loaded, and no kernel is launched, since there is no GPU. ``make test-engines`` makes its environment;
``benchmarks/gpu/kernel_jits.py`` launches kernels on a GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import Served, serve

from .engine import EngineResult
from .flashinfer_host import NAME, Toolchain, calls, flashinfer_python, start

LEAST = 30
"""How many differences must have been tried."""
PROGRAM = "flashinfer_modules.py"


@pytest.fixture(scope="module")
def flashinfer() -> Path:
    """Return the interpreter that has FlashInfer."""
    return flashinfer_python()


@pytest.fixture(scope="module")
def toolchain(flashinfer: Path, tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """Return compilers that are counted."""
    del flashinfer  # it skips where FlashInfer or nvcc is missing
    return Toolchain.make(tmp_path_factory.mktemp("toolchain"))


@pytest.fixture(scope="module")
def registry(flashinfer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    del flashinfer
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where FlashInfer's own folder of the builder is kept."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def built(
    registry: Served, toolchain: Toolchain, own: Path, tmp_path_factory: pytest.TempPathFactory
) -> EngineResult:
    """Build a module on an empty host and publish it; then the host is gone."""
    place = tmp_path_factory.mktemp("builder")
    result = start(place, registry, toolchain, PROGRAM, f"publish={NAME}", publish=True)
    assert result.code == 0, result.err
    shutil.copytree(place / "home" / ".cache" / "flashinfer", own / "flashinfer")
    shutil.rmtree(place)
    return result


@pytest.fixture
def package(flashinfer: Path, tmp_path: Path) -> Path:
    """Return a folder with a copy of FlashInfer, as an image has it in another place."""
    [installed] = (flashinfer.parents[1] / "lib").glob("python3*/site-packages/flashinfer")
    shutil.copytree(installed, tmp_path / "image" / "flashinfer", copy_function=os.link)
    return tmp_path / "image"


def test_a_fresh_host_without_nvcc_and_ninja_builds_nothing(
    tmp_path: Path, registry: Served, built: EngineResult, package: Path
) -> None:
    assert built.answer["state"] == "miss" and calls(built) == (1, 1)
    assert built.answer["observed"]["counts"] == {"flashinfer": {"builds": 1}}
    restored = start(tmp_path, registry, None, PROGRAM, package=package)
    assert restored.answer["function"] and restored.compilers == [], restored.answer
    assert (restored.answer["state"], restored.answer["reasons"]) == ("hit", [])
    assert restored.answer["observed"]["compilations"] == 0
    [library] = restored.answer["loaded"]
    assert "/inductor/flashinfer/cachesvc/" in library
    ours = (tmp_path / "home" / ".cache" / "flashinfer").rglob("*.so")
    assert list(ours) == [], "FlashInfer's own folder has no library"


def test_a_copy_of_flashinfers_own_folder_is_built_again(
    tmp_path: Path, toolchain: Toolchain, own: Path, built: EngineResult
) -> None:
    """What cachesvc is for: the copy keeps all times."""
    assert built.code == 0
    shutil.copytree(own / "flashinfer", tmp_path / "home" / ".cache" / "flashinfer")
    result = start(tmp_path, None, toolchain, PROGRAM)
    assert result.answer["function"] and calls(result) == (1, 1)


@pytest.mark.usefixtures("built")
def test_flashinfer_alone_does_not_start_without_ninja(tmp_path: Path, own: Path) -> None:
    """Without a restore, the first test would fail like this."""
    shutil.copytree(own / "flashinfer", tmp_path / "home" / ".cache" / "flashinfer")
    result = start(tmp_path, None, None, PROGRAM)
    assert result.code != 0 and calls(result)[0] == 0


def test_files_that_no_verified_revision_accounts_for_are_not_loaded(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    assert built.code == 0
    named = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path / "named"), "FLASHINFER_DISABLE_JIT": "1"}
    first = start(tmp_path / "1", registry, None, PROGRAM, **named)
    [library] = first.answer["loaded"]
    assert library.startswith(f"{tmp_path / 'named'}/cachesvc/")
    untrusted = {"CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}
    second = start(tmp_path / "2", registry, None, PROGRAM, **named, **untrusted)
    assert second.code != 0 and "MissingJITCacheError" in second.err


def test_a_damaged_library_is_replaced_before_it_is_loaded(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    """The second start on a host finds the folder of the first one, in which somebody wrote."""
    assert built.code == 0
    first = start(tmp_path, registry, None, PROGRAM)
    [library] = map(Path, first.answer["loaded"])
    library.chmod(0o755)
    library.write_bytes(b"\x7fELF" + b"\0" * (library.stat().st_size - 4))
    second = start(tmp_path, registry, None, PROGRAM)
    assert second.answer["state"] == "hit" and second.compilers == [], second.answer


def test_each_difference_is_built(
    tmp_path: Path, registry: Served, toolchain: Toolchain, built: EngineResult, package: Path
) -> None:
    assert built.code == 0
    other = tmp_path / "other-cuda"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "nvcc").write_bytes(b"\x7fELF another nvcc")
    (other / "bin" / "nvcc").chmod(0o755)
    variables = {"FLASHINFER_DISABLE_JIT": "1"}
    program = "flashinfer_differences.py"
    answer = start(tmp_path, registry, toolchain, program, str(other), package=package, **variables).answer
    assert set(answer["same"].values()) == {"entry"}, answer
    assert set(answer["differences"].values()) == {"built"}, answer["differences"]
    assert len(answer["differences"]) >= LEAST
