"""Test what a shell completes, by the very call that the shell makes at the tab key."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

Complete = Callable[..., list[str]]


def variables(shell: str, line: str) -> dict[str, str]:
    """Return the variables that Typer's script for a shell sets."""
    if shell == "bash":
        return {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


@pytest.fixture
def complete(tmp_path, registry) -> Complete:
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
    }

    def run(line: str, shell: str = "bash", **changed: str) -> list[str]:
        entry = {"_CACHESVC_COMPLETE": f"complete_{shell}", **variables(shell, line)}
        program = "import sys; sys.argv = ['cachesvc']; from cachesvc.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **entry, **changed},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == "", done.stderr
        return [line for line in done.stdout.splitlines() if line]

    return run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_the_registry_complete(complete: Complete, command, bundle, shell: str) -> None:
    assert command("push", bundle("team/completed"))[0] == 0
    assert any("team/completed" in line for line in complete("cachesvc explain team/comp", shell))
    assert any("--strict" in line for line in complete("cachesvc run --str", shell))


def test_values_and_options_complete(complete: Complete, command, bundle) -> None:
    assert command("push", bundle("team/completed"))[0] == 0
    for line, expected in (
        ("cachesvc admin tokens create --role w", ["write"]),
        ("cachesvc admin tokens create -n te", ["team"]),
        ("cachesvc admin entries list team/comp", ["team/completed"]),
        ("cachesvc admin signers remove ed255", None),
        ("cachesvc admin tokens revoke t-", None),
        ("cachesvc pull --al", ["--all"]),
        ("cachesvc pull team/comp", ["team/completed"]),
        ("cachesvc run --mode readw", ["readwrite"]),
        ("cachesvc run team/completed -- python --str", []),
        ("cachesvc oci pu", ["push", "pull"]),
        ("cachesvc show team/comp", ["team/completed"]),
        ("cachesvc coverage team/comp", ["team/completed"]),
        ("cachesvc coverage team/completed --allow st", ["stale"]),
        ("cachesvc search --dev", ["--device"]),
        ("cachesvc push mod", []),
        ("cachesvc explain team/completed team", []),
    ):
        found = complete(line)
        assert found == expected if expected is not None else len(found) == 1, (line, found)


def test_a_registry_that_is_silent_or_refuses_costs_a_second_and_no_line(complete: Complete) -> None:
    assert complete("cachesvc explain team/", CACHESVC_TOKEN="csv_wrong") == []
    assert complete("cachesvc explain team/", CACHESVC_URL="not a URL") == []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        assert complete("cachesvc explain --he", CACHESVC_URL=url) == ["--help", "--here"]
        plain = time.monotonic() - begin
        assert complete("cachesvc explain team/", CACHESVC_URL=url) == []
        assert time.monotonic() - begin - plain < plain + 3.0
