"""Test the Traefik of the recipe before a registry."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from registry_making import FINGERPRINT, Server, listens, make, ok

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import ResolveRequest
from tests.services.process import free_port

RECIPE = Path(__file__).parents[2] / "deploy" / "traefik"
REQUIRED = os.environ.get("CACHESVC_TEST_PROXIES") == "required"
NAME = Name.parse("team/bert")


def program() -> str:
    """Return the path of Traefik, or skip the test; `make test-proxies` installs it and fails without."""
    found = shutil.which("traefik")
    if found is None and REQUIRED:
        pytest.fail("no Traefik")
    return found or pytest.skip("no Traefik here: make test-proxies installs it")


@contextlib.contextmanager
def traefik(folder: Path, replicas: list[int]) -> Iterator[str]:
    """Run the Traefik of the recipe for the block, without TLS and with these ports, and yield its URL."""
    port, found = free_port(), program()
    static, dynamic = ((RECIPE / name).read_text() for name in ("traefik.yml", "cachesvc.yml"))
    assert '":443"' in static and "      tls: {}\n" in dynamic
    static = static.replace('":443"', f'"127.0.0.1:{port}"')
    dynamic = dynamic.replace("      tls: {}\n", "")
    for shown, real in zip(("8751", "8752"), replicas, strict=True):
        assert shown in dynamic
        dynamic = dynamic.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
    folder.mkdir()
    (folder / "traefik.yml").write_text(static)
    (folder / "cachesvc.yml").write_text(dynamic)
    with (folder / "log").open("wb") as log:
        command = [found, "--configFile=traefik.yml"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 30
        while not listens(port) or httpx.get(f"{url}/v1/", trust_env=False).text == "404 page not found\n":
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def test_the_recipe_takes_large_packs_and_hides_a_replica_that_died(server: Server, tmp_path: Path) -> None:
    alive, dead = int(server.url.rpartition(":")[2]), free_port()
    publication = make(server.key, name="traefik", content=os.urandom(3 << 20))
    request = ResolveRequest(NAME.namespace, publication.manifest.statement.name, FINGERPRINT, (NAME.tag,))
    with traefik(tmp_path / "traefik", [dead, alive]) as url:
        through = server.api()
        through.http.base_url = url
        ok(through.publish(publication))
        remote = Remote(url, server.token, retries=0)
        for _ in range(20):
            assert remote.resolve(request).revisions
        assert through.http.get("/metrics").status_code == through.http.get("/readyz").status_code == 404


def test_a_replica_that_dies_under_requests_is_hidden(server: Server, tmp_path: Path) -> None:
    """Traefik takes it for alive until its next check, and asks the other one."""
    alive = int(server.url.rpartition(":")[2])
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    ok(server.api().publish(make(server.key, name="dying")))
    request = ResolveRequest(NAME.namespace, NAME.name.__class__("dying"), FINGERPRINT, (NAME.tag,))
    with traefik(tmp_path / "traefik", [other.server_port, alive]) as url:
        other.shutdown()
        other.server_close()
        remote = Remote(url, server.token, retries=0)
        for _ in range(20):
            assert remote.resolve(request).revisions


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was told of the client's address."""

    def do_GET(self) -> None:
        body = str(self.headers["X-Forwarded-For"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def test_the_address_of_a_client_is_not_what_the_client_says(tmp_path: Path) -> None:
    echo = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=echo.serve_forever, daemon=True).start()
    with traefik(tmp_path / "traefik", [echo.server_port, echo.server_port]) as url:
        said = {"X-Forwarded-For": "203.0.113.9"}
        assert httpx.get(f"{url}/v1/x", headers=said, trust_env=False).text == "127.0.0.1"
    echo.shutdown()
