"""Run the registry's image as the documents say, and as users get it wrong."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.services.certificate import certificate
from tests.services.process import free_port

from .conftest import Image
from .engine import RESTRICTED, Container

USER = 10001
STOP_SECONDS = 20
"""The stop_grace_period of the compose file."""


def answer(container: Container, path: str) -> Any:
    """Return the JSON that a registry answers inside its container; its port is not published."""
    url = f"http://127.0.0.1:8750{path}"
    code = f"import urllib.request as r; print(r.urlopen('{url}', timeout=9).read().decode())"
    status, text = container.run("python", "-c", code)
    assert status == 0, text
    return json.loads(text)


def processes(container: Container) -> dict[str, str]:
    """Return the lines of the first process's status that say what it may do."""
    status, text = container.run("cat", "/proc/1/status")
    assert status == 0, text
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_the_registry_serves_over_a_read_only_root_and_ends_when_it_is_told(
    server_image: Image, tmp_path: Path, tls: bool
) -> None:
    options: tuple[object, ...] = (*RESTRICTED, "-v", f"data-{tls}:/data")
    if tls:
        chain, key = certificate(tmp_path)
        key.chmod(0o644)  # The registry runs as another user.
        for name, file in (("CERTIFICATE", chain), ("KEY", key)):
            options += ("-v", f"{file}:/tls/{name}:ro", "--env", f"CACHESVC_SERVER_TLS_{name}=/tls/{name}")
    engine = server_image.engine
    with engine.started(server_image.tag, name=f"serve-{tls}", options=options) as container:
        container.wait_for_health()
        if not tls:
            ready = answer(container, "/readyz")
            assert ready["ready"] and ready["parts"]["index"] == "ok", ready
        may = processes(container)
        assert (may["Uid"].split(), may["Gid"].split()) == ([str(USER)] * 4, [str(USER)] * 4)
        assert (may["CapEff"], may["CapBnd"], may["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
        for user in (str(USER), "0"):  # The mount refuses root as well.
            status, text = container.run("touch", "/venv/x", user=user)
            assert (status != 0, "Read-only file system" in text) == (True, True), text
        exit_status, seconds = container.stop(STOP_SECONDS)
        assert exit_status == 0, container.logs()
        assert seconds < STOP_SECONDS / 2, "it was killed, or nearly"
        assert not container.healthy(), "healthy, and ended"
        assert f"{'https' if tls else 'http'}://127.0.0.1:8750" in container.logs()
        data = engine.volume(f"data-{tls}")
        assert (data / "index.sqlite3").exists()
        assert {path.stat().st_uid for path in data.rglob("*")} == {USER}


def test_the_registry_writes_nothing_beside_its_volume_and_tmp(server_image: Image) -> None:
    """Here the root is writable for root and the layers are not read-only: what is written would be seen."""
    options = ("--passwd=false", "--cap-drop", "all", "-v", "writes:/data")
    with server_image.engine.started(server_image.tag, name="writes", options=options) as container:
        container.wait_for_health()
        for words in (("ls",), ("admin", "tokens", "list"), ("doctor",)):
            container.run("cachesvc", *words)
        assert changes(container) <= {"/tmp"}
        assert container.run("touch", "/venv/x", user="0")[0] == 0
        assert "/venv/x" in changes(container), "the search would not see it"


COLLECT = """
import http.server, threading, urllib.error, urllib.request
got = []
class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *text):
        pass
server = http.server.HTTPServer(("127.0.0.1", 4318), Collector)
server.timeout = 30
try:
    urllib.request.urlopen("http://127.0.0.1:8750/v1/whoami")
except urllib.error.HTTPError as error:
    print(error.code)
server.handle_request()
[(path, body)] = got
print(path, b"GET /v1/whoami" in body)
"""
"""A collector of traces that asks the registry once, and prints what arrives."""


def test_the_image_sends_traces_to_a_collector(server_image: Image) -> None:
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_BSP_SCHEDULE_DELAY=100")
    options = (*RESTRICTED, "-v", "traces:/data", *(word for one in variables for word in ("--env", one)))
    with server_image.engine.started(server_image.tag, name="traces", options=options) as container:
        container.wait_for_health()
        assert container.run("python", "-c", COLLECT) == (0, "401\n/v1/traces True\n"), container.logs()


def changes(container: Container) -> set[str]:
    """Return what differs from the image, without the places at which podman mounts its own files."""
    lines = container.engine.podman("diff", container.name).splitlines()
    own = {"/etc", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run", "/run/.containerenv"}
    return {line.partition(" ")[2] for line in lines} - own


def test_a_killed_registry_starts_again_and_the_other_commands_use_its_volume(server_image: Image) -> None:
    engine, tag, options = server_image.engine, server_image.tag, (*RESTRICTED, "-v", "again:/data")
    with engine.started(tag, name="killed", options=options) as container:
        container.wait_for_health()
        engine.podman("kill", "--signal", "KILL", "killed")
        engine.podman("wait", "killed")
        assert container.inspect("{{.State.ExitCode}}") == str(128 + signal.SIGKILL)
    with engine.started(tag, name="again", options=options) as container:
        container.wait_for_health()
        assert container.stop(STOP_SECONDS)[0] == 0
    for command in ("migrate", "gc"):
        status, text = engine.once(tag, "admin", "--local", command, "--apply", options=options)
        assert status == 0, text
    words = ("admin", "--local", "tokens", "create", "--label", "x", "--role", "admin", "-n", "*")
    status, text = engine.once(tag, *words, options=options)
    assert (status, "csv_" in text) == (0, True), text


def test_a_folder_of_roots_is_refused_in_one_line(server_image: Image, tmp_path: Path) -> None:
    """Docker makes the folder of `-v /srv/cachesvc:/data` as root's, if it is not there."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    options = (*RESTRICTED, "-v", f"{folder}:/data")
    status, text = server_image.engine.once(server_image.tag, options=options)
    assert (status, text.count("\n")) == (6, 1), text
    assert "not writable" in text or "Permission denied" in text
    assert list(folder.iterdir()) == []


def test_a_published_port_of_the_machine_reaches_the_registry(server_image: Image) -> None:
    """The port alone is published; the address inside is every one."""
    port = free_port()
    options = (*RESTRICTED, "-v", "port:/data", "-p", f"127.0.0.1:{port}:8750")
    with server_image.engine.started(server_image.tag, name="port", options=options) as container:
        container.wait_for_health()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer_of_port:
            assert json.load(answer_of_port)["ready"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(f"http://127.0.0.1:{port}/v1/whoami", timeout=20)
