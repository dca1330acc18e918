"""Run a program in a prepared interpreter as if this process were the program: SOCKET ARGUMENT….

Standard input, output and error, the variables, the working directory, the signals that ask for an end, and
the exit status are those of this process. If this process is killed, so is the program."""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
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
