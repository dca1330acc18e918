"""One trace goes from a service's start through the registry: its own collector has the spans of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from collector import Collector, running_collector
from registry_making import Server

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.environment.detect import detect
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target

from .harness import environment, run
from .registries import client

pytestmark = pytest.mark.servers

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def served(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a registry that sends its spans to the collector, with a bundle for this environment. Its files
    are no real cache files: nothing is compiled."""
    place = tmp_path_factory.mktemp("traces")
    server = Server(
        place / "data", env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    )
    with server.running():
        files = [
            SourceFile("inductor", f"fxgraph/ab/f{'ab' * 20}/{number:024}", b"graph") for number in range(3)
        ]
        draft = Draft(
            name=Name.parse("team/light"),
            target=Target("light"),
            fingerprint=detect(environment(place)),
            workload=Workload(script=Digest.of(b"light")),
            scopes=("host",),
        )
        build_bundle(files, draft, server.key, place / "light.cachesvc")
        pushed = client("push", str(place / "light.cachesvc"), **variables(server))
        assert pushed.returncode == 0, pushed.stderr
        yield server


def variables(server: Server) -> dict[str, str]:
    return {
        "CACHESVC_URL": server.url,
        "CACHESVC_TOKEN": server.token,
        "CACHESVC_TRUSTED_KEYS": str(server.key.public),
    }


def test_a_service_s_trace_goes_on_in_the_registry(
    served: Server, collector: Collector, tmp_path: Path
) -> None:
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "the-service"}
    answer = run("traced_service.py", "program", place=tmp_path, **variables(served), **own).answer
    assert answer["over"] and answer["status"] == "restored"
    pack = "GET /v1/revisions/{revision}/pack"
    collector.wait("POST /v1/resolve", pack, "cachesvc.restore", "index.look", trace=answer["trace"])
    spans = [span for span in collector.spans if span.trace == answer["trace"]]
    names = {(span.service, span.name) for span in spans}
    steps = ("restore", "resolve", "download", "check", "install")
    assert {("the-service", f"cachesvc.{step}") for step in steps} <= names, names
    assert ("the-service", "service.start") in names
    assert {("cachesvc-registry", "POST /v1/resolve"), ("cachesvc-registry", "index.look")} <= names, names
    by_id = {span.id: span for span in spans}
    [resolve] = [span for span in spans if span.name == "POST /v1/resolve"]
    assert by_id[resolve.parent].name == "cachesvc.resolve"
    assert by_id[by_id[resolve.parent].parent].name == "cachesvc.restore"
    assert resolve.facts["http.response.status_code"] == 200
    packs = [span for span in spans if span.name == pack]
    assert [by_id[span.parent].name for span in packs] == ["cachesvc.download"]
    assert any(span.name == "blobs.open" and span.parent == packs[0].id for span in spans)
    assert served.token not in str(collector.spans)


def test_a_service_without_opentelemetry_passes_its_variable_on(
    served: Server, collector: Collector, tmp_path: Path
) -> None:
    answer = run(
        "traced_service.py", "variable", place=tmp_path, TRACEPARENT=PARENT, **variables(served)
    ).answer
    assert answer["status"] == "restored" and answer["otel"] is False
    collector.wait("POST /v1/resolve", trace=TRACE)
    ours = [span for span in collector.spans if span.trace == TRACE]
    assert "POST /v1/resolve" in {span.name for span in ours}
    assert {span.service for span in ours} == {"cachesvc-registry"}
    assert "00f067aa0ba902b7" in {span.parent for span in ours}


@pytest.mark.parametrize(
    "wrong", ["", "00-0", f"00-{'0' * 32}-00f067aa0ba902b7-01", PARENT.upper(), PARENT + "\n"]
)
def test_a_variable_that_is_no_trace_is_not_sent(
    served: Server, collector: Collector, tmp_path: Path, wrong: str
) -> None:
    before = len(collector.spans)
    answer = run(
        "traced_service.py", "variable", place=tmp_path, TRACEPARENT=wrong, **variables(served)
    ).answer
    assert answer["status"] == "restored"
    collector.wait("POST /v1/resolve", after=before)
    assert {span.parent for span in collector.named("POST /v1/resolve", after=before)} == {""}
