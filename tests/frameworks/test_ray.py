"""Test that tasks, actors and replicas of Ray start on another node without a compilation and without a
compiler, and that the registry is told what they came to, however Ray ends them.

Ray listens on all addresses of its machine, so each test runs in a network that has loopback alone."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.hosts import trap
from tests.e2e.harness import WARMED, run
from tests.e2e.registries import Served, more

from .framework import NOTHING, PROGRAMS, Start, frameworks_python, writing
from .loopback import Loopback

NAME = "team/ray"
PAUSE = 2.0
"""Seconds after the call in which a worker tells the registry of a hit: ``ray.shutdown`` kills workers."""
TOOLS = ("bash", "sh", "env")
"""Programs with which Ray starts its processes."""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def registry(inner_registry: Served) -> Served:
    return inner_registry


@pytest.fixture(scope="module")
def built(network: Loopback, registry: Served, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return the run that published the name: an actor on a host with compilers."""
    place = tmp_path_factory.mktemp("builder")
    start = job(place, network, "actor", "shutdown", worker={**attached(registry), **writing(registry)})
    assert start.answer["state"] == "miss" and start.work[0] > 0 and start.work[2] > 0, start.answer
    return start


def attached(registry: Served) -> dict[str, str]:
    """Return the variables that attach a process to the name."""
    return {**registry.variables, "CACHESVC_NAME": NAME, "CACHESVC_DEADLINE": "120"}


def job(
    place: Path,
    network: Loopback,
    kind: str,
    end: str,
    seconds: float = 0,
    *,
    worker: Mapping[str, str] = MappingProxyType({}),
    launcher: tuple[str, ...] = (),
    compilers: bool = True,
    **variables: str,
) -> Start:
    """Run ``programs/ray_job.py``. ``worker``: variables that Ray adds to those of its worker."""
    if not compilers:
        folder = trap(place / "trap")
        for tool in TOOLS:
            (folder / tool).symlink_to(str(shutil.which(tool)))
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # a socket's path has 107 characters at most
        result = run(
            str(PROGRAMS / "ray_job.py"),
            *(kind, end, str(seconds)),
            place=place,
            compilers=compilers,
            timeout=600,
            python=str(frameworks_python()),
            before=network.enter,
            launcher=launcher,
            **{
                **WARMED,
                "RAY_TMPDIR": short,
                "RAY_USAGE_STATS_ENABLED": "0",
                "WORKER_VARIABLES": json.dumps(dict(worker)),
                **variables,
            },
        )
    return Start(result)


def starts(network: Loopback, registry: Served) -> dict[str, int]:
    """Return how many starts of the one entry the registry counts, by state."""
    [entry] = network.get(f"{registry.url}/v1/namespaces/team/entries", registry.token)
    states = ("hit", "partial", "inert", "unused")
    return {state: sum(use[state] for use in entry["usefulness"]) for state in states}


@pytest.mark.parametrize("kind", ["task", "actor", "serve"])
def test_a_worker_on_another_node_compiles_nothing_and_tells_the_registry(
    kind: str, tmp_path: Path, network: Loopback, registry: Served, built: Start
) -> None:
    """The variables are in ``runtime_env``; Ray itself has none of them."""
    before = starts(network, registry)
    restored = job(tmp_path, network, kind, "shutdown", PAUSE, worker=attached(registry), compilers=False)
    assert (restored.answer["state"], restored.work) == ("hit", NOTHING), restored.answer
    assert restored.answer["digest"] == built.answer["digest"]
    assert starts(network, registry) == more(before, hit=1)


def test_cachesvc_run_reaches_the_workers(
    tmp_path: Path, network: Loopback, registry: Served, built: Start
) -> None:
    """Every process of Ray is attached then. Those that compile nothing tell nothing."""
    before = starts(network, registry)
    launcher = ("-m", "cachesvc_client", "run", NAME, "--", str(frameworks_python()))
    restored = job(
        tmp_path,
        network,
        "actor",
        "shutdown",
        PAUSE,
        launcher=launcher,
        compilers=False,
        CACHESVC_DEADLINE="120",
        **registry.variables,
    )
    assert (restored.answer["state"], restored.work) == ("hit", NOTHING), restored.answer
    assert restored.answer["digest"] == built.answer["digest"]
    assert starts(network, registry) == more(before, hit=1)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("end", "seconds"), [("SIGTERM", 0), ("exit", 0), ("kill", 1)])
def test_the_registry_is_told_of_a_hit_however_the_worker_ends(
    end: str, seconds: float, tmp_path: Path, network: Loopback, registry: Served
) -> None:
    """``ray.kill`` runs no exit function: what is told then was told at the first pause, 0.2 s after the
    call."""
    before = starts(network, registry)
    restored = job(tmp_path, network, "actor", end, seconds, worker=attached(registry))
    assert restored.answer["state"] == "hit", restored.answer
    assert starts(network, registry) == more(before, hit=1)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("end", "seconds"), [("SIGTERM", 0), ("exit", 0), ("kill", 8), ("shutdown", 8)])
def test_the_registry_is_told_of_a_start_that_compiled(
    end: str, seconds: float, tmp_path: Path, network: Loopback, registry: Served
) -> None:
    """``ray.kill`` and ``ray.shutdown`` run no exit function: what is told then was told in quiet, five
    seconds after the last compile."""
    before = starts(network, registry)
    start = job(tmp_path, network, "actor", end, seconds, worker=attached(registry), ANOTHER_MODEL="1")
    assert start.answer["state"] == "partial", start.answer
    assert starts(network, registry) == more(before, partial=1)
