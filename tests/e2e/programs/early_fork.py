"""Attach to a bundle and fork at once, while the restore's thread imports: ``early_fork.py BUNDLE``.

Print how the restore ended in the child. The child exits with status 3 where it hangs."""

import os
import signal
import sys
import threading
import time

import cachesvc_client

session = cachesvc_client.attach(bundle=sys.argv[1])
for _ in range(3):
    threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
signal.alarm(60)
print(session.wait(50), session.status, cachesvc_client.report().state, flush=True)
os._exit(0)
