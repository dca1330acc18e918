"""Serve calls of a compiled model with a real torch: ``python -m benchmarks.fleet.torch_service NAME``.

The process attaches to NAME with the variables of its environment, imports torch and compiles a model. It
writes ``ready`` and waits for a line; then it calls the model ten times a second and compares each output
with that of the model without a compile. It writes ``compiling`` when Inductor generates code: in the middle
of a compile, and not where a revision is used. After the first compile or restore, and ten calls more, it
writes how the calls went as JSON, and lives on until stdin ends: a holder publishes when it is quiet.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

CALLS_AFTER = 10
"""Calls after the first one that ran compiled."""
PAUSE_SECONDS = 0.1
"""Seconds between two calls."""


@dataclass
class Calls:
    """Says how the calls of one process went. Seconds, unless a name says milliseconds.

    ``first_call``: until the first output. ``served_eagerly``: how many calls ran without a compile;
    ``eager_seconds``: from the first call until the last of these had ended. ``switch``: the first call that
    ran compiled, with its trace. ``longest``: the longest call of all others but the first. ``claimed``:
    whether this process compiled under a claim. ``waited``: how long compiles waited for the registry or for
    another process. ``why``: what the log says of calls that waited.
    """

    first_call: float = 0.0
    served_eagerly: int = 0
    eager_seconds: float = 0.0
    switch: float = 0.0
    longest: float = 0.0
    eager_p50_ms: float = 0.0
    compiled_p50_ms: float = 0.0
    wrong: int = 0
    calls: int = 0
    claimed: bool = False
    waited: float = 0.0
    state: str = ""
    compilations: int = 0
    bytes: int = 0
    why: list[str] = field(default_factory=list)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage()[:200])


def main() -> None:
    """Run the service until stdin ends."""
    import cachesvc_client

    lines = _Lines()
    logging.getLogger("cachesvc").addHandler(lines)
    logging.getLogger("cachesvc").setLevel(logging.INFO)
    session = cachesvc_client.attach(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(64)).eval()
    compiled = torch.compile(model)
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=_tell_of_a_compile, daemon=True).start()
    with torch.no_grad():
        calls = _serve(compiled, model, torch.randn(16, 64))
    report = cachesvc_client.report()
    calls.claimed, calls.state = bool(session and session.claims), report.state
    calls.compilations, calls.bytes, calls.why = report.observed.compilations, report.bytes_moved, lines.texts
    calls.waited = report.seconds["wait"]
    print(json.dumps(asdict(calls)), flush=True)
    sys.stdin.read()


def _tell_of_a_compile() -> None:
    from cachesvc_client.hooks import counters

    while not counters.compiling():
        time.sleep(0.002)
    print("compiling", flush=True)


def _serve(compiled: Any, model: Any, batch: Any) -> Calls:
    """Call until ten calls ran compiled, and return how the calls went."""
    import torch

    from cachesvc_client.hooks import counters

    result, after, expected = Calls(), 0, model(batch)
    eager: list[float] = []
    fast: list[float] = []
    began = time.perf_counter()
    while after <= CALLS_AFTER:
        traced, begin = counters.counts["frames_traced"], time.perf_counter()
        output = compiled(batch)
        end = time.perf_counter()
        result.calls += 1
        result.wrong += not torch.allclose(output, expected, atol=1e-4)
        if result.calls == 1:
            result.first_call = end - begin
        if counters.counts["frames_traced"] > traced:
            result.switch = end - begin
            after = 1
        elif after:
            fast.append(end - begin)
            after += 1
        else:
            eager.append(end - begin)
            result.eager_seconds = end - began
        time.sleep(PAUSE_SECONDS)
    result.served_eagerly = len(eager)
    result.longest = max((*eager[1:], *fast))
    result.eager_p50_ms = 1000 * statistics.median(eager) if eager else 0.0
    result.compiled_p50_ms = 1000 * statistics.median(fast)
    return result


if __name__ == "__main__":
    main()
