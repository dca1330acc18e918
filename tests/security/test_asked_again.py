"""What somebody gains by asking again and again for what costs much to make: lists, metrics, readiness."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from registry_inside import Clock, inside
from registry_making import FINGERPRINT, Server, make, ok

from cachesvc_client.bundle.seal import SigningKey
from tests.security.in_process import Application
from tests.security.test_bodies import MIB, peak_while, secret
from tests.security.test_listings import LARGE
from tests.security.test_readers import slow_reader

ENTRIES = 40
CROWD = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A registry in a process of its own, whose namespace `team` has large lists."""
    with Server(tmp_path_factory.mktemp("registry") / "data", prepared=False).running() as running:
        for number in range(ENTRIES):
            facts = {**FINGERPRINT, **LARGE, "number": number}
            made = make(running.key, target=f"t{number}", fingerprint=facts, content=b"%d" % number)
            ok(running.api().bundle(made))
        yield running


@pytest.mark.parametrize("path", ["/v1/namespaces/team/entries", "/v1/entries"])
def test_who_asks_for_many_lists_and_reads_none_fills_no_memory_and_delays_no_other(
    server: Server, path: str
) -> None:
    """An honest reader of another namespace waited 18 s: all threads made lists of the one token."""
    token = secret(server, "read")
    reader = server.api(secret(server, "read", "other"))
    lines: list[socket.socket] = []

    def read() -> float:
        began = time.monotonic()
        ok(reader.http.get("/v1/namespaces/other/entries", timeout=60))
        return time.monotonic() - began

    read()
    longest = 0.0

    def act() -> None:
        nonlocal longest
        lines.extend(slow_reader(server, path, token) for _ in range(CROWD))
        until = time.monotonic() + 10
        while time.monotonic() < until:
            longest = max(longest, read())

    try:
        rise = peak_while(server, act)
    finally:
        for line in lines:
            line.close()
    assert rise < 160 * MIB
    assert longest < 2


@pytest.mark.parametrize("path", ["/metrics", "/readyz"])
def test_a_crowd_of_strangers_costs_what_one_of_them_costs(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asked the backends by a thread of its own, and whoever came then waited for a thread."""
    asked: list[float] = []

    def slow() -> None:
        asked.append(time.monotonic())
        time.sleep(0.3)

    with (
        inside(tmp_path, SigningKey.generate(), Clock()) as reg,
        Application(reg.registry).running() as application,
    ):
        monkeypatch.setattr(reg.registry.hot, "check", slow)
        with ThreadPoolExecutor(60) as pool:
            answers = [pool.submit(application.request, "GET", path) for _ in range(60)]
        assert {answer.result().status for answer in answers} == {200}
        began = len(asked)
        assert 0 < began <= 4
        application.request("GET", path)
        assert len(asked) == began + 1, "an answer is begun after it was asked for"
