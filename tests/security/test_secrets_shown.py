"""Other users of the machine, and readers of logs, learn no token and no password."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_making import Server

from cachesvc_client.config.login import Login
from tests.e2e.registries import client

SECRET = "hunter2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


def login(server: Server, home: Path, *words: str, stdin: object = subprocess.DEVNULL) -> tuple[int, str]:
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    done = subprocess.run(
        [sys.executable, "-m", "cachesvc", "login", server.url, *words],
        env={**kept, "HOME": str(home)},
        input=stdin if isinstance(stdin, str) else None,
        stdin=None if isinstance(stdin, str) else stdin,  # type: ignore[arg-type]
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_reader_of_the_servers_log_learns_no_token(tmp_path: Path) -> None:
    server = Server(tmp_path / "data").start()
    server.process.terminate()
    out, err = server.process.communicate(timeout=20)
    assert server.token.startswith("csv_") and server.token not in out + err
    file = server.data / "admin.token"
    assert str(file) in out and file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == server.token


@pytest.mark.parametrize("way", ["file", "stdin", "argument"])
def test_a_reader_of_the_list_of_processes_learns_no_token_without_a_warning(
    server: Server, tmp_path: Path, way: str
) -> None:
    words, stdin = {
        "file": (("--token-file", str(server.data / "admin.token")), subprocess.DEVNULL),
        "stdin": (("--token-file", "-"), server.token + "\n"),
        "argument": (("--token", server.token), subprocess.DEVNULL),
    }[way]
    status, said = login(server, tmp_path / "home", *words, stdin=stdin)
    assert status == 0 and "admin on *" in said, said
    assert ("warning: --token shows the token to every user" in said) == (way == "argument"), said


def test_whoever_sees_the_terminal_learns_no_token_that_is_typed(server: Server, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    terminal, ours = os.openpty()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cachesvc", "login", server.url],
        env={**kept, **home},
        stdin=ours,
        stdout=ours,
        stderr=ours,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # as a login shell's children have it
    )
    os.close(ours)
    shown = b""
    while b"token (empty for none): " not in shown:
        shown += os.read(terminal, 1024)
    assert not termios.tcgetattr(terminal)[3] & termios.ECHO
    os.write(terminal, server.token.encode() + b"\n")
    while True:
        try:
            shown += os.read(terminal, 1024)
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    assert process.wait(30) == 0, shown
    assert b"admin on *" in shown and server.token.encode() not in shown
    stored = Login.read(home).registries[server.url]
    assert stored.token == server.token


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{SECRET}@cache.example",
        f"me:{SECRET}@cache.example",
    ],
)
def test_a_reader_of_logs_learns_no_password_of_the_address(tmp_path: Path, url: str) -> None:
    variables = {"CACHESVC_URL": url, "CACHESVC_NAME": "team/x", "HOME": str(tmp_path)}
    for words in (("pull", "team/x", "--into", str(tmp_path / "out")), ("login", url)):
        done = client(*words, **variables)
        said = done.stdout + done.stderr
        assert done.returncode in (1, 2) and SECRET not in said, said
    program = f"import cachesvc_client; cachesvc_client.attach('team/x', url={url!r}).wait(60)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CACHESVC_LOG": "debug", "CACHESVC_STRICT": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert SECRET not in done.stdout + done.stderr.replace(program, ""), done.stderr
    assert "is not one" in done.stderr or "no signer" in done.stderr, done.stderr
