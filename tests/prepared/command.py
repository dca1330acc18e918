"""Run a program in a prepared interpreter as if this process were the program: SOCKET ARGUMENT….

Standard input, output and error, the variables, the working directory, the mask of new files, the signals
that ask for an end, and the exit status are those of this process. If this process is killed, so is the
program.

Where a test sets PYTHON_PREPARED (`prepared_variables`), `collect_rarely.pth` has each Python do so that is
started with a program and no other flag or file, but the first one with its variables, and those to which
cachesvc attaches or that it observes before they import torch."""

import contextlib
import json
import os
import signal
import socket
import sys

BY_PYTHON = ("PYTHON", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD")
BY_TORCH = ("TORCHINDUCTOR_", "TORCH_", "TRITON_", "OMP_", "ATEN_", "CI", "CXX")
"""Beginnings of the variables that Python and torch read once: those of an interpreter are those of its
programs."""
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "PYTHONPATH", "PYTHON_PREPARED")
"""Variables with such a beginning that are read when they are needed."""
BEFORE_TORCH = ("CACHESVC_NAME", "CACHESVC_BUNDLE", "CACHESVC_OBSERVE")
"""Variables that have cachesvc do something in each Python that imports torch."""


def stand_in(address, arguments):
    """Run the program there and end as it ended; return if no interpreter answers."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        return
    umask = os.umask(0o077)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "umask": umask}
    early = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: early.append(number))
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    for file in (0, 1, 2):
        os.close(file)
    answers = connection.makefile("rb")
    program = int(answers.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(program, number))
    for number in early:
        os.kill(program, number)
    status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def _of(folder):
    with open(os.path.join(folder, "run.json")) as file:
        return json.load(file)


def interpreter(folder, modules, environ, at_first=True):
    """Return the address of an interpreter with these modules, which the processes of a run of tests share.

    It ends with the process that owns the folder. ``at_first``: start it at the first request; else that
    returns None, as one start alone is no faster."""
    import fcntl
    import hashlib
    import subprocess

    read_once = BY_PYTHON + BY_TORCH * ("torch" in modules)
    variables = {
        name: value
        for name, value in environ.items()
        if name.startswith(read_once) and name not in READ_LATER
    }
    of = hashlib.sha256(json.dumps([sys.executable, modules, sorted(variables.items())]).encode())
    address = os.path.join(folder, of.hexdigest()[:16])
    if os.path.exists(address):
        return address
    with open(address + ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(address):
            return address
        lock.seek(0)
        # A Python may read its `.pth` twice.
        if not at_first and lock.read() in ("", str(os.getpid())):
            lock.write(str(os.getpid()))
            return None
        process = subprocess.Popen(
            [sys.executable, os.path.join(folder, "interpreter.py"), address, *modules],
            env={**_of(folder)["variables"], **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        ready = process.stdout.readline()
        process.stdout.close()
        return address if ready == b"ready\n" else None


def _inherits_files():
    """Return whether this process has files of the one that started it, to talk with it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                return True
    return False


def instead_of_this_process(folder):
    """Run the program of this process in an interpreter of the folder, if it can."""
    words = sys.orig_argv[1:]
    if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        return
    if (
        any(map(os.environ.get, ("CACHESVC_NAME", "CACHESVC_BUNDLE", "CACHESVC_OBSERVE")))
        or _inherits_files()
    ):
        return
    try:
        is_command = (
            words[1] in ("cachesvc", "cachesvc_client") if words[0] == "-m" else "cachesvc.cli" in words[1]
        )
        modules = _of(folder)["serves" if is_command else "compiles"]
        address = interpreter(folder, modules, os.environ, at_first=False)
    except (OSError, IndexError):
        return
    if address:
        stand_in(address, words)


if __name__ == "__main__":
    stand_in(sys.argv[1], sys.argv[2:])
    sys.exit("no interpreter answers")
if __name__ == "prepared":
    instead_of_this_process(os.environ["PYTHON_PREPARED"])
