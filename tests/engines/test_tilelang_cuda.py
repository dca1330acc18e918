"""Test that TileLang runs neither nvcc nor a C++ compiler on a fresh host for kernels for CUDA, and that it
compiles whatever differs.

The package and nvcc are real (tilelang 0.1.15, kernels for compute capability 9.0). The kernels are loaded,
and none is launched, since there is no GPU. Without nvcc the tests are skipped.
``benchmarks/gpu/tilelang_proof.py`` launches kernels on a GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import another_toolkit
from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import Served, serve

from .engine import PROGRAMS, EngineResult
from .tilelang_host import build, cuda_home, host_environment, start, tilelang_python, work

LEAST = 20
"""How many differences must have been tried."""
PROGRAM = "cuda_kernels.py"
NO_CUDA = {"CUDA_HOME": "/nonexistent"}
"""Variables of a host without a CUDA toolkit, also where this machine has one."""


@pytest.fixture(scope="module")
def tilelang() -> Path:
    """Return the interpreter that has TileLang."""
    return tilelang_python(cuda=True)


@pytest.fixture(scope="module")
def cuda(tilelang: Path) -> dict[str, str]:
    """Return the variables of a host with nvcc."""
    del tilelang  # it skips where TileLang or nvcc is missing
    return {"CUDA_HOME": str(cuda_home())}


@pytest.fixture(scope="module")
def registry(tilelang: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    del tilelang
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="module")
def built(registry: Served, cuda: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    """Compile two kernels on an empty host and publish them."""
    return build(tmp_path_factory.mktemp("builder"), registry, PROGRAM, **cuda)


def test_a_fresh_host_without_nvcc_and_a_compiler_compiles_nothing(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    assert built.answer["state"] == "miss" and work(built) == (2, 4, 0), "nvcc and g++ for each kernel"
    restored = start(tmp_path, registry, PROGRAM, compilers=False, **NO_CUDA)
    assert work(restored) == (0, 0, 0), restored.answer["reasons"]
    assert (restored.answer["state"], restored.answer["reasons"]) == ("hit", [])
    assert restored.answer["results"] == built.answer["results"], "the builder's libraries"
    assert all("/inductor/tilelang/cachesvc/" in place for place in restored.answer["places"])
    own = [path.name for path in (tmp_path / "home" / ".tilelang" / "cache").glob("*/*/kernels/*")]
    assert own == [], "TileLang's own folder stays empty"


def test_tilelang_alone_needs_nvcc(tmp_path: Path, tilelang: Path) -> None:
    """Without a restore, the test before would fail like this."""
    del tilelang
    result = start(tmp_path, None, PROGRAM, compilers=False, **NO_CUDA)
    assert result.code != 0 and "nvcc" in result.err


def test_a_program_that_names_no_target_needs_no_toolkit(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    """TileLang looks for a toolkit before it looks for a GPU, and ends where there is none."""
    alone = start(tmp_path / "1", None, PROGRAM, "finds=gpu", compilers=False, **NO_CUDA)
    assert alone.code != 0 and "No registered target detector found" in alone.err
    restored = start(tmp_path / "2", registry, PROGRAM, "finds=gpu", compilers=False, **NO_CUDA)
    assert work(restored) == (0, 0, 0) and restored.answer["state"] == "hit"
    assert restored.answer["results"] == built.answer["results"]


def test_another_body_is_compiled_and_the_start_is_partial_with_a_reason(
    tmp_path: Path, registry: Served, built: EngineResult, cuda: dict[str, str]
) -> None:
    result = start(tmp_path, registry, PROGRAM, "changed=yes", **cuda)
    assert result.answer["state"] == "partial" and work(result) == (1, 2, 0)
    assert result.answer["results"][1] == built.answer["results"][1]
    [reason] = result.answer["reasons"]
    assert "TileLang compiled scaled: no restored entry has it" in reason


@pytest.mark.usefixtures("built")
def test_a_library_that_is_cut_off_after_the_restore_is_compiled_again(
    tmp_path: Path, registry: Served, cuda: dict[str, str]
) -> None:
    result = start(tmp_path, registry, PROGRAM, "damage=executable.so", **cuda)
    assert work(result)[0] == 2
    assert any("did not load the files of the entry" in reason for reason in result.answer["reasons"])


def test_machine_code_of_tilelangs_own_cache_is_not_published(
    tmp_path: Path, registry: Served, cuda: dict[str, str]
) -> None:
    """Nobody knows which nvcc made it."""
    start(tmp_path, None, PROGRAM, **cuda)
    cache = tmp_path / "home" / ".tilelang" / "cache"
    assert list(cache.glob("*/cuda-binaries/*/kernel.cubin"))
    for folder in cache.glob("*/*/kernels"):
        shutil.rmtree(folder)
    other = {**cuda, "CACHESVC_NAME": "team/cubins"}
    result = start(tmp_path, registry, PROGRAM, "publish=team/cubins", publish=True, **other)
    assert work(result)[:2] == (2, 2), "the C++ compiler alone ran"
    assert "nothing to publish" in result.answer["published"]


def test_each_difference_is_compiled(
    tmp_path: Path, registry: Served, built: EngineResult, cuda: dict[str, str]
) -> None:
    assert built.code == 0
    other = another_toolkit(cuda_home(), tmp_path / "cuda")
    answer = start(tmp_path, registry, "cuda_kernel_differences.py", str(other), **cuda).answer
    assert set(answer["same"].values()) == {"entry"}, answer
    assert answer["refused"] == {}
    assert set(answer["differences"].values()) == {"compiled"}, answer["differences"]
    assert len(answer["differences"]) >= LEAST


def test_kernels_that_warm_compiled_are_restored(
    tmp_path: Path, cuda: dict[str, str], tilelang: Path
) -> None:
    key, folder, out = SigningKey.generate(), tmp_path / "project", tmp_path / "bundles"
    folder.mkdir()
    key.save(tmp_path / "key")
    (folder / "warm.toml").write_text(
        f'name = "team/job"\n[[target]]\nid = "job"\nscript = "{PROGRAMS / "cuda_kernel_job.py"}"\n'
    )
    command = [str(tilelang), "-m", "cachesvc", "warm", str(folder / "warm.toml"), "--out", str(out)]
    env = host_environment(tmp_path / "builder") | cuda | {"CACHESVC_SIGNING_KEY": str(tmp_path / "key")}
    warm = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert warm.returncode == 0, warm.stdout + warm.stderr
    (bundle,) = out.glob("*.cachesvc")
    shutil.rmtree(tmp_path / "builder")
    of_bundle = {"CACHESVC_BUNDLE": str(bundle), "CACHESVC_TRUSTED_KEYS": str(key.public), **NO_CUDA}
    service = start(tmp_path / "service", None, "cuda_kernel_job.py", compilers=False, **of_bundle)
    assert work(service) == (0, 0, 0) and service.answer["state"] == "hit", service.answer
