"""Start the process of a server, and make its folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest


def absent(what: str, packages: str) -> NoReturn:
    """End the test: skip it on a developer's machine, fail it in CI, where all of these tests must run."""
    message = f"{what} is not installed (apt-get install {packages})"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def folder(name: str) -> Iterator[Path]:
    """Make a folder outside of pytest's own, which another user may not enter."""
    path = Path(tempfile.mkdtemp(prefix=f"cachesvc-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(command: list[str], place: Path, end: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process, and end it with the block by the signal ``end``. Its output goes to
    ``place/<program>.log``."""
    with (place / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(end)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def until(answers: Callable[[], bool], process: subprocess.Popen[bytes], place: Path) -> None:
    """Wait for a server that has just been started. Fail with the server's output."""
    for _ in range(600):
        if process.poll() is None and answers():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    output = "".join(log.read_text("utf-8", "replace")[-2000:] for log in place.glob("*.log"))
    raise AssertionError(f"{process.args} does not answer:\n{output}")


def connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
