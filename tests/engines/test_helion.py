"""Test that Helion searches nothing on a fresh host, and that it searches where something differs.

The package is real (Helion 1.5.1 on torch 2.13, its Pallas backend in the interpreter, on a CPU);
``make test-engines`` makes its environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import Served, serve

from .engine import PROGRAMS, EngineResult
from .helion_host import NAME, PALLAS, helion_python, start
from .tilelang_host import host_environment


@pytest.fixture(scope="module")
def helion() -> Path:
    """Return the interpreter that has Helion."""
    return helion_python()


@pytest.fixture(scope="module")
def registry(helion: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    del helion  # it skips where Helion is missing
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="module")
def built(registry: Served, tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    """Search for the configurations of two shapes on an empty host and publish them; then the host is
    gone."""
    place = tmp_path_factory.mktemp("builder")
    result = start(place, registry, f"publish={NAME}", publish=True)
    shutil.rmtree(place)
    return result


def searches(result: EngineResult) -> int:
    """Return how often Helion searched, as cachesvc and Helion itself count it."""
    observed = result.answer["observed"]
    assert (
        observed["tuned_by_kinds"] == observed["tuning_runs"] == result.answer["helion"].get("cache_miss", 0)
    )
    return int(observed["tuned_by_kinds"])


def test_a_fresh_host_searches_nothing(tmp_path: Path, registry: Served, built: EngineResult) -> None:
    assert built.answer["state"] == "miss" and searches(built) == 2 and built.answer["right"] == [True, True]
    restored = start(tmp_path, registry)
    assert searches(restored) == 0 and restored.answer["helion"] == {"cache_hit": 2}
    assert (restored.answer["state"], restored.answer["reasons"]) == ("hit", []), restored.answer
    assert restored.answer["results"] == built.answer["results"] and restored.compilers == []


@pytest.mark.usefixtures("built")
def test_another_function_that_the_kernel_calls_is_searched_for(tmp_path: Path, registry: Served) -> None:
    """Helion's own key has the kernel's own function alone."""
    result = start(tmp_path, registry, "changed=yes")
    assert searches(result) == 2 and result.answer["right"] == [True, True]
    assert any("Helion generates other code" in reason for reason in result.answer["reasons"]), result.answer


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"HELION_AUTOTUNE_EFFORT": "full"}, ""),
        ({"HELION_AUTOTUNE_ACCURACY_CHECK": "0"}, "autotune_accuracy_check"),
        ({"HELION_FORCE_AUTOTUNE": "1"}, "it did not look into its cache"),
    ],
)
def test_another_setting_is_searched_for_where_it_decides(
    tmp_path: Path, registry: Served, variables: dict[str, str], reason: str
) -> None:
    result = start(tmp_path, registry, **variables)
    assert result.answer["observed"]["tuned_by_kinds"] == (2 if reason else 0)
    assert reason in "".join(result.answer["reasons"]), result.answer["reasons"]


def test_a_damaged_configuration_is_replaced_before_it_is_taken(
    tmp_path: Path, registry: Served, built: EngineResult
) -> None:
    """The second start on a host finds the folder of the first one, in which somebody wrote."""
    start(tmp_path, registry)
    records = list((tmp_path / "home").glob(".cache/cachesvc/v1/folders/*/inductor/helion/cachesvc/*/*.json"))
    assert len(records) == 2
    for record in records:
        record.chmod(0o644)
        record.write_text('{"config": "{\\"block_sizes\\": [1, 1]}"}')
    second = start(tmp_path, registry)
    assert searches(second) == 0 and second.answer["state"] == "hit", second.answer
    assert second.answer["results"] == built.answer["results"]


def test_configurations_that_warm_found_are_taken(tmp_path: Path, helion: Path) -> None:
    key, folder, out = SigningKey.generate(), tmp_path / "project", tmp_path / "bundles"
    folder.mkdir()
    key.save(tmp_path / "key")
    (folder / "warm.toml").write_text(
        f'name = "team/job"\n[[target]]\nid = "job"\nscript = "{PROGRAMS / "helion_kernels.py"}"\n'
        "env = {" + ", ".join(f'{name} = "{value}"' for name, value in PALLAS.items()) + "}\n"
    )
    command = [str(helion), "-m", "cachesvc", "warm", str(folder / "warm.toml"), "--out", str(out)]
    own = {"CACHESVC_SIGNING_KEY": str(tmp_path / "key")}
    env = host_environment(tmp_path / "builder") | own
    warm = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert warm.returncode == 0, warm.stdout + warm.stderr
    (bundle,) = out.glob("*.cachesvc")
    shutil.rmtree(tmp_path / "builder")
    of_bundle = {
        "CACHESVC_NAME": "team/job",
        "CACHESVC_BUNDLE": str(bundle),
        "CACHESVC_TRUSTED_KEYS": str(key.public),
        "CACHESVC_DEADLINE": "60",
    }
    service = start(tmp_path / "service", None, **of_bundle)
    assert searches(service) == 0 and service.answer["state"] == "hit", service.answer
