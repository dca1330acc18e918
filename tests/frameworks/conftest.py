"""Mark the tests of frameworks, and start the registry that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.registries import Served, serve

from .framework import frameworks_python
from .loopback import Loopback, loopback


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("frameworks")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry."""
    frameworks_python()  # it skips where the environment is missing
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="module")
def network() -> Iterator[Loopback]:
    """Make a network that has a loopback device alone."""
    frameworks_python()  # it skips where the environment is missing
    with loopback() as network:
        yield network


@pytest.fixture(scope="module")
def inner_registry(network: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry inside of that network."""
    folder = tmp_path_factory.mktemp("registry")
    with serve(folder, prepared=False, before=network.enter) as served:
        yield served
