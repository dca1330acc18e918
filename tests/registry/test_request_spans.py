"""Test the registry's spans: off by default; a collector that is down or missing packages cost nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from collector import running_collector
from registry_making import Server

from cachesvc import spans
from cachesvc_client.wire.errors import InvalidRequest

VARIABLES = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.servers
def test_a_request_is_a_span_with_its_calls_of_the_index(tmp_path: Path) -> None:
    with running_collector() as collector:
        env = {**VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "ours"}
        with Server(tmp_path / "data", env=env).running() as server:
            headers = {"Authorization": f"Bearer {server.token}", "X-Request-Id": "r1"}
            assert httpx.get(f"{server.url}/v1/webhooks", headers=headers).status_code == 200
            assert httpx.get(f"{server.url}/v1/nothing", headers=headers).status_code == 404
            for path in spans.UNTRACED:
                httpx.get(f"{server.url}{path}")
            collector.wait("GET /v1/webhooks", "index.read", "GET")
        [request] = collector.named("GET /v1/webhooks")
        assert request.service == "ours" and request.parent == ""
        assert request.facts["http.route"] == "/v1/webhooks" and request.facts["cachesvc.request_id"] == "r1"
        assert request.id in {span.parent for span in collector.named("index.read")}
        roots = {span.name for span in collector.spans if not span.parent}
        assert roots == {"GET /v1/webhooks", "GET"}  # and nothing of the background


@pytest.mark.servers
def test_a_collector_that_is_down_delays_neither_requests_nor_the_end(tmp_path: Path) -> None:
    env = {**VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "16"}
    env["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] = "8"
    server = Server(tmp_path / "data", env=env).start()
    headers = {"Authorization": f"Bearer {server.token}"}
    began = time.monotonic()
    for _ in range(50):
        assert httpx.get(f"{server.url}/v1/whoami", headers=headers).status_code == 200
    assert time.monotonic() - began < 20
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 15  # the SDK alone would wait for half a minute


@pytest.mark.servers
def test_a_registry_that_cannot_send_spans_says_so_and_serves(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    server = Server(tmp_path / "data", env=env).start()
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    [line] = [line for line in server.end() if "no traces are sent" in line]
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc'" in line and "http/protobuf" in line


def test_spans_are_off_unless_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spans.start("1") is False and spans.current() is None
    assert spans.span("index.read") is spans.request_span("GET", "/v1/info", {})
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            patch.setenv(name, value)
            assert spans.start("1") is False
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(InvalidRequest, match="http/protobuf"):
        spans.start("1")


def test_a_registry_without_the_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidRequest, match="is not installed") as missing:
        spans.start("1")
    assert missing.value.hint.startswith('pip install "cachesvc[otel]"')


def test_a_registry_that_is_off_imports_no_sdk() -> None:
    code = (
        "import sys, cachesvc.api.app, cachesvc.spans as spans; spans.start('1');"
        "print([n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
