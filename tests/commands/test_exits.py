"""How a process ends at each step of a start: with its own exit status, in time, and without a traceback of
ours. A proxy before a real registry holds the process at the step, so nothing of the client is replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest


class HoldingProxy:
    """Passes TCP on to a registry, but holds back each request that contains ``held``, for ever."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._registry = (host, int(port))
        self.held = b""
        self.holds = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._pass, args=(self._listener.accept()[0],), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._registry) as registry:
            threading.Thread(target=self._back, args=(client, registry), daemon=True).start()
            while chunk := client.recv(1 << 16):
                if self.held and self.held in chunk:
                    self.holds.set()
                    client.recv(1)  # until the process ends
                    return
                registry.sendall(chunk)

    @staticmethod
    def _back(client: socket.socket, registry: socket.socket) -> None:
        with suppress(OSError):
            while chunk := registry.recv(1 << 16):
                client.sendall(chunk)


@pytest.fixture
def proxy(registry) -> Iterator[HoldingProxy]:
    made = HoldingProxy(registry.url)
    yield made
    made.close()


STEPS = {
    "attach": (None, "pass"),
    "read the configuration": (None, "wait_for_reader(os.environ['HOME'] + '/.config/cachesvc/login.json')"),
    "resolve": (b"POST /v1/resolve", "wait_for_proxy()"),
    "download": (b"/pack", "wait_for_proxy()"),
    "restored": (None, "session.wait(60); assert session.status == 'restored', session.error"),
    "report": (b"POST /v1/reports", "session.wait(60); assert session.status == 'restored', session.error"),
}
"""By step: the request that the proxy holds back, and how the program waits until it is there."""
ENDINGS = {
    "last line": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('of the program')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "SIGINT": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "os._exit": ("os._exit(4)", 4),
    "daemon thread": ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", 0),
    "thread goes on": ("threading.Thread(target=time.sleep, args=(1.5,)).start()", 0),
}
PROGRAM = """
import os, signal, sys, threading, time
import cachesvc_client
def wait_for_proxy():
    sys.stdin.readline()
def wait_for_reader(path):
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
session = cachesvc_client.attach({name!r})
{wait}
print("there", flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("step", STEPS)
def test_a_process_ends_as_it_would_without_us(step, ending, bundle, command, registry, proxy, tmp_path):
    file = f"ab/{'c' * 30}.best_config"
    assert command("push", bundle("team/exits", file=file, content=b"{}"))[0] == 0
    proxy.held, wait = STEPS[step][0] or b"", STEPS[step][1]
    last, status = ENDINGS[ending]
    home = tmp_path / "home"
    (home / ".config" / "cachesvc").mkdir(parents=True)
    if step == "read the configuration":
        os.mkfifo(home / ".config" / "cachesvc" / "login.json", 0o600)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CACHESVC_URL": proxy.url,
        "CACHESVC_TOKEN": registry.token,
        "CACHESVC_TRUSTED_KEYS": registry.trust,
    }
    program = PROGRAM.format(name="team/exits", wait=wait, ending=last)
    with open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    with process:
        if wait == "wait_for_proxy()":
            assert proxy.holds.wait(60)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "there\n", (tmp_path / "err").read_text()
        begin = time.monotonic()
        try:
            assert process.wait(30) == status
        finally:
            process.kill()
    assert time.monotonic() - begin < 15, "a second is what an exit waits; the machine may be busy"
    if step == "report" and status in (0, 1, 3):
        assert proxy.holds.is_set(), "the exit began to report"
    said = (tmp_path / "err").read_text()
    own = {"exception": "RuntimeError: of the program", "SIGINT": "KeyboardInterrupt"}.get(ending)
    assert "cachesvc_client/" not in said and "Exception ignored" not in said and "Fatal" not in said, said
    assert said.count("Traceback") == (own is not None), said
    assert own is None or said.splitlines()[-1] == own or "not restored" in said, said
