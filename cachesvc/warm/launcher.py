"""Run `worker` in fresh processes, with folders of their own, a time limit, and an end on cancellation.

Every process gets an empty HOME, TMPDIR, working directory and node store. Of the environment it gets the
variables that `variables` lists and that the spec names: neither the builder's files nor the CI system's
secrets.
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

from .spec import variables
from .spec.plan import Job
from .worker import ranks
from .worker.phase import PhaseRequest, PhaseResult

_LOG_TAIL_BYTES = 4000
"""Bytes of a process's log that go into the trace of a failure."""


class Cancelled(Exception):
    """The run was interrupted; what was under way is gone."""


def environment(job: Job, folder: Path, extra: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a fresh process whose own folders lie under ``folder``. Pure.

    Caches of downloaded models stay where the user has them: `warm` does not test downloads.
    """
    environ = variables.choose_variables(base, job.spec.pass_env)
    caches = Path(base.get("XDG_CACHE_HOME") or Path(base.get("HOME") or "/nonexistent", ".cache"))
    environ.setdefault("HF_HOME", str(caches / "huggingface"))
    environ.setdefault("TORCH_HOME", str(caches / "torch"))
    environ |= job.env
    environ |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    environ["CACHESVC_STORE"] = str(folder / "store")
    return environ | dict(extra)


class Launcher:
    """Starts and ends the processes of one run; thread-safe."""

    def __init__(self, base: Mapping[str, str] | None = None) -> None:
        self._base = dict(os.environ if base is None else base)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Return whether the run was interrupted."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End all processes that this launcher started, with their children, and start no more."""
        self._cancelled.set()
        with self._lock:
            for process in self._running:
                _kill(process)

    def run(
        self, request: PhaseRequest, folder: Path, extra: Mapping[str, str], *, keep: bool = False
    ) -> PhaseResult:
        """Run one phase in one process and return its result.

        ``folder`` is made if it is missing. ``extra``: variables that the process gets too. ``keep`` leaves
        its node store for a second process. A process that dies or takes too long is a result with an error.
        Raises ``Cancelled``.
        """
        for name in ("home", "tmp", "cwd", "store"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        request_file, result_file, log = folder / "request.json", folder / "result.json", folder / "log"
        request_file.write_text(json.dumps(codec.plain(request)))
        for earlier in folder.glob(f"{result_file.stem}*{result_file.suffix}"):
            earlier.unlink()
        with open(log, "wb") as out:
            worker = "cachesvc.warm.gpuless.main" if request.device else "cachesvc.warm.worker.main"
            command = [*_torchrun(request), "-m", worker, str(request_file), str(result_file)]
            process = self._start(request.job, folder, command, extra, out.fileno())
        try:
            in_time = self._wait(process, request.job.spec.timeout)
        finally:
            _kill(process)
            with self._lock:
                self._running.discard(process)
            for name in ("home", "tmp", "cwd") + (() if keep else ("store",)):
                shutil.rmtree(folder / name, ignore_errors=True)
        if self.cancelled:
            raise Cancelled
        return _read_result(request, process, in_time, result_file, log)

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
        """Wait for the process; return whether it ended by itself in time."""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def _torchrun(request: PhaseRequest) -> list[str]:
    """Return the arguments that start the ranks of a script; empty for one process.

    ``--standalone`` takes a free port of this machine. The workers of torchrun have sessions of their own,
    but each ends with its parent.
    """
    if not request.ranks:
        return []
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={request.ranks}"]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, which holds only this process and its children, also those that outlived it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_result(
    request: PhaseRequest, process: subprocess.Popen[bytes], in_time: bool, result_file: Path, log: Path
) -> PhaseResult:
    """Return the result that the process wrote, or one whose error says why there is none."""
    if in_time and request.ranks:
        result = ranks.combine_files(request, result_file)
        if result is not None:
            return result
    if in_time and process.returncode == 0 and result_file.is_file():
        return codec.build(PhaseResult, json.loads(result_file.read_text()))
    tail = _tail(log)
    if not in_time:
        error = f"took longer than {request.job.spec.timeout:g} s (see timeout)"
    elif process.returncode < 0:
        error = f"the process died of {signal.Signals(-process.returncode).name}"
    else:
        error = f"the process ended with status {process.returncode}"
    lines = [line for line in tail.splitlines() if line.strip()]
    last = f": {lines[-1].strip()[:200]}" if lines and in_time else ""
    return PhaseResult(request.phase, error=error + last, trace=tail)


def _tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
