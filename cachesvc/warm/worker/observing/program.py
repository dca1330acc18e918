"""Run a program as it is, and return what its Python processes compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cachesvc_client.hooks.child_processes import python_path
from cachesvc_client.wire import codec

from .calls import VARIABLE
from .records import CompiledSeen

PATH = Path(__file__).parent / "path"
"""Folder that makes every Python process observe itself if it is on PYTHONPATH."""
_END_SECONDS = 15.0
"""Seconds that a program has to end after it is asked to."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Says what a program compiled, and its exit status; ``None`` if it was ended from outside.

    ``uncalled``: what it had compiled, and called in a way that was not observed, or not at all.
    """

    seen: tuple[CompiledSeen, ...]
    status: int | None
    uncalled: tuple[CompiledSeen, ...] = ()


def run_observed(command: Sequence[str], seconds: float | None = None) -> ProgramRun:
    """Run a program as it is, and return what its Python processes compiled and how they called that.

    ``seconds``: after which the program is asked to end, for a service. Ctrl-C ends the program and not this
    process. Raises ``OSError`` if the program cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="cachesvc-init-") as folder:
        present = python_path(os.environ.get("PYTHONPATH", ""))
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
        environ |= {VARIABLE: folder, "PYTHONPATH": os.pathsep.join([str(PATH), present])}
        status = _run(command, environ, seconds)
        records = [
            item for path in sorted(Path(folder).glob("*.json")) for item in json.loads(path.read_text())
        ]
    seen = [codec.build(CompiledSeen, item) for item in records]
    called, uncalled = ([one for one in seen if bool(one.calls) is wanted] for wanted in (True, False))
    return ProgramRun(_different(called), status, _different(uncalled))


def _run(command: Sequence[str], environ: Mapping[str, str], seconds: float | None) -> int | None:
    with subprocess.Popen(command, env=environ) as process:
        try:
            return process.wait(seconds)
        except (KeyboardInterrupt, subprocess.TimeoutExpired) as error:
            if isinstance(error, subprocess.TimeoutExpired):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                process.kill()
            return None


def _different(seen: Iterable[CompiledSeen]) -> tuple[CompiledSeen, ...]:
    """Leave out what another process, or another object of one class, compiled in the same way."""
    rows: dict[str, CompiledSeen] = {}
    for one in seen:
        rows.setdefault(repr(replace(one, threads=0)), one)
    return tuple(rows.values())
