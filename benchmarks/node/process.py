"""Start as a service of a node does, without torch: attach to NAME, and print as JSON what that took.

``BENCHMARK_AT``: the second of UTC at which this process and its neighbours begin."""

from __future__ import annotations

import json
import os
import sys
import time

import cachesvc_client
from cachesvc_client.session.sessions import attached

time.sleep(max(0.0, float(os.environ["BENCHMARK_AT"]) - time.time()))
began = time.monotonic()
session = cachesvc_client.attach(sys.argv[1])
attached().before_compile()
waited = time.monotonic() - began
assert session is not None
session.wait(60)
result = session.result
print(
    json.dumps(
        {
            "user": os.geteuid(),
            "status": session.status,
            "installed": len(result.installed) if result else 0,
            "moved": result.moved if result else 0,
            "waited": waited,
            "seconds": time.monotonic() - began,
            "steps": result.seconds if result else {},
            "problems": result.problems if result else [],
        }
    ),
    flush=True,
)
os._exit(0)
