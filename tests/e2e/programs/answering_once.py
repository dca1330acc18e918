"""Answer once with a compiled model, and end: ``answering_once.py NAME [early]``. The model's weights are
other ones in each process. ``early``: the first trace begins before the restore ends.

Prints as JSON what was traced and compiled, and how far the output is from eager."""

import json
import os
import sys
import threading

import frames_model
import torch

import cachesvc_client
from cachesvc_client.process.process import process


def attach():
    cachesvc_client.attach(sys.argv[1])


def begin_before_the_restore_ends():
    """Have the restore wait until the first trace runs."""
    from cachesvc_client.restore.session_restore import SessionRestore

    traces, restore = threading.Event(), SessionRestore.restore
    torch._dynamo.callback.on_compile_start(lambda *_: traces.set())
    SessionRestore.restore = lambda *call: traces.wait(60) and restore(*call)


if sys.argv[2:] == ["early"]:
    begin_before_the_restore_ends()
    attach()
else:
    attach()
    assert cachesvc_client.wait(60)
model = frames_model.make(seed=os.getpid())
compiled = torch.compile(model, dynamic=False)
with torch.no_grad():
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    output = compiled(x)
    seen = process().output.observer.snapshot()
    difference = float((output - model(x)).abs().max())
answer = {"traces": seen.torch.traces, "compilations": seen.compilations, "difference": difference}
answer["why"] = [*process().all_kinds.explain(())]
print(json.dumps(answer), flush=True)
