"""Real servers that tests of several rooms start: PostgreSQL, where its programs are installed, and an S3."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """``postgresql://…`` of a server without databases of ours; it ends with the session."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's own folder, which another user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="cachesvc-pg-"))
    data = folder / "data"
    user = []
    if os.getuid() == 0:  # the server refuses to run as root
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres", "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    initdb = [
        programs / "initdb",
        "-D",
        data,
        "--no-sync",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "-U",
        "tester",
    ]
    subprocess.run([*user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    options = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", f"port={port}"]
    options += ["listen_addresses=127.0.0.1", "unix_socket_directories="]
    flags = [part for option in options for part in ("-c", option)]
    server = subprocess.Popen(
        [*user, programs / "postgres", "-D", data, *flags], cwd=folder, stderr=subprocess.DEVNULL
    )
    url = f"postgresql://tester@127.0.0.1:{port}"
    try:
        _wait(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    for _ in range(400):
        assert server.poll() is None, "postgres ended"
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(f"{url}/postgres").close()
            return
        time.sleep(0.05)
    raise AssertionError("postgres does not answer")


@pytest.fixture
def database(postgresql: str) -> str:
    """The URL of an empty database."""
    import psycopg

    name = "t" + secrets.token_hex(6)
    with psycopg.connect(f"{postgresql}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgresql}/{name}"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
