"""The program's own tracer provider gets the first full hit, in the trace of the restore."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys, threading
from cachesvc_client import spans
from cachesvc_client.outcome.log import OutcomeLog
from cachesvc_client.outcome.judge import Observation, Report, RevisionUse
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name

assert not [name for name in sys.modules if name.startswith("opentelemetry")]
work = lambda: None
assert spans.in_restore(work) is work and spans.traceparent() is None
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

def step():
    with spans.step("install"):
        pass

step()  # of no restore, and in no span of the program
with trace.get_tracer("service").start_as_current_span("start"):
    run = spans.in_restore(step)
thread = threading.Thread(target=run)
thread.start()
thread.join()
log = OutcomeLog()
for _ in range(2):
    log.say(Report("hit", (), Observation(), ()), "team/x", "compiled")
done = exporter.get_finished_spans()
print(json.dumps([
    [span.name, span.context.trace_id, span.context.span_id, span.parent and span.parent.span_id,
     span.attributes.get("cachesvc.names")] for span in done
]))
"""


def test_the_first_hit_is_a_span_of_the_trace_of_the_restore() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    by_name = {name: (trace, span, parent, names) for name, trace, span, parent, names in rows}
    assert [row[0] for row in rows] == ["start", "cachesvc.install", "cachesvc.restore", "cachesvc.first_hit"]
    assert len({row[1] for row in rows}) == 1
    assert by_name["cachesvc.restore"][2] == by_name["start"][1]
    assert (
        by_name["cachesvc.install"][2] == by_name["cachesvc.first_hit"][2] == by_name["cachesvc.restore"][1]
    )
    assert by_name["cachesvc.first_hit"][3] == "team/x"
