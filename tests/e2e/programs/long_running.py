"""Run a service that lives on: attach to NAME and restore, then compile what each line of stdin says, a comma
between the numbers of functions that are compiled at the same time, and answer with a line of JSON.

The line ``publish`` publishes. The service ends by ``os._exit``, so no exit function runs."""

import json
import os
import sys
import threading

import short_life

import cachesvc_client

session = cachesvc_client.attach(sys.argv[1])

import torch  # noqa: E402
from model import inputs  # noqa: E402

from cachesvc_client.hooks import counters  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402

observer = counters.start(audit=True)
session.wait(60)
right = []


def call(number):
    batch = inputs()
    # Of one code with other numbers Dynamo would compile a graph of any number.
    function = eval(f"lambda x: x.cos() * 2 + {number}")
    with torch.no_grad():
        right.append(torch.allclose(torch.compile(function)(batch), function(batch)))


def compile_all(numbers):
    threads = [threading.Thread(target=call, args=[number]) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answer():
    report, result = cachesvc_client.report(), session.result
    return {
        "compiled": observer.snapshot().torch.graphs_compiled,
        "observed": plain(observer.snapshot()),
        "right": all(right),
        "state": report.state,
        "line": report.line,
        "status": session.status,
        "reasons": list(report.reasons),
        "seconds": report.seconds,
        "moved": report.bytes_moved,
        "installed": [str(entry.manifest.statement.target) for entry in result.installed],
        "used": {use.target: use.used for use in report.revisions},
        "folder": os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
    }


print(json.dumps(answer()), flush=True)
for line in sys.stdin:
    if line.strip() == "publish":
        print(json.dumps({"revision": str(cachesvc_client.publish().revision)}), flush=True)
        continue
    compile_all([int(word) for word in line.split(",")])
    print(json.dumps(answer()), flush=True)
short_life.end()
