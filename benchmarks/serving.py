"""Serve a registry of this process over HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from cachesvc.api.app import create_app
from cachesvc.cli.serving.server import listening, url_of
from cachesvc.registry.context import Registry


@contextlib.contextmanager
def serving(registry: Registry, **options: Any) -> Iterator[str]:
    """Serve a registry of this process on loopback, and yield its URL. ``options``: of `create_app`."""
    application = create_app(registry, **options)
    config = uvicorn.Config(application, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = listening("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield url_of(listener, "http")
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
