"""Test that TileLang compiles nothing on a fresh host and needs no compiler there, and that it compiles
whatever differs.

The package is real (tilelang 0.1.15 on torch 2.13, kernels for the CPU); ``make test-engines`` makes its
environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import Served, serve

from .engine import PROGRAMS, EngineResult
from .tilelang_host import build, host_environment, start, tilelang_python, work

LEAST = 25
"""How many differences must have been tried."""
PROGRAM = "kernels.py"


@pytest.fixture(scope="module")
def tilelang() -> Path:
    """Return the interpreter that has TileLang."""
    return tilelang_python()


@pytest.fixture(scope="module")
def registry(tilelang: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    del tilelang  # it skips where TileLang is missing
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="module")
def built(registry: Served, tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    """Compile two kernels on an empty host and publish them."""
    return build(tmp_path_factory.mktemp("builder"), registry, PROGRAM)


def test_a_fresh_host_without_a_compiler_compiles_nothing(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    assert built.answer["state"] == "miss" and work(built) == (2, 2, 0)
    assert built.answer["right"] == [True, True]
    restored = start(tmp_path, registry, PROGRAM, compilers=False)
    assert work(restored) == (0, 0, 0), restored.answer["reasons"]
    assert (restored.answer["state"], restored.answer["reasons"]) == ("hit", [])
    assert restored.answer["results"] == built.answer["results"]
    assert all("/inductor/tilelang/cachesvc/" in place for place in restored.answer["places"])
    own = [path.name for path in (tmp_path / "home" / ".tilelang" / "cache").glob("*/*/kernels/*")]
    assert own == [], "TileLang's own folder stays empty"


def test_tilelang_alone_needs_a_compiler(tmp_path: Path, tilelang: Path) -> None:
    """Without a restore, the test before would fail like this."""
    del tilelang
    result = start(tmp_path, None, PROGRAM, compilers=False)
    assert result.code != 0 and "requires a C++ compiler" in result.err


def test_a_folder_that_the_user_named_stays_and_the_copy_lies_below_it(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    named = tmp_path / "named"
    first = start(tmp_path / "1", registry, PROGRAM, compilers=False, TILELANG_CACHE_DIR=str(named))
    assert first.answer["state"] == "hit" and first.answer["results"] == built.answer["results"]
    assert all(place.startswith(f"{named}/cachesvc/") for place in first.answer["places"])
    untrusted = {"TILELANG_CACHE_DIR": str(named), "CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}
    second = start(tmp_path / "2", registry, PROGRAM, **untrusted)
    assert work(second)[0] == 2, "files that no verified revision accounts for are not loaded"


def test_another_body_is_compiled_and_the_start_is_partial_with_a_reason(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    result = start(tmp_path, registry, PROGRAM, "changed=yes")
    assert (
        result.answer["state"] == "partial"
        and work(result)[0] == 1
        and result.answer["right"] == [True, True]
    )
    assert result.answer["results"][0] == built.answer["results"][0] != result.answer["results"][1]
    [reason] = result.answer["reasons"]
    assert "TileLang compiled main: no restored entry has it" in reason


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("file", ["manifest.json", "kernel_lib.so", "params.json"])
def test_a_file_that_is_cut_off_after_the_restore_is_compiled_again(
    tmp_path: Path, registry: Served, file: str
) -> None:
    result = start(tmp_path, registry, PROGRAM, f"damage={file}")
    assert result.answer["right"] == [True, True] and work(result)[0] == 2
    [reason] = result.answer["reasons"]
    assert "TileLang did not load the files of the entry" in reason


def test_a_damaged_library_is_replaced_before_it_is_loaded(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    """The second start on a host finds the folder of the first one, in which somebody wrote."""
    first = start(tmp_path, registry, PROGRAM, compilers=False)
    for place in first.answer["places"]:
        library = Path(place, "kernel_lib.so")
        library.chmod(0o755)
        library.write_bytes(b"\x7fELF" + b"\0" * (library.stat().st_size - 4))
    second = start(tmp_path, registry, PROGRAM, compilers=False)
    assert work(second) == (0, 0, 0) and second.answer["state"] == "hit"
    assert second.answer["results"] == built.answer["results"]


def test_a_damaged_pack_is_refused(tmp_path: Path, registry: Served, built: EngineResult) -> None:
    """The node store is not trusted either."""
    start(tmp_path, registry, PROGRAM, compilers=False)
    store = tmp_path / "home" / ".cache" / "cachesvc" / "v1"
    shutil.rmtree(store / "folders")
    packs = [path for path in store.rglob("packs/**/*") if path.is_file()]
    assert packs
    damaged = []
    for pack in packs:
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 0xFF
        pack.chmod(0o600)
        pack.write_bytes(data)
        damaged.append(bytes(data))
    second = start(tmp_path, registry, PROGRAM)
    assert second.answer["results"] == built.answer["results"], second.answer
    kept = [pack.exists() and pack.read_bytes() == data for pack, data in zip(packs, damaged, strict=True)]
    assert second.answer["state"] == "hit" and kept == [False] * len(packs), (second.answer, kept)


def test_each_difference_is_compiled(tmp_path: Path, registry: Served, built: EngineResult) -> None:
    assert built.code == 0
    answer = start(tmp_path, registry, "kernel_differences.py").answer
    assert set(answer["same"].values()) == {"entry"}, answer
    assert answer["refused"] == {}
    assert set(answer["differences"].values()) == {"compiled"}, answer["differences"]
    assert len(answer["differences"]) >= LEAST


@pytest.mark.usefixtures("built")
def test_another_instruction_set_is_another_entry(tmp_path: Path, registry: Served) -> None:
    """A kernel may be compiled for the CPU of its builder, which TileLang's key does not say."""
    result = start(tmp_path, registry, PROGRAM, ATEN_CPU_CAPABILITY="default")
    assert work(result)[0] == 2 and result.answer["right"] == [True, True]
    [rejected] = result.answer["compared"]["rejected"]
    assert "cpu_isa" in {difference["factor"] for difference in rejected["differences"]}, rejected


def test_tilelangs_own_switch_is_reported(tmp_path: Path, registry: Served, built: EngineResult) -> None:
    result = start(tmp_path, registry, PROGRAM, TILELANG_DISABLE_CACHE="1")
    assert work(result)[0] == 2 and result.answer["results"] == built.answer["results"]
    assert result.answer["reasons"] == ["TileLang compiled main: it did not look into its cache"]


def test_kernels_that_warm_compiled_are_restored_on_several_threads(tmp_path: Path, tilelang: Path) -> None:
    key, folder, out = SigningKey.generate(), tmp_path / "project", tmp_path / "bundles"
    folder.mkdir()
    key.save(tmp_path / "key")
    (folder / "warm.toml").write_text(
        f'name = "team/job"\n[[target]]\nid = "job"\nscript = "{PROGRAMS / "kernel_job.py"}"\n'
    )
    command = [str(tilelang), "-m", "cachesvc", "warm", str(folder / "warm.toml"), "--out", str(out)]
    env = host_environment(tmp_path / "builder") | {"CACHESVC_SIGNING_KEY": str(tmp_path / "key")}
    warm = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert warm.returncode == 0, warm.stdout + warm.stderr
    assert "are kept" not in warm.stdout, "a replay reads all files of a kernel"
    (bundle,) = out.glob("*.cachesvc")
    shutil.rmtree(tmp_path / "builder")
    of_bundle = {"CACHESVC_BUNDLE": str(bundle), "CACHESVC_TRUSTED_KEYS": str(key.public)}
    service = start(tmp_path / "service", None, "kernel_job.py", compilers=False, **of_bundle)
    assert work(service) == (0, 0, 0) and service.answer["state"] == "hit", service.answer
