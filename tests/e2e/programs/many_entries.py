"""Run a service under a name with many entries, and print the report as JSON on the last line: NAME=VALUE.

``name``: what to attach to. ``functions``: which ones to compile, each on a thread of its own. ``ready`` and
``go``: after the restore, make the one file and wait for the other. ``canary``: compare with eager."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import short_life

import cachesvc_client

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
session = cachesvc_client.attach(options["name"], canary="canary" in options or None)

import torch  # noqa: E402
from model import inputs  # noqa: E402

from cachesvc_client.hooks import counters  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402

observer = counters.start(audit=True)
session.wait(60)
at_start = [str(entry.manifest.statement.target) for entry in session.result.installed]
revisions_at_start = [str(entry.revision) for entry in session.result.installed]
if "ready" in options:
    Path(options["ready"]).touch()
    while not os.path.exists(options["go"]):
        time.sleep(0.05)

FUNCTIONS = {
    "small": lambda x: x.cos() * 2 + 1,
    "other": lambda x: x.cos() * 2 + 3,
    "new": lambda x: x.sin() * 5 - 4,
    "newer": lambda x: x.tan() * 5 - 4,
}
right = []


def call(function):
    batch = inputs()
    with torch.no_grad():
        right.append(torch.allclose(torch.compile(function)(batch), function(batch)))


threads = [threading.Thread(target=call, args=[FUNCTIONS[one]]) for one in options["functions"].split(",")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
report = cachesvc_client.report()
print(
    json.dumps(
        {
            "right": right == [True] * len(threads),
            "seconds": report.seconds,
            "state": report.state,
            "line": report.line,
            "reasons": list(report.reasons),
            "moved": report.bytes_moved,
            "used": {use.target: use.used for use in report.revisions},
            "at_start": at_start,
            "revisions_at_start": revisions_at_start,
            "revisions_used": [use.revision for use in report.revisions if use.used],
            "status": session.status,
            "observed": plain(observer.snapshot()),
        }
    )
)
short_life.end()
