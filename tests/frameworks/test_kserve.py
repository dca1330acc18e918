"""Test that KServe's model server on another node is ready without a compilation and without a compiler, and
that the registry is told what its start came to when SIGTERM ends it.

KServe listens on all addresses of its machine, so each test runs in a network that has loopback alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import WARMED, run
from tests.e2e.registries import Served, more

from .framework import NOTHING, PROGRAMS, Start, frameworks_python, writing
from .loopback import Loopback

NAME = "team/kserve"

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def registry(inner_registry: Served) -> Served:
    return inner_registry


@pytest.fixture(scope="module")
def built(network: Loopback, registry: Served, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return the run that published the name: a server on a host with compilers."""
    start = serving(tmp_path_factory.mktemp("builder"), network, registry, **writing(registry))
    assert start.answer["state"] == "miss" and start.work[0] > 0 and start.work[2] > 0, start.answer
    return start


def serving(
    place: Path, network: Loopback, registry: Served, compilers: bool = True, **variables: str
) -> Start:
    """Run ``programs/kserve_job.py``, whose server has the variables that attach it to the name."""
    result = run(
        str(PROGRAMS / "kserve_job.py"),
        place=place,
        compilers=compilers,
        timeout=600,
        python=str(frameworks_python()),
        before=network.enter,
        **{
            **WARMED,
            **registry.variables,
            "CACHESVC_NAME": NAME,
            "CACHESVC_DEADLINE": "120",
            **variables,
        },
    )
    return Start(result)


def starts(network: Loopback, registry: Served) -> dict[str, int]:
    """Return how many starts of the one entry the registry counts, by state."""
    [entry] = network.get(f"{registry.url}/v1/namespaces/team/entries", registry.token)
    return {
        state: sum(use[state] for use in entry["usefulness"])
        for state in ("hit", "partial", "inert", "unused")
    }


def test_a_server_on_another_node_is_ready_without_a_compiler(
    tmp_path: Path, network: Loopback, registry: Served, built: Start
) -> None:
    """SIGTERM right after the answer ends it in order, and the registry knows of the hit."""
    before = starts(network, registry)
    restored = serving(tmp_path, network, registry, compilers=False)
    assert (restored.answer["state"], restored.work) == ("hit", NOTHING), restored.answer
    assert restored.answer["predictions"] == built.answer["predictions"]
    assert restored.answer["readiness"][-1] == "ready" and restored.answer["code"] == 0, restored.answer
    assert starts(network, registry) == more(before, hit=1)


@pytest.mark.usefixtures("built")
def test_sigterm_tells_the_registry_what_was_compiled_last(
    tmp_path: Path, network: Loopback, registry: Served
) -> None:
    """The request compiles a model that no entry holds, and the server gets SIGTERM at once."""
    before = starts(network, registry)
    start = serving(tmp_path, network, registry, ANOTHER_MODEL="1")
    assert start.answer["state"] == "partial" and start.answer["code"] == 0, start.answer
    after = starts(network, registry)
    assert after["partial"] - before["partial"] == 1, (before, after)
