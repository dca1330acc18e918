"""Attach to a bundle and fork at once, while the restore's thread imports: ``early_fork.py BUNDLE``.

Two children compile, and print how the restore ended and the outcome. A child exits with status 3 where it
hangs."""

import os
import signal
import sys
import threading
import time

import cachesvc_client

session = cachesvc_client.attach(bundle=sys.argv[1])
for _ in range(3):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
children = []
for _ in range(2):
    if child := os.fork():
        children.append(child)
        continue
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    signal.alarm(100)
    restored = session.wait(50), session.status
    import torch
    from model import inputs

    with torch.no_grad():
        torch.compile(lambda x: x.cos() * 2 + 1)(inputs())
    print(*restored, cachesvc_client.report().line, flush=True)
    os._exit(0)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.stdout.flush()
os._exit(max(codes))
