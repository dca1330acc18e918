"""Make fresh hosts and run processes on them, for the demo and the benchmarks.

A host is an empty HOME, TMPDIR and working directory; nothing of this machine's caches is seen on it.
Every process is the leader of a session of its own, so that an interrupt reaches the parent alone,
which then ends what it started and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVICE = ROOT / "benchmarks" / "service.py"
COMPILERS = ("gcc", "cc", "cc1plus", "clang", "clang++", "ld", "as", "nvcc", "ptxas", "openssl")
"""The names of compilers, without ``g++``: a script of that name would be another compiler to cachesvc, and
an image without compilers has none."""
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""Variables that save half of a first compile: its probes of the CPU's instructions and its precompiled
header. They are in PyTorch's keys, so builder and service have them alike. What measures a compile, or shows
what a service without variables sees, goes without them."""
_CLEARED = ("CC", "CI", "CUDA_CACHE_PATH", "CXX", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "PYTHONSTARTUP")
_CLEARED_PREFIXES = ("CACHESVC_", "TORCHINDUCTOR_", "TORCH_COMPILE", "TORCH_LOGS", "TRITON_")
_PACKAGES = ("stdlib", "purelib", "platlib")
_GRACE = 15.0
"""Seconds that a process has to end by itself after it is asked to."""


class Failed(Exception):
    """A process failed; the message has the end of its output."""


def exit_status(measure: Callable[[Path], object]) -> int:
    """Run ``measure`` with a scratch folder. Return the exit status of a benchmark: 0, 1 if a process failed
    (the error goes to stderr), 130 after an interrupt."""
    from cachesvc.cli.signals import interruptible

    try:
        with interruptible(), tempfile.TemporaryDirectory(prefix="cachesvc-benchmark-") as folder:
            measure(Path(folder))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those that change keys or lead to caches.

    ``CI`` alone is part of AOTAutograd's keys, and settings of PyTorch would make another configuration than
    the default."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _CLEARED and not name.startswith(_CLEARED_PREFIXES)
    }


def use_this_tree() -> None:
    """Have every process import this tree, also where it is not installed, or another one is."""
    os.environ["PYTHONPATH"] = _with_this_tree(os.environ.get("PYTHONPATH", ""))


def service_packages() -> dict[str, str]:
    """Return the PYTHONPATH of a service, where SERVICE_PACKAGES names a folder with what the client needs.

    A service has none of the registry's packages. PyTorch imports ``redis`` where there is one, and that
    imports OpenTelemetry: half of the time in which it imports Inductor's cache."""
    packages = os.environ.get("SERVICE_PACKAGES", "")
    return {"PYTHONPATH": _with_this_tree(packages)} if packages else {}


def _with_this_tree(path: str) -> str:
    return os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "client"), path)))


def compile_packages(folder: Path) -> float:
    """Compile the bytecode of every package into a folder, for all processes. Return the seconds it took.

    On a machine whose package folder is read-only, some packages may have no bytecode: each process would
    compile them anew, which costs a second of an import."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    folders = [
        *filter(None, os.environ["PYTHONPATH"].split(os.pathsep)),
        *map(sysconfig.get_path, _PACKAGES),
    ]
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0", *dict.fromkeys(folders)]
    begin = time.monotonic()
    # Some of these files test bad syntax.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return round(time.monotonic() - begin, 1)


@dataclass(frozen=True, slots=True)
class Host:
    """Is a HOME, TMPDIR and working directory of its own under ``folder``, made when they are missing.

    ``work``: another working directory, which exists."""

    folder: Path
    work: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables of a process on this host."""
        for name in ("home", "tmp", "work"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        own = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp"), **service_packages()}
        return clean_environment() | own | {"HF_HUB_OFFLINE": "1"}

    def run(self, *arguments: str, **variables: str) -> tuple[str, str]:
        """Run Python with ``arguments`` to its end. Return stdout and stderr; raise ``Failed`` if it
        fails."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.running(*arguments, variables=variables, **pipes) as process:
            out, errors = process.communicate()
        if process.returncode:
            raise Failed(f"python {' '.join(arguments)}: status {process.returncode}\n{errors[-3000:]}")
        return out, errors

    def running(
        self, *arguments: str, variables: dict[str, str], **pipes: Any
    ) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
        """Run Python with ``arguments`` for the length of a block."""
        environment = self.environment() | variables
        started = {"BENCHMARK_STARTED": repr(time.monotonic())}
        place = self.work or self.folder / "work"
        command = [sys.executable, *arguments]
        return running_process(command, env=environment | started, cwd=place, text=True, **pipes)

    def serve(self, model: str, *options: str, compilers: bool = True, **variables: str) -> dict[str, Any]:
        """Run ``service.py`` to its end and return its answer, with ``called``: the compilers that it, or a
        child of it, called.

        With ``compilers=False`` the PATH has no ``g++``, and its other compilers only record that they were
        called. Raise ``Failed`` if the process fails."""
        traps = self.folder / "traps"
        if not compilers:
            variables |= {"PATH": str(trap(traps))}
        out, _ = self.run(str(SERVICE), model, *options, **variables)
        called = (traps / "called").read_text().splitlines() if (traps / "called").exists() else []
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer | {"called": called}


def trap(folder: Path) -> Path:
    """Make a PATH on which every compiler only writes its name and arguments to ``called`` and fails.

    There is no g++, as in an image without compilers: a script of that name would be another compiler than
    the builder's. This machine's ``addr2line`` is there: torch 2.8 reads C++ stack traces with it where
    Dynamo ends a graph, and raises ``ValueError: stoi`` where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    if reader := shutil.which("addr2line"):
        (folder / "addr2line").unlink(missing_ok=True)
        (folder / "addr2line").symlink_to(reader)
    for name in COMPILERS:
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/called\nexit 1\n')
        script.chmod(0o755)
    return folder


def another_toolkit(real: Path, folder: Path) -> Path:
    """Make a folder of CUDA that is the real one but for its nvcc, which has some bytes more."""
    (folder / "bin").mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    for entry in (real / "bin").iterdir():
        if entry.name != "nvcc":
            (folder / "bin" / entry.name).symlink_to(entry)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_bytes((real / "bin" / "nvcc").read_bytes() + b"another one")
    nvcc.chmod(0o755)
    return folder


@contextmanager
def running_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process that does not outlive the block: it is asked to end, then killed, with its children."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Registry:
    """Is a running registry: its address, the variables of its users, its process. Token and keys are empty
    for a further replica over an index that another one made: only the first start tells them."""

    url: str
    token: str = ""
    trust: str = ""
    signing_key: str = ""
    pid: int = 0

    @property
    def address(self) -> str:
        """Return ``host:port``."""
        return self.url.removeprefix("http://")

    @property
    def service(self) -> dict[str, str]:
        """Return the variables that a service needs."""
        return {"CACHESVC_URL": self.url, "CACHESVC_TOKEN": self.token, "CACHESVC_TRUSTED_KEYS": self.trust}

    @property
    def builder(self) -> dict[str, str]:
        """Return the variables that ``cachesvc warm`` needs."""
        own = {"PYTHONPATH": os.environ["PYTHONPATH"]} if service_packages() else {}
        return self.service | {"CACHESVC_SIGNING_KEY": self.signing_key} | own


def serve_command(data: Path) -> list[str]:
    """Return the command of ``cachesvc serve`` for a registry with its data in a folder, on any free port of
    loopback."""
    return ["cachesvc", "serve", "--data", str(data), "--port", "0", "--ready-file", f"{data}/ready.json"]


@contextmanager
def registry(data: Path, python: str = sys.executable, **variables: str) -> Iterator[Registry]:
    """Run a registry for the length of the block, at its first start: embedded, unless the variables name
    other backends.

    ``python``: the interpreter, where this one lacks what a registry needs. Raise ``Failed`` if it does not
    start."""
    data.mkdir(parents=True, exist_ok=True)
    ready = data / "ready.json"
    ready.unlink(missing_ok=True)  # A file of an earlier run would name another port.
    with open(data / "log", "wb") as log:
        command = [python, "-m", *serve_command(data)]
        env = clean_environment() | variables
        with running_process(command, env=env, stdout=log, stderr=subprocess.STDOUT) as process:
            while not ready.exists():
                if process.poll() is not None:
                    raise Failed(f"cachesvc serve ended:\n{(data / 'log').read_text()[-3000:]}")
                time.sleep(0.05)
            yield Registry(**json.loads(ready.read_text()), pid=process.pid)


def cachesvc(command: Sequence[str]) -> list[str]:
    """Return a ``cachesvc ...`` command line for this interpreter, whatever is on the PATH."""
    return [sys.executable, "-m", *command]
