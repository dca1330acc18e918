from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_making import Api, Server

from cachesvc_client.bundle.seal import SigningKey


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that do not stop it; each works in names of its own."""
    made = Server(tmp_path_factory.mktemp("registry") / "data").start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may stop, kill and start again; not started yet."""
    made = Server(tmp_path / "data")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop()


@pytest.fixture(scope="session")
def key(server: Server) -> SigningKey:
    return server.key


@pytest.fixture
def api(server: Server) -> Api:
    return server.api()
