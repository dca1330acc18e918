"""Run commands in a network that has nothing but loopback: for programs that open ports on all addresses.

A namespace of Linux has its own addresses and processes. No other machine can reach what listens there, and
what runs there ends with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

_NAMESPACES = ("--user", "--net", "--pid", "--mount")
_ASK = """
import json, sys, urllib.request
url, token = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""


@dataclass(frozen=True)
class Loopback:
    """Is such a network. ``enter``: the words before a command that shall run in it."""

    enter: tuple[str, ...]

    def get(self, url: str, token: str) -> Any:
        """Return the JSON at a URL of this network."""
        words = [*self.enter, sys.executable, "-c", _ASK, url, token]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)


@contextmanager
def loopback() -> Iterator[Loopback]:
    """Make such a network, and end it with all that runs in it. Skip the test where this user may not."""
    stay = "ip link set lo up && echo ready && exec sleep infinity"
    unshare, nsenter = shutil.which("unshare"), shutil.which("nsenter")
    if unshare is None or nsenter is None or shutil.which("ip") is None:
        pytest.skip("no network of its own for the test: unshare, nsenter or ip is missing")
    command = [unshare, *_NAMESPACES, "--map-root-user", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    with subprocess.Popen(
        [*command, stay], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline().strip() != "ready":
                pytest.skip(f"no network of its own for the test: {process.stderr.read().strip()[:200]}")
            [child] = _children(process.pid)
            yield Loopback((nsenter, "--preserve-credentials", f"--target={child}", *_NAMESPACES, "--"))
        finally:
            process.kill()


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
