"""A real `cachesvc serve` for the tests, and registries that misbehave."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.prepared import SERVES, prepared_python

SETTLED_SECONDS = 60
"""A busy machine takes that long for what a free one does in less than ten."""


@dataclass
class Served:
    """A running registry. ``token``: told at the first start on a folder only."""

    url: str
    trust: str
    signing_key: str
    process: subprocess.Popen[str]
    token: str = ""

    @property
    def address(self) -> str:
        """``host:port``."""
        return self.url.removeprefix("http://")

    @property
    def variables(self) -> dict[str, str]:
        return {
            "CACHESVC_URL": self.url,
            "CACHESVC_TOKEN": self.token,
            "CACHESVC_TRUSTED_KEYS": self.trust,
        }

    @property
    def publisher(self) -> dict[str, str]:
        return {**self.variables, "CACHESVC_SIGNING_KEY": self.signing_key}


def prepare(folder: Path, signing_key: str) -> None:
    """A data folder whose registry trusts this key and signs with it."""
    data = folder / "data"
    data.mkdir(parents=True, mode=0o700)
    (data / "signing.key").touch(mode=0o600)
    (data / "signing.key").write_text(signing_key)


@contextmanager
def serve(
    folder: Path,
    *options: str,
    variables: Mapping[str, str] | None = None,
    prepared: bool = True,
    before: tuple[str, ...] = (),
) -> Iterator[Served]:
    """`cachesvc serve` on a free port of loopback, ended with SIGTERM. Data and log are in ``folder``.

    ``prepared``: in an interpreter that has imported its modules already; not where a test stops or kills the
    process itself, nor after the words ``before``."""
    ready, log = folder / "ready.json", folder / "log"
    ready.unlink(missing_ok=True)
    assert not (prepared and before), "an interpreter that runs already"
    python = prepared_python(SERVES, variables or os.environ) if prepared else [*before, sys.executable]
    command = [*python, "-m", "cachesvc", "serve", "--data", str(folder / "data"), "--port", "0"]
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), *options], env=variables, stdout=out, stderr=out, text=True
        )
    try:
        for _ in range(1200):
            if ready.exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        assert ready.exists(), log.read_text()
        yield Served(**json.loads(ready.read_text()), process=process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@contextmanager
def hung() -> Iterator[str]:
    """The URL of a registry that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def free_url() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def client(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`cachesvc` with these words, without the variables of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    return subprocess.run(
        [*prepared_python(SERVES, {**kept, **variables}), "-m", "cachesvc", *words],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def starts(registry: Served) -> dict[str, int]:
    """Return how many starts of the one entry of ``team`` the registry counts, by state."""
    url = f"{registry.url}/v1/namespaces/team/entries"
    [entry] = httpx.get(url, headers={"Authorization": f"Bearer {registry.token}"}).json()
    states = ("hit", "partial", "inert", "unused")
    return {state: sum(use[state] for use in entry["usefulness"]) for state in states}


def wait_for(what: Callable[[], Any], seconds: float = SETTLED_SECONDS) -> Any:
    """Call ``what`` until it returns something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
    return found


def more(before: dict[str, int], **states: int) -> dict[str, int]:
    """Return the counts that ``starts`` returns after these starts too."""
    return {state: count + states.get(state, 0) for state, count in before.items()}
