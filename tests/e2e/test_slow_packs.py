"""A pack that drips: one start waits for it, the next ones do not, and use what the node compiled itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from .conftest import NAME
from .harness import SCALAR, ProgramResult, run
from .registries import Served

pytestmark = pytest.mark.compiles


@contextmanager
def dripping(registry: Served, dry: bool = False) -> Iterator[str]:
    """The URL of a registry behind a network that lets packs through a byte at a time, or not at all."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            url = registry.url + self.path
            answer = httpx.request(self.command, url, headers=headers, content=body, timeout=60)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in ("content-length", "content-encoding", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "GET" or "pack" not in self.path:
                self.wfile.write(answer.content)
                return
            for byte in answer.content:
                if dry or over.wait(0.2):
                    break
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
            over.wait(60)
            self.close_connection = True

        do_GET = do_POST = do_PUT = forward

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # the client has ended
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def start(place: Path, registry: Served, url: str, deadline: float) -> ProgramResult:
    variables = {**SCALAR, **registry.variables, "CACHESVC_URL": url, "CACHESVC_DEADLINE": f"{deadline:g}"}
    words = (f"name={NAME}", "small=1")
    return run("serve.py", *words, place=place, prepared=True, **variables)


@pytest.mark.parametrize("dry", [False, True], ids=["drips", "dry"])
def test_a_pack_that_does_not_come_is_waited_for_once(tmp_path: Path, registry: Served, dry: bool) -> None:
    with dripping(registry, dry) as url:
        first = start(tmp_path, registry, url, 2).answer
        assert first["observed"]["compilations"] > 0
        [mark] = (tmp_path / "home/.cache/cachesvc/v1/slow").iterdir()
        second = start(tmp_path, registry, url, 300)
        assert second.answer["observed"]["compilations"] == 0, "it uses what this node compiled"
        assert "came too slowly for an earlier start" in second.err
    os.utime(mark, (time.time() - 3600,) * 2)
    if dry:
        return
    third = start(tmp_path, registry, registry.url, 300).answer
    assert (third["state"], third["installed"]) == ("hit", 1), "the memory ends"
