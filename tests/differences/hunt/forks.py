"""Run work in a forked child and return what it returns."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

LIMIT = 60.0
"""Seconds that one child may take."""


def in_child(work: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Return what ``work`` returns in a child, or ``{"failed": text}``. No exit function runs there."""
    reads, writes = os.pipe()
    errors = os.memfd_create("errors")
    try:
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            _answer_and_exit(work, writes, errors)
        os.close(writes)
        data = _read(reads, seconds)
        if data is None:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if data is None:
            return {"failed": f"not over after {seconds:.0f} s"}
        if not data:
            return {"failed": f"the child ended without an answer, status {status}: {_end_of(errors)}"}
        return pickle.loads(data)
    finally:
        os.close(errors)


_write, _exit, _dumps, _format = os.write, os._exit, pickle.dumps, traceback.format_exc
"""Kept from the import on: a case may replace any function."""


def _answer_and_exit(work: Callable[[], Any], writes: int, errors: int) -> None:
    try:
        _silence(errors)
        try:
            data = _dumps(work(), protocol=4)
        except BaseException:  # noqa: BLE001 - the parent says why there is no answer
            data = _dumps({"failed": _format()[-1500:]})
        while data:
            data = data[_write(writes, data) :]
    finally:
        _exit(0)


def _silence(errors: int) -> None:
    """Discard what the child prints, and keep its errors: also the stack of a signal that ends it."""
    if os.environ.get("HUNT_DEBUG"):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(errors, 2)
    os.close(null)
    faulthandler.enable(2, all_threads=False)


def _end_of(errors: int) -> str:
    size = os.fstat(errors).st_size
    return os.pread(errors, 1500, max(0, size - 1500)).decode(errors="replace")


def _read(reads: int, seconds: float) -> bytes | None:
    """Return all that a child writes; ``None`` if it is not over in time."""
    end = time.monotonic() + seconds
    parts: list[bytes] = []
    try:
        while (left := end - time.monotonic()) > 0:
            if select.select([reads], [], [], left)[0]:
                part = os.read(reads, 1 << 16)
                if not part:
                    return b"".join(parts)
                parts.append(part)
        return None
    finally:
        os.close(reads)
