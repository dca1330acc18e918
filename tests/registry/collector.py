"""Run a collector of OpenTelemetry on loopback, which keeps the spans that it is sent by OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, str | int]


@dataclass
class Collector:
    url: str = ""
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str, trace: str = "", after: int = 0) -> list[Span]:
        """Return the spans with this name, of one trace, without the first ``after`` of all."""
        return [span for span in self.spans[after:] if span.name == name and span.trace.startswith(trace)]

    def wait(self, *names: str, trace: str = "", after: int = 0, seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while (missing := [name for name in names if not self.named(name, trace, after)]) and (
            time.monotonic() < until
        ):
            time.sleep(0.05)
        assert not missing, (missing, sorted({span.name for span in self.spans}))

    def take(self, data: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(data)
        for of_resource in request.resource_spans:
            facts = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.spans += [
                    Span(
                        facts["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        {one.key: one.value.string_value or one.value.int_value for one in span.attributes},
                    )
                    for span in of_scope.spans
                ]


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
