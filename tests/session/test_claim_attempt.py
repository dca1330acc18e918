"""Test the second attempt of a session, for a name that the registry lacks, with real processes and a
registry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.commands.conftest import Registry, clean_environment, registry

__all__ = ["registry"]

PROGRAM = """
import json, sys, threading, time
import cachesvc_client
from cachesvc_client.session.sessions import attached

session = cachesvc_client.attach("team/nobody-published")
session.wait(60)
seen, over = [session.ready], threading.Event()

def look():
    while not over.wait(0.01):
        seen.append(session.ready)

looking = threading.Thread(target=look)
looking.start()
begin = time.monotonic()
attached().before_compile()
waited = time.monotonic() - begin
over.set()
looking.join()
answer = {"ready": all(seen), "waited": waited, "claims": len(session.claims), "status": session.status}
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


def publisher_of(registry: Registry) -> dict[str, str]:
    """Return the variables of a process that publishes to a registry."""
    return {
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
        "CACHESVC_SIGNING_KEY": str(registry.key_path),
        "CACHESVC_TRUSTED_KEYS": str(registry.trust),
        "CACHESVC_MODE": "readwrite",
    }


def start(registry: Registry, place: Path, **more: str) -> tuple[subprocess.Popen[str], dict]:
    """Start a process that may publish. Return it with its answer after its first compile began."""
    place.mkdir()
    variables = {**publisher_of(registry), "CACHESVC_DEADLINE": "3"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**clean_environment(place), **variables, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        process.kill()
        raise AssertionError(process.stderr.read()[-3000:])
    return process, json.loads(line)


def test_a_session_stays_ready_while_it_waits_for_another_process(registry: Registry, tmp_path: Path) -> None:
    """A readiness probe that was true once must not become false when the first compile begins."""
    processes = []
    try:
        first, holder = start(registry, tmp_path / "first")
        processes.append(first)
        second, waiter = start(registry, tmp_path / "second")
        processes.append(second)
    finally:
        for process in processes:
            process.communicate("")
    assert holder["claims"] == 1, "otherwise no process waits"
    assert waiter["claims"] == 0 and waiter["waited"] > 1, "otherwise the test saw no second attempt"
    assert holder["ready"] and waiter["ready"]


def test_a_session_that_is_to_compile_takes_no_claim_and_waits_for_nobody(
    registry: Registry, tmp_path: Path
) -> None:
    processes = []
    try:
        for number, policy in enumerate(("wait", "compile")):
            process, answer = start(registry, tmp_path / str(number), CACHESVC_WAIT=policy)
            processes.append(process)
            if policy == "wait":
                assert answer["claims"] == 1, "otherwise there is nobody to wait for"
        assert answer["claims"] == 0 and answer["waited"] < 1, answer
    finally:
        for process in processes:
            process.communicate("")


PARENT = """
import subprocess, sys
import cachesvc_client
from cachesvc_client.session.sessions import attached

session = cachesvc_client.attach("team/nobody-published")
session.wait(60)
attached().before_compile()
assert len(session.claims) == 1
command = [sys.executable, "-c", sys.argv[1]]
child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
sys.stdout.write(child.stdout.decode())
"""


def test_a_child_of_the_process_that_compiles_does_not_wait_for_it(
    registry: Registry, tmp_path: Path
) -> None:
    """The parent waits for the child, as Helion's search does for the process that measures."""
    tmp_path.joinpath("host").mkdir()
    variables = {**publisher_of(registry), "CACHESVC_DEADLINE": "20"}
    answer = subprocess.run(
        [sys.executable, "-c", PARENT, PROGRAM],
        env={**clean_environment(tmp_path / "host"), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    child = json.loads(answer.stdout)
    assert child["claims"] == 0 and child["waited"] < 10, child
