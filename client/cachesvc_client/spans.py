"""Continues the trace of the program that this process runs, and shows it what a restore takes.

A trace is that of a span that is current in OpenTelemetry's API, where the program has imported it, or else
of the variable TRACEPARENT (W3C Trace Context, as OpenTelemetry's environment carriers have it). Nothing here
imports OpenTelemetry: a program without it pays for a look into ``sys.modules``. Spans go to the program's
own tracer provider; without one they are not recorded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "TRACEPARENT"
"""Names the variable that a process gets its trace by."""
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""Matches version 00 of the header ``traceparent``."""

_restore: Any = None
"""Holds OpenTelemetry's context of the process's first restore, for what happens after it."""


def traceparent() -> str | None:
    """Returns the header ``traceparent`` of a request to the registry; ``None`` outside of a trace."""
    api = _api()
    if api is not None:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    match = _parent_of_process()
    return match[0] if match else None


def in_restore(work: Callable[[], None]) -> Callable[[], None]:
    """Returns ``work`` for another thread: there it runs in a span of its own, in the trace of this thread or
    of the process. Without OpenTelemetry in the program it is ``work`` itself."""
    api = _api()
    if api is None:
        return work
    parent = _parent_context(api)

    def run() -> None:
        global _restore
        with _tracer(api).start_as_current_span("cachesvc.restore", context=parent) as span:
            if _restore is None:
                _restore = api.set_span_in_context(span)
            work()

    return run


@contextmanager
def step(name: str) -> Iterator[None]:
    """Runs a block in a span within the current one; in none where none is current."""
    api = _api()
    if api is None or not api.get_current_span().get_span_context().is_valid:
        yield
        return
    with _tracer(api).start_as_current_span(f"cachesvc.{name}"):
        yield


def moment(name: str, **facts: str | int | float) -> None:
    """Records a moment of this process as a span without length, in the trace of its restore."""
    api = _api()
    if api is None:
        return
    context = _parent_context(api) if _restore is None else _restore
    _tracer(api).start_span(f"cachesvc.{name}", context=context, attributes=facts).end()


def _api() -> Any:
    """Returns OpenTelemetry's API, if the program has imported all of it."""
    api = sys.modules.get("opentelemetry.trace")
    return api if hasattr(api, "set_span_in_context") and hasattr(api, "get_tracer") else None


def _tracer(api: Any) -> Any:
    # The package's front is loaded; an import of it would tie every room that has spans to all others.
    return api.get_tracer("cachesvc_client", getattr(sys.modules[__package__], "__version__", ""))


def _parent_context(api: Any) -> Any:
    """Returns the context of the current span, or of the process's variable; ``None`` outside of a trace."""
    span = api.get_current_span()
    if span.get_span_context().is_valid:
        return api.set_span_in_context(span)
    match = _parent_of_process()
    if match is None:
        return None
    flags = api.TraceFlags(int(match[3], 16))
    parent = api.SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=flags)
    return api.set_span_in_context(api.NonRecordingSpan(parent))


def _parent_of_process() -> re.Match[str] | None:
    match = _PARENT.fullmatch(os.environ.get(VARIABLE, ""))
    return match if match and int(match[1], 16) and int(match[2], 16) else None
