"""Fresh processes: runs `worker` with folders of its own, a time limit, and an end on cancellation.

Every process gets an empty HOME, TMPDIR, working directory and node store, and of the environment what
`variables` lists and the spec names: neither the builder's files nor the CI system's secrets.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from cachesvc_client.wire import codec

from . import ranks, variables
from .plan import Job
from .results import PhaseResult
from .worker import Order

_LOG_TAIL = 4000


class Cancelled(Exception):
    """The run was interrupted; what was under way is gone."""


def environment(job: Job, folder: Path, extra: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The variables of a fresh process whose own folders lie under ``folder``. Pure.

    Downloads of models are not what is tested: their caches stay where the user has them.
    """
    made = variables.inherited(base, job.spec.pass_env)
    caches = Path(base.get("XDG_CACHE_HOME") or Path(base.get("HOME") or "/nonexistent", ".cache"))
    made.setdefault("HF_HOME", str(caches / "huggingface"))
    made.setdefault("TORCH_HOME", str(caches / "torch"))
    made |= job.spec.env
    made |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    made["CACHESVC_STORE"] = str(folder / "store")
    return made | dict(extra)


class Launcher:
    """Starts and ends the processes of one run; thread-safe."""

    def __init__(self, base: Mapping[str, str] | None = None) -> None:
        self._base = dict(os.environ if base is None else base)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends all processes that this launcher started, with their children; later ones do not start."""
        self._cancelled.set()
        with self._lock:
            for process in self._running:
                _end(process)

    def run(self, order: Order, folder: Path, extra: Mapping[str, str], *, keep: bool = False) -> PhaseResult:
        """One phase in one process. ``folder`` is made if missing; ``keep`` leaves its node store for a
        second process. A process that dies or is too slow is a result with an error. Raises ``Cancelled``.
        """
        for name in ("home", "tmp", "cwd", "store"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        orders, answer, log = folder / "order.json", folder / "result.json", folder / "log"
        orders.write_text(json.dumps(codec.plain(order)))
        for left in folder.glob(f"{answer.stem}*{answer.suffix}"):
            left.unlink()
        with open(log, "wb") as out:
            command = [*_launcher(order), "-m", "cachesvc.warm.worker", str(orders), str(answer)]
            process = self._start(order.job, folder, command, extra, out.fileno())
        try:
            ended = self._wait(process, order.job.spec.timeout)
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
            for name in ("home", "tmp", "cwd") + (() if keep else ("store",)):
                shutil.rmtree(folder / name, ignore_errors=True)
        if self.cancelled:
            raise Cancelled
        return _result(order, process, ended, answer, log)

    def _start(
        self, job: Job, folder: Path, command: list[str], extra: Mapping[str, str], out: int
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.cancelled:
                raise Cancelled
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=job.spec.cwd or folder / "cwd",
                env=environment(job, folder, extra, self._base),
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _wait(self, process: subprocess.Popen[bytes], timeout: float) -> bool:
        """Whether the process ended by itself in time."""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def _launcher(order: Order) -> list[str]:
    """``--standalone``: a free port of this machine. torchrun's workers have sessions of their own, but each
    ends with its parent."""
    if not order.ranks:
        return []
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={order.ranks}"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process group, which is ours alone; children that outlived their parent too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _result(
    order: Order, process: subprocess.Popen[bytes], ended: bool, answer: Path, log: Path
) -> PhaseResult:
    if ended and order.ranks and (result := ranks.combined(order, answer)) is not None:
        return result
    if ended and process.returncode == 0 and answer.is_file():
        return codec.build(PhaseResult, json.loads(answer.read_text()))
    tail = _tail(log)
    if not ended:
        error = f"took longer than {order.job.spec.timeout:g} s (see timeout)"
    elif process.returncode < 0:
        error = f"the process died of {signal.Signals(-process.returncode).name}"
    else:
        error = f"the process ended with status {process.returncode}"
    lines = [line for line in tail.splitlines() if line.strip()]
    last = f": {lines[-1].strip()[:200]}" if lines and ended else ""
    return PhaseResult(order.phase, error=error + last, trace=tail)


def _tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        return file.read().decode(errors="replace")
