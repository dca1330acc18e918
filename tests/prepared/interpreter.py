"""Import modules once, and run each program that is asked for in a fork of this process: SOCKET MODULE….

A request is one message of JSON (``arguments``, ``environment``, ``folder``) with the files of standard
input, output and error. The answers are two lines: the program's process, and its exit status (negative for a
signal). `command.py` sends the requests. This process ends with its standard input."""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import types

LONGEST_REQUEST = 1 << 20


def main(path):
    """Answer requests; return in the process of a program."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    # Nobody waits for the processes that watch a program.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([0, listener], [], [])
        if 0 in ready:
            sys.exit()
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            return start(connection)
        connection.close()


def start(connection):
    """Fork the program and watch it; return in the process of the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
    child = os.fork()
    if not child:
        connection.close()
        return become(json.loads(message), files)
    for file in (0, 1, 2, *files):
        os.close(file)
    connection.sendall(b"%d\n" % child)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)  # The requester was killed.
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(b"%d\n" % status)
    os._exit(0)


def become(request, files):
    """Make this process the one that was asked for, as if Python had been started with these arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    gc.enable()
    return request["arguments"]


def run(arguments):
    """Run ``-m MODULE``, ``-c CODE`` or a program's file, with its arguments, as ``__main__``."""
    how = arguments[0]
    first = os.path.dirname(how) if how not in ("-m", "-c") else ""
    paths = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    sys.path[:] = dict.fromkeys(paths)
    if how == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if how == "-c":
        source, name, sys.argv = arguments[1], "<string>", ["-c", *arguments[2:]]
    else:
        with open(how) as file:
            source, name, sys.argv = file.read(), how, arguments
        module.__file__ = how
    exec(compile(source, name, "exec"), module.__dict__)


for name in sys.argv[2:]:
    importlib.import_module(name)
run(main(sys.argv[1]))
