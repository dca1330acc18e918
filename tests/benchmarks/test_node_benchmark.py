"""Test that the verdict of the benchmark of a node follows from its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import Registry
from benchmarks.node.__main__ import Bench, summary
from benchmarks.node.relay import CountingRelay

START: dict[str, Any] = {"installed": 1, "waited": 1.0}


@pytest.mark.parametrize(
    ("passed", "most", "starts", "broken"),
    [
        (1_040, 1.05, [START, START], []),
        (1_060, 1.05, [START, START], ["1.060 packs, 1.05 at most"]),
        (1, 0.0, [START], ["0.001 packs, 0.0 at most"]),
        (0, 0.0, [START, {**START, "installed": 0}], ["1 starts did not restore"]),
    ],
)
def test_a_broken_promise_is_named(
    passed: int, most: float, starts: list[dict[str, Any]], broken: list[str]
) -> None:
    bench = Bench(Registry("http://127.0.0.1:1"), CountingRelay(), Path(), 8, pack=1_000)
    row = summary(bench, starts, passed, most)
    assert (row["broken"], row["starts"], row["bytes"]) == (broken, len(starts), passed)


def test_the_relay_counts_both_directions_and_breaks_what_is_open() -> None:
    import http.server
    import threading
    import urllib.request

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with CountingRelay(f"127.0.0.1:{server.server_port}").running() as relay:
        assert isinstance(relay, CountingRelay)
        with urllib.request.urlopen(relay.url, timeout=10) as answer:
            size = len(answer.read())
        assert relay.passed > size + 100
        relay.lost = True
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            urllib.request.urlopen(relay.url, timeout=5)
    server.shutdown()
    server.server_close()
