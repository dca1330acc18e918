"""What a registry says in an error reaches logs and terminals as one printable line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cachesvc_client.console.tables import aligned
from cachesvc_client.wire.errors import CacheSvcError, from_wire
from cachesvc_client.wire.requests.protocol import API_HEADER, API_VERSION

REPOSITORY = Path(__file__).parents[2]
HOSTILE = "no\nWARNING:root:forged line\r\x1b]0;owned\x07\x1b[2J\u202e\u2028end … ok"

SERVICE = """
import logging
logging.basicConfig(level=logging.INFO)
import cachesvc_client
cachesvc_client.attach("team/x").wait(60)
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A registry that refuses everything, in hostile words."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.dumps({"error": {"code": "forbidden", "message": HOSTILE, "hint": HOSTILE}}).encode()
            self.send_response(403)
            self.send_header(API_HEADER, str(API_VERSION))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=front.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{front.server_address[1]}"
    front.shutdown()
    thread.join()
    front.server_close()


@pytest.mark.parametrize(
    "words", [("-c", SERVICE), ("-m", "cachesvc_client", "pull", "team/x", "--into", "o")]
)
def test_logs_and_commands_show_one_printable_line(url: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    own = {
        "CACHESVC_URL": url,
        "CACHESVC_TOKEN": "csv_x",
        "CACHESVC_TRUSTED_KEYS": "ed25519:REPLACE+THIS+BY+THE+KEY+OF+CACHESVC+KEYGEN0=",
        "CACHESVC_STORE": str(tmp_path / "store"),
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        [sys.executable, *words], env={**kept, **own}, cwd=tmp_path, capture_output=True, timeout=120
    )
    said = done.stderr.decode()
    lines = [line for line in said.split("\n") if "forged line" in line]
    assert lines, said
    for line in lines:
        assert line.isprintable(), line
        assert "no?WARNING" in line and "… ok" in line


def test_every_error_is_one_printable_line() -> None:
    for error in (
        CacheSvcError(HOSTILE, HOSTILE),
        from_wire(403, {"error": {"code": "forbidden", "message": HOSTILE, "hint": HOSTILE}}),
        from_wire(500, {"error": {"code": "unavailable", "message": "half a \ud800 pair"}}),
    ):
        assert str(error).isprintable() and error.args == (error.message,)


def test_a_registry_writes_into_no_table_of_a_terminal() -> None:
    text = aligned([("name", "label"), (HOSTILE, HOSTILE)])
    assert len(text.split("\n")) == 2 and all(line.isprintable() for line in text.split("\n"))


def test_whoever_names_a_file_or_a_host_writes_one_line_into_the_shown_log(tmp_path: Path) -> None:
    program = (
        "import logging\nfrom cachesvc_client.outcome.show_log import show\nshow('info')\n"
        f"logging.getLogger('cachesvc').warning('%s', {HOSTILE!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    [line] = done.stderr.decode().removesuffix("\n").split("\n")
    assert line.isprintable() and "forged line" in line, line
