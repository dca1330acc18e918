"""Run redis-server, which keeps nothing on disk."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from .process import absent, connects, folder, free_port, running, until


@contextlib.contextmanager
def redis_server(port: int | None = None, *options: str, configuration: Path | None = None) -> Iterator[str]:
    """Return ``redis://…`` of an empty server. ``configuration``: a file that it may write."""
    program = shutil.which("redis-server")
    if program is None:
        absent("redis-server", "redis-server")
    port = port or free_port()
    command = [
        program,
        *([str(configuration)] if configuration else []),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        *options,
    ]
    with folder("redis") as place, running(command, place) as process:
        until(lambda: connects(port), process, place)
        yield f"redis://127.0.0.1:{port}"
