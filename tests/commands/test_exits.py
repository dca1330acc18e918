"""Test how a process ends at each step of a start: with its own exit status, in time, and without a traceback
of cachesvc.

A relay before a real registry holds the process at the step, so nothing of the client is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.python_process import running_python
from tests.services.relay import Relay, relay

if TYPE_CHECKING:
    from .conftest import Registry


@pytest.fixture
def registry_relay(registry) -> Iterator[Relay]:
    """Open a relay to the registry that holds the request which a test names."""
    with relay(registry.url.removeprefix("http://")) as opened:
        yield opened


STEPS = {
    "attach": (None, "pass"),
    "read the configuration": (None, "wait_for_reader(os.environ['HOME'] + '/.config/cachesvc/login.json')"),
    "detection": (None, "wait_for_reader(os.environ['CXX'])"),
    "resolve": (b"POST /v1/resolve", "wait_for_relay()"),
    "download": (b"/pack", "wait_for_relay()"),
    "install": (None, "wait_for_lock()"),
    "restored": (None, "session.wait(60); assert session.status == 'restored', session.error"),
    "report": (b"POST /v1/reports", "session.wait(60); assert session.status == 'restored', session.error"),
}
"""By step: the request that the relay holds back, and how the program waits until it is there. A detection
reads the compiler, which is a pipe here; an install waits for a lock that another process may have."""
ENDINGS = {
    "last line": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('of the program')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "SIGINT": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "os._exit": ("os._exit(4)", 4),
    "daemon thread": ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", 0),
    "sys.exit in a thread": ("threading.Thread(target=sys.exit, args=(5,)).start()", 0),
    "thread goes on": ("threading.Thread(target=time.sleep, args=(1.5,)).start()", 0),
}
PROGRAM = """
import fcntl, os, signal, sys, threading, time
import cachesvc_client
def wait_for_relay():
    sys.stdin.readline()
def wait_for_reader(path):
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
def lock(folder):
    os.makedirs(folder + "/.cachesvc", 0o700)
    handle = os.open(folder + "/.cachesvc/lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
def wait_for_lock():
    while not any("->" in line and str(os.getpid()) in line.split() for line in open("/proc/locks")):
        time.sleep(0.01)
if {install}:
    lock(os.environ["TORCHINDUCTOR_CACHE_DIR"])
session = cachesvc_client.attach({name!r})
{wait}
print("there", flush=True)
{ending}
"""
CASES = [
    pytest.param(step, ending, marks=[pytest.mark.long] * bool((row + column) % 3))
    for row, step in enumerate(STEPS)
    for column, ending in enumerate(ENDINGS)
]
"""Each step with each end. `make test` runs every third one: of each step, and of each end."""


def variables_of(place: Path, registry: Registry, registry_relay: Relay, **more: str) -> dict[str, str]:
    """Return the variables of a program whose home is in ``place`` and whose requests pass the relay
    ``registry_relay``."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "CACHESVC_URL": registry_relay.url,
        "CACHESVC_TOKEN": registry.token,
        "CACHESVC_TRUSTED_KEYS": registry.trust,
        **more,
    }


@pytest.mark.parametrize(("step", "ending"), CASES)
def test_a_process_ends_as_it_does_without_cachesvc(
    step, ending, bundle, command, registry, registry_relay, tmp_path
):
    file = f"ab/{'c' * 30}.best_config"
    assert command("push", bundle("team/exits", file=file, content=b"{}"))[0] == 0
    registry_relay.hold, wait = STEPS[step][0] or b"", STEPS[step][1]
    last, status = ENDINGS[ending]
    home = tmp_path / "home"
    (home / ".config" / "cachesvc").mkdir(parents=True)
    if step == "read the configuration":
        os.mkfifo(home / ".config" / "cachesvc" / "login.json", 0o600)
    variables = variables_of(tmp_path, registry, registry_relay)
    if step == "detection":
        os.mkfifo(compiler := tmp_path / "compiler", 0o700)
        variables["CXX"] = str(compiler)
    if step == "install":
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")
    program = PROGRAM.format(name="team/exits", wait=wait, ending=last, install=step == "install")
    with running_python(["-c", program], tmp_path, variables) as process:
        if wait == "wait_for_relay()":
            assert registry_relay.holds.wait(60)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "there\n", (tmp_path / "err").read_text()
        begin = time.monotonic()
        # CPython forgets that nobody handled an interrupt (status -2) and ends with 1 if another thread runs
        # `exec` of a text meanwhile, as imports of dataclasses do (`run_eval_code_obj` in pythonrun.c).
        allowed = {status, 1} if ending == "SIGINT" else {status}
        assert process.wait(30) in allowed, (tmp_path / "err").read_text()
    assert time.monotonic() - begin < 15, "an exit waits one second; the machine may be busy"
    if step == "report" and status in (0, 1, 3):
        assert registry_relay.holds.is_set(), "the exit began to report"
    stderr = (tmp_path / "err").read_text()
    own = {"exception": "RuntimeError: of the program", "SIGINT": "KeyboardInterrupt"}.get(ending)
    assert "cachesvc_client/" not in stderr and "Exception ignored" not in stderr and "Fatal" not in stderr, (
        stderr
    )
    assert stderr.count("Traceback") == (own is not None), stderr
    assert own is None or stderr.splitlines()[-1] == own or "not restored" in stderr, stderr


COMPILING = """
import sys, threading, time
import cachesvc_client
def frames(frame):
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
def waits():
    files = [*frames(sys._current_frames()[threading.main_thread().ident])]
    waiting = any(file.endswith("session/compile_wait.py") for file in files)
    return files[0].endswith("threading.py") and waiting
def say_that_it_waits():
    while not (waits() and (time.sleep(0.5) or waits())):
        time.sleep(0.1)
    print("there", flush=True)
import torch, torch._inductor.compile_fx  # before, since the request of the restore ends after 10 seconds
session = cachesvc_client.attach("team/exits")
if {waits}:
    threading.Thread(target=say_that_it_waits, daemon=True).start()
else:
    session.wait(60)
torch.compile(lambda x: x.cos() + 1)(torch.ones(8))
"""


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("waits for the restore", signal.SIGINT),
        ("compiles", signal.SIGINT),
        ("compiles", signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_first_compile(step, number, registry, registry_relay, tmp_path):
    """The compile runs on the main thread. It waits for a restore whose request the relay holds, or for a
    compiler that does not end."""
    home, called = tmp_path / "home", tmp_path / "called"
    home.mkdir()
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho $$ >> {called}\nexec sleep 60\n")
    compiler.chmod(0o700)
    waits = step == "waits for the restore"
    registry_relay.hold = b"POST /v1/resolve" if waits else b""
    program = COMPILING.format(waits=waits)
    variables = variables_of(tmp_path, registry, registry_relay, CXX=str(compiler), CACHESVC_DEADLINE="60")
    with running_python(["-c", program], tmp_path, variables) as process:
        if waits:
            assert process.stdout.readline() == "there\n", (tmp_path / "err").read_text()
        until = time.monotonic() + 120
        while not (waits or called.exists()):
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "err").read_text()
            time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(number)
        try:
            assert process.wait(30) == -number
        finally:
            for child in called.read_text().split() if called.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
    assert time.monotonic() - begin < 15
    stderr = (tmp_path / "err").read_text()
    assert "Exception ignored" not in stderr and "Fatal" not in stderr, stderr
    interrupted = number == signal.SIGINT
    assert ("KeyboardInterrupt" in stderr.splitlines()[-1]) == interrupted if stderr else not interrupted, (
        stderr
    )


CONSOLE = "import code; code.InteractiveConsole().interact()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_console_is_interrupted_as_without_cachesvc(number, registry, registry_relay, tmp_path):
    """The console stays alive when it is interrupted in the middle of a restore, and ends when its user ends
    it."""
    (tmp_path / "home").mkdir()
    registry_relay.hold = b"POST /v1/resolve"
    variables = variables_of(tmp_path, registry, registry_relay, PYTHONUNBUFFERED="1")
    with running_python(["-c", CONSOLE], tmp_path, variables) as process:
        process.stdin.write("import cachesvc_client\nsession = cachesvc_client.attach('team/exits')\n")
        process.stdin.flush()
        assert registry_relay.holds.wait(60)
        process.send_signal(number)
        if number == signal.SIGTERM:
            assert process.wait(30) == -signal.SIGTERM
        else:
            until = time.monotonic() + 30
            while "KeyboardInterrupt" not in (tmp_path / "err").read_text():
                assert process.poll() is None and time.monotonic() < until, (tmp_path / "err").read_text()
                time.sleep(0.05)
            process.stdin.write("print('goes on')\nexit(3)\n")
            process.stdin.flush()
            assert process.wait(30) == 3
            assert "goes on" in process.stdout.read()
    stderr = (tmp_path / "err").read_text()
    assert "Traceback" not in stderr and "cachesvc_client/" not in stderr and "Fatal" not in stderr, stderr
