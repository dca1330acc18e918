"""Run a service with a canary: attach to a bundle, call a compiled function three times, and print as JSON
how far each output was from eager.

Usage: ``canary.py BUNDLE [wait] [keep]``; CACHESVC_CANARY decides. With ``wait`` the second call waits until
nothing is left to be compared beside the first. With ``keep`` the first waits for the restore, so that its
trace is recorded, and the program ends when the node has kept what it recorded."""

import json
import sys
import time

import short_life

import cachesvc_client
from cachesvc_client.own_results.keep import keep_own_results
from cachesvc_client.process.process import process
from cachesvc_client.session.sessions import attached

cachesvc_client.attach(bundle=sys.argv[1])

import torch  # noqa: E402
from model import inputs  # noqa: E402


def function(x):
    return x.cos() * 2 + 1


def wait_for_comparisons():
    comparisons = attached().canary._comparisons
    while comparisons is not None and comparisons._thread is not None:
        time.sleep(0.01)


if "keep" in sys.argv:
    cachesvc_client.wait(60)
differences, compilations = [], []
torch.manual_seed(3)
random = torch.random.get_rng_state()
with torch.inference_mode():
    compiled = torch.compile(function)
    for _ in range(3):
        batch = inputs()
        differences.append(float((compiled(batch) - function(inputs())).abs().max()))
        compilations.append(cachesvc_client.report().compilations)
        assert torch.equal(batch, inputs())
        if "wait" in sys.argv:
            wait_for_comparisons()
report = cachesvc_client.report()
if "keep" in sys.argv:
    keep_own_results(process())
print(
    json.dumps(
        {
            "differences": differences,
            "compilations": compilations,
            "traces": process().output.observer.snapshot().torch.traces,
            "state": report.state,
            "reasons": report.reasons,
            "distrusted": report.distrusted,
            "status": list(cachesvc_client.status().values()),
            "random_kept": torch.equal(random, torch.random.get_rng_state()),
        }
    )
)
short_life.end()
