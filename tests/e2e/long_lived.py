"""Run services that live on and compile what a test tells them: ``programs/long_running.py``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.hosts import trap
from cachesvc_client.wire.requests.protocol import ANSWER_SECONDS
from tests.prepared import COMPILES, prepared_python
from tests.python_process import running_python

from .harness import PROGRAMS, SCALAR, environment


class Service:
    """A process of ``long_running.py`` that has restored. ``first``: its answer before its first compile."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.process, self.place = process, place
        self.first = self._read()
        self._restored = time.monotonic()

    def do(self, words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return self._read()

    def later(self, words: str) -> dict[str, Any]:
        """Do it when the answer that the process restored from is no longer new."""
        time.sleep(max(0.0, self._restored + ANSWER_SECONDS + 0.5 - time.monotonic()))
        return self.do(words)

    @property
    def log(self) -> str:
        return (self.place / "err").read_text()

    @property
    def compilers(self) -> list[str]:
        called = self.place / "trap" / "called"
        return called.read_text().splitlines() if called.exists() else []

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log[-3000:]
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def service(
    place: Path, name: str, *, fresh: bool = False, compilers: bool = True, **variables: str
) -> Iterator[Service]:
    """Start a service on a host of its own; ``fresh``: in a Python that has imported nothing."""
    env = {**environment(place), **SCALAR, "CACHESVC_LOG": "info", **variables}
    if not compilers:
        env["PATH"] = str(trap(place / "trap"))
    python: Sequence[str] = [sys.executable] if fresh else prepared_python(COMPILES, env)
    arguments = [str(PROGRAMS / "long_running.py"), name]
    with running_python(arguments, place, env, place / "work", python) as process:
        yield Service(process, place)
