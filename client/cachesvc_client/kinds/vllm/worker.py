"""Publishes from vLLM's worker, the process that compiles: for a program that fills the registry.

    engine = LLM(model, worker_extension_cls="cachesvc_client.kinds.vllm.worker.Publisher")
    engine.collective_rpc("cachesvc_publish")

vLLM imports this module in each worker. A service needs none of it.
"""

from __future__ import annotations

from typing import Any


class Publisher:
    """Extends vLLM's worker, by ``worker_extension_cls``."""

    def cachesvc_publish(self, name: str | None = None) -> dict[str, Any]:
        """Publish what this worker compiled or used, as `cachesvc_client.publish` does, and return the
        answer.

        The workers of an engine with several ranks publish one revision together. Raises ``CacheSvcError``.
        """
        import cachesvc_client

        from ...wire.codec import plain

        return dict(plain(cachesvc_client.publish(name, target="vllm")))

    def cachesvc_report(self) -> dict[str, Any]:
        """Return this worker's report (`cachesvc_client.report`), and vLLM's own counters of its compiles."""
        from vllm.compilation.counter import compilation_counter

        import cachesvc_client

        from ...wire.codec import plain

        counted = {name: count for name, count in vars(compilation_counter).items() if count}
        return {"report": plain(cachesvc_client.report()), "counters": counted}
