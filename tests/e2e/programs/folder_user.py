"""Attach as a service, write a file into the private folder, and be somebody who uses it: print the folder.

The first argument says who: ``closes`` closes its descriptors and goes on; ``daemon`` goes on in a forked
child that closed its descriptors; ``launcher`` starts a program without cachesvc that inherits the variables,
and ends; ``ends`` ends at once, after it removed what others left. Who goes on does so until the file of the
second argument is there."""

import os
import subprocess
import sys
import time
from pathlib import Path

BYSTANDER = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
who, until = sys.argv[1:]

import cachesvc_client  # noqa: E402
from cachesvc_client.process.process import process  # noqa: E402

cachesvc_client.attach(name="team/nothing")
cachesvc_client.wait(60)
folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
folder.mkdir(exist_ok=True)
(folder / f"{who}.cpp").write_text("compiled now")
assert process().folders.private
print(folder, flush=True)

if who == "launcher":
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BYSTANDER, until],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
if who == "daemon":
    if os.fork():
        os._exit(0)
    os.setsid()
if who in ("daemon", "closes"):
    os.closerange(0, 4096)
    while not os.path.exists(until):
        time.sleep(0.02)
    os._exit(0)
if who == "ends":
    import threading

    for thread in threading.enumerate():
        if thread.name in ("cachesvc-restore", "cachesvc-sweep"):
            thread.join()
    for thread in threading.enumerate():
        if thread.name == "cachesvc-sweep":
            thread.join()
