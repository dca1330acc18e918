"""What somebody gains by asking for much and reading nothing, or by filling the line in which others wait."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from registry_making import Server, make, ok, refused

from cachesvc.door.shares import Bounds, Owner, Shares
from cachesvc_client.wire.errors import TooMany
from tests.security.test_bodies import MIB, connect, head, peak_while, secret

READERS = 1000
"""Connections of one token, as many requests as it may have under way."""
FEW = Bounds(token=4, lane=4, lanes=4, namespace=4, process=8)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", prepared=False).running() as running:
        yield running


def slow_reader(server: Server, path: str, token: str) -> socket.socket:
    """Ask for a path, and read nothing of the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect((host, int(port)))
    line.sendall(head("GET", path, 0, token))
    return line


def check_crowd(
    server: Server, path: str, token: str, *, seconds: float, honest: Callable[[], float], most: int
) -> None:
    """Check that a crowd which reads nothing of a path delays no honest request and fills no memory.

    ``seconds``: until the kernel buffers of a thousand connections are filled. ``honest``: makes a request
    and returns its seconds. ``most``: bytes that the server may use more."""
    lines: list[socket.socket] = []
    quiet = honest()

    def act() -> None:
        lines.extend(slow_reader(server, path, token) for _ in range(READERS))
        time.sleep(seconds)
        assert honest() < 5 + 20 * quiet

    try:
        assert peak_while(server, act) < most
    finally:
        for line in lines:
            line.close()


def test_a_crowd_that_reads_no_pack_fills_no_memory_and_delays_no_reader(server: Server) -> None:
    """Each had two MiB of the pack in the registry's memory."""
    revision = ok(server.api().publish(make(server.key, content=os.urandom(20 * MIB))))["revision"]
    path, token = f"/v1/revisions/{revision}/pack", secret(server, "read")
    reader = server.api(secret(server, "read"))

    def read() -> float:
        began = time.monotonic()
        assert len(reader.http.get(path, timeout=60).content) > 20 * MIB
        return time.monotonic() - began

    check_crowd(server, path, token, seconds=15, honest=read, most=256 * MIB)


def test_strangers_who_ask_for_much_stop_no_one_and_fill_no_memory(server: Server) -> None:
    """The description of the API, which anybody gets, has 180 kB. It was made for each request, and all
    others waited: 16 seconds for a thousand."""
    api = server.api()

    def resolve() -> float:
        began = time.monotonic()
        assert api.resolve().status_code == 404
        return time.monotonic() - began

    resolve()
    check_crowd(server, "/openapi.json", "", seconds=5, honest=resolve, most=160 * MIB)


class _Crowd:
    """Commits of 40 MiB that come slowly, from three namespaces, and again once they are refused."""

    def __init__(self, server: Server) -> None:
        self._server, self._heads, self._stop = server, list[bytes](), threading.Event()
        for space in ("evil-1", "evil-2", "evil-3"):
            for token in [secret(server, "write", space) for _ in range(5)]:
                upload = ok(server.api(token).begin(make(server.key, namespace=space)))["upload"]
                self._heads += [head("POST", f"/v1/uploads/{upload}/commit", 40 * MIB, token)] * 60
        self._lines: list[socket.socket | None] = [None] * len(self._heads)

    @contextmanager
    def coming(self) -> Iterator[None]:
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            time.sleep(5)
            yield
        finally:
            self._stop.set()
            thread.join()

    def _send(self) -> None:
        while not self._stop.wait(0.05):
            for number, text in enumerate(self._heads):
                self._lines[number] = self._go_on(self._lines[number], text)

    def _go_on(self, line: socket.socket | None, text: bytes) -> socket.socket | None:
        if line is None:
            line = connect(self._server)
            line.sendall(text)
            line.setblocking(False)
        try:
            line.send(b"x" * 3000)
            line.recv(4096)
        except BlockingIOError:
            return line
        except OSError:
            pass
        line.close()
        return None


def test_namespaces_that_fill_the_line_of_large_commits_keep_no_other_out(server: Server) -> None:
    """256 requests waited, so every other one was told to come again, for as long as the attackers liked."""
    with _Crowd(server).coming():
        api = server.api(secret(server, "write"))
        upload = ok(api.begin(make(server.key)))["upload"]
        large = {"envelope": "x" * (30 * MIB), "head": None}
        refused(api.http.post(f"/v1/uploads/{upload}/commit", json=large, timeout=100), 422, "corrupt")


def test_who_comes_last_has_its_turn_before_those_who_filled_the_line() -> None:
    async def act() -> None:
        shares = Shares(FEW, waiting=6)
        served: list[str] = []

        async def hold(owner: Owner) -> None:
            async with shares.hold(owner, 4):
                served.append(owner.namespace)
                await asyncio.sleep(0.01)

        evil = [Owner(f"{space}-{token}", space) for token in range(2) for space in ("one", "two")]
        tasks = [asyncio.create_task(hold(owner)) for owner in evil * 2]
        await asyncio.sleep(0)
        late = asyncio.create_task(hold(Owner("token", "honest")))
        answers = await asyncio.gather(late, *tasks, return_exceptions=True)
        assert answers[0] is None and served.index("honest") == 4, "behind one of each namespace"
        assert [type(answer) for answer in answers].count(TooMany) == 1, "one of those who fill it leaves"
        honest = Owner("token", "honest")
        assert shares.try_hold(honest, 4) and not shares.try_hold(honest, 1)

    asyncio.run(act())


def test_a_token_that_fills_the_line_of_its_namespace_is_sent_away_itself() -> None:
    async def act() -> None:
        shares = Shares(FEW, waiting=4)
        assert shares.try_hold(Owner("evil", "team"), 4)
        waiting = [asyncio.create_task(_wait(shares, Owner("evil", "team"))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await _wait(shares, Owner("evil", "team"))
        honest = asyncio.create_task(_wait(shares, Owner("honest", "team")))
        await asyncio.sleep(0)
        assert isinstance((await asyncio.gather(waiting[-1], return_exceptions=True))[0], TooMany)
        for _ in range(4):
            shares.release(Owner("evil", "team"), 1)
        await asyncio.gather(honest, *waiting[:-1])

    asyncio.run(act())


async def _wait(shares: Shares, owner: Owner) -> None:
    async with shares.hold(owner, 1):
        pass
