"""Test what an operator sees: metrics, logs, readiness."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from registry_making import FINGERPRINT, Server, make, ok, refused

import cachesvc
from cachesvc.hot.short_cache import FRESH_SECONDS
from cachesvc_client.wire.requests.reports import STATES
from tests.services.process import free_port
from tests.services.redis import redis_server


def scraped(server: Server) -> dict[tuple[str, ...], float]:
    """Return the values of the metrics by name and by the values of their labels."""
    answer = httpx.get(server.url + "/metrics", trust_env=False)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_count_requests_and_transfers(own_column_server: Server) -> None:
    server = own_column_server.start()
    api, publication = server.api(), make(server.key, content=b"x" * 5000)
    before = scraped(server)
    assert before["cachesvc_resolves_total", "offered"] == 0
    ok(api.publish(publication))
    for _ in range(2):  # The second answer comes from the hot store.
        ok(api.resolve())
    ok(api.resolve(fingerprint={**FINGERPRINT, "torch": "2.0.0"}))
    assert api.resolve(name="none").status_code == 404
    assert api.pack(publication.revision).content == publication.pack
    row = {"revision": publication.revision, "state": "hit", "files": 1, "used": 1, "saved": 2.5}
    report = {"fingerprint": FINGERPRINT, "revisions": [row], "kinds": {}, "node": "a" * 32}
    slower = {**report, "revisions": [{**row, "saved": -1.0}]}
    for body in (report, slower):
        ok(api.http.post("/v1/reports", json=body))
    assert httpx.request("BREW", server.url + "/coffee", trust_env=False).status_code == 404

    now = scraped(server)
    resolves = {label: now["cachesvc_resolves_total", label] for label in ("offered", "none_fits", "unknown")}
    assert resolves == {"offered": 2, "none_fits": 1, "unknown": 1}
    assert now["cachesvc_requests_total", "POST", "/v1/resolve", "200"] == 3
    assert now["cachesvc_requests_total", "POST", "/v1/resolve", "404"] == 1
    assert now["cachesvc_requests_total", "PUT", "/v1/uploads/{upload}/pack", "200"] == 1
    assert now["cachesvc_requests_total", "other", "none", "404"] == 1
    assert now["cachesvc_request_seconds_count", "POST", "/v1/resolve"] == 4
    assert now["cachesvc_blob_bytes_total", "in"] == len(publication.pack)
    assert now["cachesvc_blob_bytes_total", "out"] == len(publication.pack)
    assert now["cachesvc_blob_calls_total", "put"] == 1
    assert now["cachesvc_starts_total", "hit"] == 2
    # Of all states: a rate would not see the first start that compiles if its series began with it.
    assert {now["cachesvc_starts_total", state] for state in STATES if state != "hit"} == {0}
    assert now["cachesvc_saved_seconds_total",] == 2.5
    assert now["cachesvc_gc_runs_total", "failed"] == 0
    assert now["cachesvc_database_connections", "used"] >= 0
    [build] = [name for name in now if name[0] == "cachesvc_build_info"]
    assert cachesvc.__version__ in build
    assert ("process_resident_memory_bytes",) in now
    text = httpx.get(server.url + "/metrics", trust_env=False).text
    assert "team" not in text and "bert" not in text and "coffee" not in text


def test_logs_as_json_name_the_request(own_server: Server) -> None:
    own_server.env = {"CACHESVC_SERVER_LOG": "json"}
    server = own_server.start()
    api, publication = server.api(), make(server.key)
    ok(api.publish(publication))
    api.http.get("/v1/whoami", headers={"X-Request-Id": "from-the-proxy"})
    ours = api.http.get("/v1/whoami").headers["x-request-id"]
    stranger = server.api(None).http.get("/v1/whoami")
    (server.data / "blobs" / "objects" / "packs").rename(server.data / "elsewhere")
    lost = api.pack(publication.revision).headers["x-request-id"]
    lines = [json.loads(line) for line in server.end()]
    by_request = {line["request"]: line for line in lines if line["logger"] == "cachesvc.requests"}
    line = by_request["from-the-proxy"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert (line["level"], line["message"]) == ("INFO", "GET /v1/whoami 200")
    assert (line["method"], line["path"], line["route"]) == ("GET", "/v1/whoami", "/v1/whoami")
    assert line["seconds"] > 0 and line["bytes"] > 0
    assert by_request[ours]["token"] == line["token"]
    assert line["token"].startswith("t-")
    assert by_request[stranger.headers["x-request-id"]]["token"] is None
    assert by_request[stranger.headers["x-request-id"]]["status"] == 401
    assert by_request[lost]["status"] == 404
    assert by_request[lost]["route"] == "/v1/revisions/{revision}/pack"
    assert server.token not in json.dumps(lines)


def test_one_token_cannot_occupy_the_whole_server(own_server: Server) -> None:
    """Silent uploads keep their places. Other tokens come in, and so does this token when the uploads are
    over."""
    own_server.env = {"CACHESVC_SERVER_TOKEN_REQUESTS": "2"}
    server = own_server.start()
    api = server.api()
    other = ok(api.http.post("/v1/tokens", json={"label": "b", "role": "read", "namespace": "team"}))[
        "secret"
    ]
    host, port = server.url.removeprefix("http://").split(":")
    publication = make(server.key)
    uploads = [ok(api.begin(publication))["upload"] for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for upload in uploads:
            line = stack.enter_context(socket.create_connection((host, int(port))))
            line.sendall(
                f"PUT /v1/uploads/{upload}/pack HTTP/1.1\r\nHost: x\r\n"
                f"Content-Length: {len(publication.pack)}\r\n"
                f"Authorization: Bearer {server.token}\r\n\r\nx".encode()
            )
        answer = until(lambda: api.http.get("/v1/whoami"), 429)
        refused(answer, 429, "too_many", "more than 2 requests at once", "token_requests")
        assert answer.headers["retry-after"] == "1"
        assert ok(server.api(other).http.get("/v1/whoami"))["role"] == "read"
        ok(api.http.get("/healthz"))
    until(lambda: api.http.get("/v1/whoami"), 200)


def until(ask: Callable[[], httpx.Response], status: int) -> httpx.Response:
    for _ in range(600):
        answer = ask()
        if answer.status_code == status:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"never {status}: {answer.text}")


def test_a_publication_counts_at_once_on_its_replica_while_redis_is_down(tmp_path: Path) -> None:
    """Also once the replica remembers no more what it could not store."""
    redis = {"CACHESVC_SERVER_REDIS": f"redis://127.0.0.1:{free_port()}"}
    server = Server(tmp_path / "data", env=redis)
    server.start()
    try:
        publication = make(server.key)
        ok(server.api().publish(publication))
        time.sleep(2 * FRESH_SECONDS)
        assert ok(server.api().resolve())["revisions"][0]["revision"] == publication.revision
        better = make(server.key, content=b"better")
        ok(server.api().publish(better, publication.revision))
        time.sleep(2 * FRESH_SECONDS)
        assert ok(server.api().resolve())["revisions"][0]["revision"] == better.revision
    finally:
        server.end()


@pytest.mark.services
def test_readiness_names_redis_and_does_not_need_redis(tmp_path: Path) -> None:
    port = free_port()
    server = Server(tmp_path / "data", env={"CACHESVC_SERVER_REDIS": f"redis://127.0.0.1:{port}"})

    def hot() -> str:
        answer = server.api(None).http.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        return answer.json()["parts"]["hot"]

    server.start()
    try:
        assert "Redis cannot be used" in hot() and "slower" in hot()
        publication = make(server.key)
        ok(server.api().publish(publication))
        with redis_server(port):
            assert hot() == "ok"
            assert ok(server.api().resolve())["revisions"][0]["revision"] == publication.revision
        assert "Redis cannot be used" in hot()
        better = make(server.key, content=b"better")
        ok(server.api().publish(better, publication.revision))
        assert ok(server.api().resolve())["revisions"][0]["revision"] == better.revision
    finally:
        lines = server.end()
    assert any("WARNING" in line and "setting redis" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"DATABASE": "postgresql://tester:hunter2@127.0.0.1:9/x"}, 6, ["index", "connection"]),
        ({"BUCKET": "packs", "BUCKET_ENDPOINT": "http://"}, 6, ["bucket packs"]),
        ({"LOG": "xml"}, 2, ["CACHESVC_SERVER_LOG", "'json'"]),
    ],
)
def test_a_setting_that_prevents_the_start_is_reported(
    tmp_path: Path, settings: dict[str, str], status: int, words: list[str]
) -> None:
    from test_serve import failed_start

    variables = {f"CACHESVC_SERVER_{name}": value for name, value in settings.items()}
    exit_status, line = failed_start(tmp_path / "data", **variables)
    assert exit_status == status
    for word in words:
        assert word in line
    assert "hunter2" not in line
