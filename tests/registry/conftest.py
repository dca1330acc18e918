"""Start the registry over both columns of backends: embedded, and PostgreSQL with Redis and Ceph's S3."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_command import Admin, CommandResult
from registry_inside import COLUMNS, EMBEDDED, Column, Production, production
from registry_making import Api, Server

from cachesvc import cli
from cachesvc.index.engine import open_postgresql
from cachesvc_client.bundle.seal import SigningKey
from tests.conftest import new_bucket, new_database


@pytest.fixture(scope="session", params=COLUMNS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one server for all tests that do not stop it; each test uses names of its own."""
    new_server = Server(tmp_path_factory.mktemp("registry") / "data", prepared=False)
    if request.param == "production":
        new_server.env = production(request)
    new_server.start()
    yield new_server
    assert new_server.stop() == 0


@pytest.fixture(scope="session", params=COLUMNS)
def column(request: pytest.FixtureRequest) -> Column:
    """Return the backends for registries in this process."""
    return EMBEDDED if request.param == "embedded" else request.getfixturevalue("services")


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest) -> Production:
    """Return PostgreSQL, Redis and Ceph's S3 for registries in this process."""
    postgresql, gateway = request.getfixturevalue("postgresql"), request.getfixturevalue("gateway")
    template = new_database(postgresql)
    open_postgresql(template).close()
    bucket = new_bucket(gateway.endpoint, gateway.client)
    return Production(postgresql, template.rpartition("/")[2], gateway, bucket)


@pytest.fixture
def own_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Return a server that is not started yet; the test may stop, kill and restart it."""
    new_server = Server(tmp_path / "data", prepared=request.path.name != "test_serve.py")
    yield new_server
    if new_server.process is not None and new_server.process.poll() is None:
        new_server.stop()


@pytest.fixture(params=COLUMNS)
def own_column_server(request: pytest.FixtureRequest, own_server: Server) -> Server:
    """Return a server over either column that is not started yet; the test may stop, kill and restart it."""
    if request.param == "production":
        own_server.env = production(request)
    return own_server


@pytest.fixture(scope="session")
def key(server: Server) -> SigningKey:
    return server.key


@pytest.fixture
def api(server: Server) -> Api:
    return server.api()


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Admin:
    """Return a function that runs ``cachesvc`` with some words in this process, as its script does.

    Click asks ``__main__`` how the process was started; without xdist that is ``python -m pytest``."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # xdist has it

    def run(*words: object) -> CommandResult:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["cachesvc", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return CommandResult(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def admin(server: Server, command: Admin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Admin:
    """Run ``cachesvc admin`` with the first token and the first signing key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CACHESVC_URL", server.url)
    monkeypatch.setenv("CACHESVC_TOKEN", server.token)
    monkeypatch.setenv("CACHESVC_SIGNING_KEY", server.ready["signing_key"])
    monkeypatch.setenv("CACHESVC_TRUSTED_KEYS", server.ready["trust"])
    monkeypatch.setenv("CACHESVC_STORE", str(tmp_path / "store"))
    return lambda *words: command("admin", *words)


@pytest.fixture
def team() -> str:
    """Return a namespace of the test's own."""
    return "n" + os.urandom(6).hex()
