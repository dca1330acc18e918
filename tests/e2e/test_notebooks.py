"""A notebook: a real Jupyter kernel is told what its restore came to, is interrupted, and is shut down."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from tests.services.relay import relay

from .conftest import NAME
from .harness import SCALAR, environment
from .registries import SETTLED_SECONDS, Served, more, starts, wait_for

pytestmark = pytest.mark.compiles
CELL_SECONDS = 180
"""Seconds for a cell on a busy machine: it imports torch, waits for the restore, and runs or compiles."""

ATTACH = f"import cachesvc_client; session = cachesvc_client.attach({NAME!r})"
COMPILE = """
import torch
from model import inputs
compiled = torch.compile(lambda x: x.cos() * 2 + 1, dynamic=False)
with torch.no_grad():
    compiled(inputs(4))
session.status
"""
ANOTHER_SHAPE = "with torch.no_grad(): compiled(inputs(6))"


class Notebook:
    """One kernel and the cells that it ran."""

    def __init__(self, manager: KernelManager, connected: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = connected

    def run(self, code: str) -> tuple[str, str]:
        """Run a cell; return the kind of its reply and all that it showed: results, streams, tracebacks."""
        shown: list[str] = []
        reply = self.client.execute_interactive(
            code, timeout=CELL_SECONDS, output_hook=lambda message: shown.append(_text(message))
        )
        return reply["content"]["status"], "".join(shown)

    def later(self, seconds: float) -> str:
        """Return what the kernel shows in the next ``seconds`` without a cell."""
        shown, end = "", time.monotonic() + seconds
        while not shown and time.monotonic() < end:
            if self.client.iopub_channel.msg_ready():
                shown = _text(self.client.get_iopub_msg(timeout=1))
            else:
                time.sleep(0.05)
        return shown


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    data = content.get("data", {}).get("text/plain", "")
    return content.get("text", "") + data + "\n".join(content.get("traceback", ()))


@contextmanager
def notebook(place: Path, **variables: str) -> Iterator[Notebook]:
    """Start a kernel on a fresh host, and kill it if it lives when the block ends."""
    manager = KernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, language="python")
    manager.start_kernel(env={**environment(place), **SCALAR, **variables}, cwd=str(place / "work"))
    connected = manager.blocking_client()
    connected.start_channels()
    try:
        connected.wait_for_ready(timeout=CELL_SECONDS)
        yield Notebook(manager, connected)
    finally:
        connected.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernel_that_lives_is_counted_and_warned(tmp_path: Path, registry: Served) -> None:
    before = starts(registry)
    with notebook(tmp_path, **registry.variables) as kernel:
        assert kernel.run(ATTACH) == ("ok", "")
        assert kernel.run(COMPILE) == ("ok", "'restored'")
        wait_for(lambda: starts(registry) == more(before, hit=1))
        status, shown = kernel.run(ANOTHER_SHAPE)
        assert status == "ok"
        shown += kernel.later(SETTLED_SECONDS) if not shown else ""
        assert shown.startswith(f"cachesvc: {NAME}:latest: compiled here after a restore"), shown
        wait_for(lambda: starts(registry) == more(before, partial=1))


@pytest.mark.parametrize("way", ["shutdown", "exit in a cell"])
def test_a_kernel_that_ends_at_once_is_counted(tmp_path: Path, registry: Served, way: str) -> None:
    before = starts(registry)
    with notebook(tmp_path, **registry.variables) as kernel:
        kernel.run(ATTACH)
        assert kernel.run(COMPILE) == ("ok", "'restored'")
        if way == "shutdown":
            kernel.manager.shutdown_kernel()
        else:
            kernel.client.execute("exit")
        wait_for(lambda: starts(registry) == more(before, hit=1))


def test_an_interrupt_during_the_restore_leaves_the_kernel_alive(tmp_path: Path, registry: Served) -> None:
    with relay(registry.url.removeprefix("http://")) as way:
        way.hold = b"POST /v1/resolve"
        variables = {**registry.variables, "CACHESVC_URL": way.url, "CACHESVC_DEADLINE": "60"}
        with notebook(tmp_path, **variables) as kernel:
            assert kernel.run(ATTACH) == ("ok", "")
            asked = kernel.client.execute("session.wait(60)")
            assert way.holds.wait(60)
            time.sleep(1)
            kernel.manager.interrupt_kernel()
            reply = kernel.client.get_shell_msg(timeout=CELL_SECONDS)
            assert reply["parent_header"]["msg_id"] == asked
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            # Jupyter drops cells that come right after an error.
            wait_for(lambda: kernel.run("6 * 7") == ("ok", "42"))
