"""Run containers of a manifest as processes, with their command and variables and nothing else of this
process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .charts import ROOT

SECONDS = 60


def variables(container: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the variables of a container of Kubernetes, with the values of its secrets."""
    values = {}
    for row in container.get("env", []):
        if "value" in row:
            values[row["name"]] = row["value"]
        else:
            source = row["valueFrom"]["secretKeyRef"]
            values[row["name"]] = secrets[source["name"]][source["key"]]
    return values


def environment(place: Path, container_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an image: no home, and nothing of the developer's."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")))
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": path,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    return {**variables, "HOME": "/nonexistent", "TMPDIR": str(place), **container_variables}


def run(words: list[str], env: Mapping[str, str], place: Path, *, status: int = 0) -> str:
    """Run a ``cachesvc`` command that must end with ``status``, and return its output."""
    result = subprocess.run(
        [sys.executable, "-m", "cachesvc", *words],
        env=environment(place, env),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == status, result.stderr
    return result.stdout + result.stderr


@contextlib.contextmanager
def serving(words: list[str], env: Mapping[str, str], place: Path) -> Iterator[str]:
    """Serve on a port of its own and return the URL once the server is ready. The server must end well, and
    print no secret."""
    ready = place / f"{time.monotonic_ns()}.json"
    command = [sys.executable, "-m", "cachesvc", *words, "--ready-file", str(ready), "--port", "0"]
    process = subprocess.Popen(
        command,
        env=environment(place, env),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + SECONDS
        while not ready.exists():
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            assert time.monotonic() < until
            time.sleep(0.05)
        yield json.loads(ready.read_text())["url"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "csv_" not in out + err


def get(url: str) -> Any:
    """Return the JSON at this URL."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return json.load(answer)
