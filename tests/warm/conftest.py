"""A real registry process and the real command, for the end-to-end tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TINY = Path(__file__).parent / "tiny"
MAIN = "from cachesvc.cli import main; main()"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, arguments)]


@pytest.fixture(scope="session")
def plain_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment without variables of cachesvc, with a home folder of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    home = tmp_path_factory.mktemp("home")
    environ |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
    return environ


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory, plain_environment) -> Iterator[dict[str, str]]:
    """The variables of a publisher to a registry that runs while the tests do."""
    folder = tmp_path_factory.mktemp("registry")
    ready = folder / "ready.json"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            command("serve", "--data", folder / "data", "--port", "0", "--ready-file", ready),
            env=plain_environment,
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 60
        while not ready.exists():
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        facts = json.loads(ready.read_text())
        yield {
            **plain_environment,
            "CACHESVC_URL": facts["url"],
            "CACHESVC_TOKEN": facts["token"],
            "CACHESVC_TRUSTED_KEYS": facts["trust"],
            "CACHESVC_SIGNING_KEY": facts["signing_key"],
        }
    finally:
        server.terminate()
        server.wait(30)
