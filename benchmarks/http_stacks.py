"""Compare the client's own HTTP with urllib3, as ADR 21 weighs them: ``python -m benchmarks.http_stacks``.

Measures an import, a warm call over loopback, and how long a call that has a deadline is held by a peer that
sends a byte now and then, and by a host of silent addresses. Prints JSON; takes about a minute.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import urllib3

from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import split_url
from cachesvc_client.http.registry import Remote
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire.errors import Unavailable

IMPORTS = {"http.client, ssl": "http.client, ssl", "urllib3": "urllib3"}
BODY = b'{"service":"cachesvc","version":"0.1.0","api":1}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Cachesvc-Api: 1\r\n\r\n%b" % (len(BODY), BODY)
DRIPS = {
    "status line": b"H",
    "header": b"HTTP/1.1 200 OK\r\nX-A: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n",
}
DRIP_SECONDS = 8.0
"""Seconds for which the dripping peer goes on."""
DEADLINE = 0.4
ADDRESSES = 12


def main() -> None:
    """Print the measurements."""
    seconds_held = {where: seconds_until_answer(first) for where, first in DRIPS.items()}
    facts = {
        "import, CPU ms, median of 9": _imports(),
        "warm call, microseconds, median of 3000": _warm_calls(),
        f"seconds held by a dripping peer, deadline {DEADLINE}": seconds_held,
        f"seconds held by {ADDRESSES} silent addresses, deadline {DEADLINE}": _held_by_addresses(),
    }
    print(json.dumps(facts, indent=1))


def _imports() -> dict[str, float]:
    timed = "import time; c = time.process_time(); import {}; print((time.process_time() - c) * 1e3)"
    seconds_by_module: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(9):
        for name, modules in IMPORTS.items():
            command = [sys.executable, "-c", timed.format(modules)]
            seconds_by_module[name].append(
                float(subprocess.run(command, capture_output=True, check=True).stdout)
            )
    return {name: round(statistics.median(times), 1) for name, times in seconds_by_module.items()}


def _warm_calls() -> dict[str, dict[str, int]]:
    with _serving(_answering) as port:
        url = f"http://127.0.0.1:{port}"
        origin, _ = split_url(url, "url")
        headers = {"Accept-Encoding": "identity", "Host": origin.netloc, "Authorization": "Bearer secret"}
        own, manager = Pool(3.0), urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=10))
        single = urllib3.HTTPConnectionPool("127.0.0.1", port, timeout=10)

        def ours() -> bytes:
            clock = Clock(time.monotonic() + 10, 10)
            with own.request(origin, "GET", "/v1/info", headers, None, clock, reuse=True) as response:
                return response.body(1 << 20)

        def urllib3_manager() -> bytes:
            reply = manager.request("GET", f"{url}/v1/info", headers=headers, redirect=False)
            return reply.data

        def urllib3_one_host() -> bytes:
            reply = single.urlopen("GET", "/v1/info", headers=headers, redirect=False, retries=False)
            return reply.data

        calls = (ours, urllib3_manager, urllib3_one_host)
        assert {call() for call in calls} == {BODY}
        return {call.__name__: times for call, times in zip(calls, _alternating(calls), strict=True)}


def _alternating(calls: tuple[Callable[[], bytes], ...]) -> list[dict[str, int]]:
    timings: list[list[tuple[float, float]]] = [[] for _ in calls]
    for _ in range(3000):
        for times, call in zip(timings, calls, strict=True):
            began, cpu = time.perf_counter(), time.thread_time()
            call()
            times.append((time.perf_counter() - began, time.thread_time() - cpu))
    medians = (
        [round(statistics.median(column) * 1e6) for column in zip(*times, strict=True)] for times in timings
    )
    return [{"wall": wall, "cpu": cpu} for wall, cpu in medians]


def seconds_until_answer(first: bytes) -> dict[str, float]:
    def drip(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(first)
        until = time.monotonic() + DRIP_SECONDS
        while time.monotonic() < until:
            time.sleep(0.02)
            sock.sendall(b"a")

    with _serving(drip) as port:
        return _both(f"http://127.0.0.1:{port}")


def _held_by_addresses() -> dict[str, float]:
    """Measure a call to a name of addresses whose queue is full, so that connecting to them hangs."""
    with contextlib.ExitStack() as stack:
        port, real = 0, socket.getaddrinfo
        for number in range(ADDRESSES):
            listener = stack.enter_context(socket.socket())
            listener.bind((f"127.0.0.{number + 2}", port))
            listener.listen(0)
            port = listener.getsockname()[1]
            for _ in range(8):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
        rows = [
            real(f"127.0.0.{number + 2}", port, type=socket.SOCK_STREAM)[0] for number in range(ADDRESSES)
        ]
        socket.getaddrinfo = lambda *_, **__: rows  # type: ignore[assignment]
        try:
            return _both(f"http://many.test:{port}")
        finally:
            socket.getaddrinfo = real


def _both(url: str) -> dict[str, float]:
    def own() -> None:
        Remote(url, retries=0).info(deadline=time.monotonic() + DEADLINE)

    def theirs() -> None:
        manager = urllib3.PoolManager(retries=False)
        manager.request("GET", url, timeout=urllib3.Timeout(total=DEADLINE), redirect=False)

    seconds = {}
    for name, call in (("ours", own), ("urllib3", theirs)):
        began = time.monotonic()
        with contextlib.suppress(Unavailable, urllib3.exceptions.HTTPError):
            call()
        seconds[name] = round(time.monotonic() - began, 2)
    return seconds


def _answering(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while sock.recv(1 << 16):
        sock.sendall(ANSWER)


@contextlib.contextmanager
def _serving(act: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve on a port; each connection gets a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            act(sock)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


if __name__ == "__main__":
    main()
