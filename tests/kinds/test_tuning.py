"""Test that tuning winners are found after a move, with PyTorch's own autotuner class and tuning cache,
without a GPU."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.kinds.inductor import tuning

META: dict[str, Any] = {"autotune_local_cache": True, "autotune_remote_cache": False}
KERNEL = "cvnvao2mh2rnjisyiscjexu6eqexpo2hk4i4s7bgkvquo3r6voir.py"


class Config:
    """Stands for `triton.Config`, with the attributes that the tuning cache uses."""

    def __init__(self, kwargs: dict[str, int], num_warps: int = 4, num_stages: int = 1) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class Launcher:
    """Stands for a compiled launcher, with the attributes that the choice of a winner uses."""

    n_regs, n_spills, shared, cache_hash = 1, 0, 0, "k"

    def __init__(self, config: Config) -> None:
        self.config = config


@pytest.fixture
def heuristics(monkeypatch: pytest.MonkeyPatch):
    """Load PyTorch's module with the hooks in place, and remove the hooks afterwards."""
    from torch._inductor.runtime import triton_heuristics

    for name in (
        "recheck_autotune_cache",
        "_precompile_worker",
        "autotune_to_one_config",
        "_dynamic_scale_rblock",
    ):
        method = getattr(triton_heuristics.CachingAutotuner, name)
        monkeypatch.setattr(triton_heuristics.CachingAutotuner, name, method)
    return triton_heuristics


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "service"))
    return tmp_path / "service"


def load_autotuner(heuristics: Any, filename: Path, candidates: list[Config], meta: dict[str, Any]) -> Any:
    """Make an autotuner as the FX cache unpickles one: its candidates are compiled, and its path is the
    builder's."""
    tuner = heuristics.CachingAutotuner.__new__(heuristics.CachingAutotuner)
    tuner.filename, tuner.inductor_meta, tuner.autotune_cache_info = str(filename), meta, None
    tuner.fn, tuner.save_cache_hook, tuner.launchers = SimpleNamespace(fn=None), None, []
    tuner.compile_results = []
    # Torch 2.14 and 2.15 ask with these whether candidates may be added on this device.
    tuner.size_hints, tuner.device_props = None, None
    tuner.heuristic_type = heuristics.HeuristicType.POINTWISE
    for config in candidates:
        result = heuristics.StaticTritonCompileResult.__new__(heuristics.StaticTritonCompileResult)
        result.config = copy.deepcopy(config)
        tuner.compile_results.append(result)
    tuner._precompile_config = lambda config: SimpleNamespace(config=config, compiled_here=True)
    return tuner


def save_winner_and_move(
    tmp_path: Path, local: Path, winner: Config, configs_hash: str, **saved: Any
) -> Path:
    """Save a winner in the builder's folder, move the file as an install does, and remove the builder's
    folder.

    Return the builder's path of the kernel."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    kernel = tmp_path / "builder" / KERNEL[1:3] / KERNEL
    kernel.parent.mkdir(parents=True)
    cache = AutotuneCache.create(META, str(kernel), configs_hash)
    assert cache is not None
    cache.save(winner, 1_000_000, **saved)
    shutil.copytree(tmp_path / "builder", local)
    shutil.rmtree(tmp_path / "builder")
    return kernel


CANDIDATES = [Config({"XBLOCK": 32}), Config({"XBLOCK": 64}), Config({"XBLOCK": 64}, num_warps=8)]


def _reload() -> Any:
    return SimpleNamespace(fn=SimpleNamespace(fn=_reload))


def test_without_the_hook_the_winner_is_lost(heuristics: Any, tmp_path: Path, local: Path) -> None:
    """This test shows that the tests below can fail."""
    configs_hash = heuristics.hash_configs(CANDIDATES)
    kernel = save_winner_and_move(tmp_path, local, CANDIDATES[2], configs_hash)
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, META)
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == 3


@pytest.mark.parametrize("same_candidates", [True, False])
def test_the_winner_is_found_in_the_folder_of_this_process(
    heuristics: Any, tmp_path: Path, local: Path, same_candidates: bool
) -> None:
    tuning.install_hooks()
    configs_hash = heuristics.hash_configs(CANDIDATES if same_candidates else CANDIDATES[:2])
    kernel = save_winner_and_move(tmp_path, local, CANDIDATES[2], configs_hash)
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, META)
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    (result,) = autotuner.compile_results
    assert (result.config.kwargs, result.config.num_warps) == ({"XBLOCK": 64}, 8)
    assert autotuner.filename == str(local / KERNEL[1:3] / KERNEL)
    assert not (tmp_path / "builder").exists()
    # PyTorch's step would need the device. It adds nothing once there is a winner.
    autotuner._dynamic_scale_rblock()
    assert len(autotuner.compile_results) == 1


def test_a_winner_of_coordinate_descent_is_taken_and_not_tuned_again(
    heuristics: Any, tmp_path: Path, local: Path
) -> None:
    tuning.install_hooks()
    winner = Config({"XBLOCK": 128}, num_warps=2)
    kernel = save_winner_and_move(tmp_path, local, winner, "another", found_by_coordesc=True)
    autotuner = load_autotuner(
        heuristics, kernel, CANDIDATES[:1], {**META, "coordinate_descent_tuning": True}
    )
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    (result,) = autotuner.compile_results
    assert result.compiled_here and result.config.kwargs == {"XBLOCK": 128}
    assert result.config.num_warps == 2 and result.config.found_by_coordesc


def test_an_unfinished_descent_goes_on(heuristics: Any, tmp_path: Path, local: Path) -> None:
    tuning.install_hooks()
    kernel = save_winner_and_move(tmp_path, local, CANDIDATES[1], "another")
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, {**META, "coordinate_descent_tuning": True})
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == 3


def test_a_record_of_other_arguments_is_left_to_pytorch(heuristics: Any, tmp_path: Path, local: Path) -> None:
    tuning.install_hooks()
    kernel = save_winner_and_move(tmp_path, local, Config({"YBLOCK": 4}), "another")
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, META)
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == 3


def test_a_choice_that_would_be_lost_is_recorded(heuristics: Any, local: Path) -> None:
    """PyTorch adds a candidate to a single one, tunes, and does not save the winner."""
    tuning.install_hooks()
    kernel = local / KERNEL[1:3] / KERNEL
    kernel.parent.mkdir(parents=True)
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES[:2], META)
    launchers = [Launcher(config) for config in CANDIDATES]
    autotuner.benchmark_all_configs = lambda: {launchers[0]: 2.0, launchers[1]: 1.0}
    autotuner.precompile_time_taken_ns, autotuner.fn.__name__ = 0, "kernel"
    autotuner.autotune_to_one_config()
    assert len(list(kernel.parent.glob("*.best_config"))) == 1
    again = load_autotuner(heuristics, kernel, CANDIDATES[:1], META)
    again.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert again.compile_results[0].config.kwargs == {"XBLOCK": 64}


def autotuner_from_source(
    heuristics: Any, local: Path, candidates: list[Config], meta: dict[str, Any]
) -> Any:
    """Make an autotuner that no FX entry held, before its candidates are compiled."""
    tuner = load_autotuner(heuristics, local / KERNEL[1:3] / KERNEL, [], meta)
    tuner.configs, tuner._reload_kernel = copy.deepcopy(candidates), _reload
    return tuner


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("candidates", [1, 3])
def test_a_kernel_from_its_source_takes_the_winner_from_the_record(
    heuristics: Any, tmp_path: Path, local: Path, winner: int, candidates: int
) -> None:
    """With one candidate PyTorch looks for no winner, adds a candidate and tunes, in every process."""
    tuning.install_hooks()
    save_winner_and_move(tmp_path, local, CANDIDATES[winner], "another")
    autotuner = autotuner_from_source(heuristics, local, CANDIDATES[:candidates], META)
    autotuner._precompile_worker()
    (result,) = autotuner.compile_results
    assert (result.config.kwargs, result.config.num_warps) == (CANDIDATES[winner].kwargs, 4)
    autotuner._dynamic_scale_rblock()  # PyTorch's step would need the device. It adds nothing here.
    assert len(autotuner.compile_results) == 1


def test_a_winner_that_does_not_compile_leaves_the_candidates(
    heuristics: Any, tmp_path: Path, local: Path
) -> None:
    tuning.install_hooks()
    save_winner_and_move(tmp_path, local, Config({"XBLOCK": 512}), "another")
    autotuner = autotuner_from_source(heuristics, local, CANDIDATES, META)

    def compile_small(config: Config) -> Any:
        if config.kwargs["XBLOCK"] > 64:
            raise RuntimeError("out of resources")
        return SimpleNamespace(config=config)

    autotuner._precompile_config = compile_small
    autotuner._precompile_worker()
    assert len(autotuner.compile_results) == 3
    assert not tuning._has_winner(autotuner)


@pytest.mark.parametrize(("kind", "left"), [("POINTWISE", 3), ("USER_AUTOTUNE", 1), ("TEMPLATE", 1)])
def test_the_winner_is_final_if_no_descent_follows(
    heuristics: Any, tmp_path: Path, local: Path, kind: str, left: int
) -> None:
    tuning.install_hooks()
    kernel = save_winner_and_move(tmp_path, local, CANDIDATES[1], "another")
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, {**META, "coordinate_descent_tuning": True})
    autotuner.heuristic_type = heuristics.HeuristicType[kind]
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == left


def test_candidates_that_the_record_cannot_distinguish_are_left_to_pytorch(
    heuristics: Any, tmp_path: Path, local: Path
) -> None:
    tuning.install_hooks()
    kernel = save_winner_and_move(tmp_path, local, CANDIDATES[0], "another")
    twins = [CANDIDATES[0], CANDIDATES[0], CANDIDATES[1]]
    autotuner = load_autotuner(heuristics, kernel, twins, META)
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == 3


def test_a_users_kernel_gets_no_candidate_beyond_those_of_the_user(
    heuristics: Any, tmp_path: Path, local: Path
) -> None:
    tuning.install_hooks()
    kernel = save_winner_and_move(tmp_path, local, Config({"XBLOCK": 512}), "another")
    autotuner = load_autotuner(heuristics, kernel, CANDIDATES, META)
    autotuner.heuristic_type = heuristics.HeuristicType.USER_AUTOTUNE
    autotuner.recheck_autotune_cache(reload_kernel_from_src=_reload)
    assert len(autotuner.compile_results) == 3


def test_paths_of_other_files_are_left_alone() -> None:
    assert tuning.local_path(f"/a/{KERNEL[1:3]}/{KERNEL}", "/b") == os.path.join("/b", KERNEL[1:3], KERNEL)
    assert tuning.local_path("/home/user/kernels.py", "/b") is None
    assert tuning.local_path("", "/b") is None
