"""Gives vLLM's worker two methods: one publishes what it compiled, one returns what it compiled and used."""

import sys
from typing import Any


class Worker:
    """Extends vLLM's worker by ``worker_extension_cls``."""

    def cachesvc_publish(self, name: str) -> dict[str, Any]:
        """Publish under a name what this worker compiled or used."""
        import cachesvc_client
        from cachesvc_client.wire.codec import plain

        return dict(plain(cachesvc_client.publish(name)))

    def cachesvc_report(self) -> dict[str, Any]:
        """Return the report of this worker, and vLLM's own counters."""
        from vllm.compilation.counter import compilation_counter

        counted = {name: count for name, count in vars(compilation_counter).items() if count}
        client = sys.modules.get("cachesvc_client")
        if client is None:
            return {"state": "not attached", "counters": counted}
        from cachesvc_client.wire.codec import plain

        report = client.report()
        return {
            "state": report.state,
            "reasons": list(report.reasons),
            "used": report.used,
            "observed": plain(report.observed),
            "seconds": report.seconds,
            "kinds": plain(report.kinds),
            "revisions": plain(report.revisions),
            "differences": [str(difference) for difference in report.key_differences],
            "counters": counted,
        }
