"""Run the programs of `frames_read_models`: ``frames_reads.py compile|record BUNDLE KEY``, and
``frames_reads.py serve BUNDLE nothing|change``.

With *change* each program runs in a child of its own, after its change. CHANGED in the environment has the
builder and the recorder make all changes that reach no other program first. Prints as JSON for each program
what was traced and compiled, and how far the outputs are from eager."""

import contextlib
import json
import os
import sys

import recorded_session

import cachesvc_client
from cachesvc_client.process.process import process

what, bundle, more = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import frames_read_models as models  # noqa: E402
import frames_unguarded_models  # noqa: E402, F401  adds its programs
import torch  # noqa: E402

torch.set_num_threads(1)
assert what == "compile" or cachesvc_client.wait(60)


def measured(name):
    answer, eager, counts = recorded_session.with_eager(models.RUNS[name])
    difference = float((answer - eager).detach().abs().max())
    return {**counts, "difference": difference, "why": list(process().all_kinds.explain(()))}


def changed(name):
    models.CHANGES[name]()
    return measured(name)


def in_a_child(name):
    return recorded_session.in_a_child(lambda: changed(name))


with contextlib.redirect_stdout(sys.stderr), torch.no_grad():
    if os.environ.get("CHANGED"):
        for name in models.CHANGES.keys() - models.EVERYWHERE:
            models.CHANGES[name]()
    run = in_a_child if more == "change" else measured
    answer = {name: run(name) for name in models.RUNS}
if what != "serve":
    recorded_session.publish(session, bundle, more, whole=what == "record")
print(json.dumps({"programs": answer, "not_recorded": list(process().all_kinds.not_recorded())}))
sys.stdout.flush()
os._exit(0)
