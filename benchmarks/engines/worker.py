"""Counts what vLLM's worker compiles. vLLM imports this module there, before it loads the model."""

from __future__ import annotations

import os
import sys
from typing import Any

from cachesvc_client.hooks import counters

_observer = counters.start(audit=bool(os.environ.get("BENCHMARK_AUDIT")))


class Worker:
    """Extends vLLM's worker, by ``worker_extension_cls``."""

    def say_work(self) -> dict[str, Any]:
        """Return what was compiled, vLLM's counters and seconds, and cachesvc's report if it is attached."""
        from vllm.compilation.counter import compilation_counter

        from cachesvc_client.wire.codec import plain

        config = self.vllm_config.compilation_config  # type: ignore[attr-defined]
        answer = {
            "observed": plain(_observer.snapshot()),
            "compile_seconds": config.compilation_time,
            "counters": {name: count for name, count in vars(compilation_counter).items() if count},
        }
        if "cachesvc_client.session.sessions" in sys.modules:
            import cachesvc_client

            report = plain(cachesvc_client.report())
            answer["report"] = {name: report[name] for name in ("state", "reasons", "kinds", "seconds")}
        return answer
