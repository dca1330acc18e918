"""Gives vLLM's worker a method that says what it compiled and used, also where cachesvc is not attached."""

import sys
from typing import Any

from cachesvc_client.kinds.vllm.worker import Publisher


class Worker(Publisher):
    """Extends vLLM's worker by ``worker_extension_cls``."""

    def say(self) -> dict[str, Any]:
        """Return the report of this worker, flat, with vLLM's own counters."""
        attached = "cachesvc_client.session.sessions" in sys.modules
        answer = self.cachesvc_report()
        report = answer["report"]
        kept = ("state", "reasons", "observed", "seconds", "kinds", "revisions")
        return {name: report[name] for name in kept} | {"attached": attached, "counters": answer["counters"]}
