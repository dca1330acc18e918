"""Attach to the name, as a service does, and make the named differences one after the other.

``consumer.py NAME CHANGE…`` prints one JSON line per change. ``FACTS`` in the environment is JSON whose facts
replace those of `detect`: they describe hardware that this machine lacks."""

import json
import os
import sys

import short_life

import cachesvc_client
from cachesvc_client.environment import detect as detecting

injected = json.loads(os.environ.get("FACTS", "{}"))
more_flags = injected.pop("more cpu_flags", [])
detect_here = detecting.detect


def detect(environ=None):
    facts = {**detect_here(environ), **injected}
    return {**facts, "cpu_flags": [*facts["cpu_flags"], *more_flags]}


detecting.detect = detect
session = cachesvc_client.attach(sys.argv[1])
session.wait(120)

import torch  # noqa: E402

from cachesvc_client.graphs.request import GraphRequests  # noqa: E402
from cachesvc_client.hooks import counters  # noqa: E402
from cachesvc_client.process.process import process  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402
from changes import named  # noqa: E402


def as_in_a_fresh_process():
    """Forget all compiles and counts, so that `report` describes only what follows.

    The files of the change before stay in the folder, under keys that only its own difference makes."""
    torch._dynamo.reset()
    state = process()
    state.output.observer = counters.start()
    state.output.asked = GraphRequests(state.output.registered_functions)
    used = state.kinds["inductor"]
    used.forget(used.used_paths(), used.keys.used())


def one(name):
    as_in_a_fresh_process()
    observer = counters.start(audit=True)
    with torch.no_grad(), named(name) as ask:
        expected = ask.model(ask.x)
        output = torch.compile(ask.model, **ask.options)(ask.x)
        report = cachesvc_client.report()
    scale = max(float(expected.detach().abs().max()), 1e-9)
    observation = observer.snapshot()
    return {
        "row": name,
        "state": report.state,
        "reasons": list(report.reasons),
        "facts": report.compared.facts,
        "differences": [one.factor for one in report.compared.differences],
        "compiled": observation.compilations,
        "tuned": observation.tuning_runs,
        "compilers": observation.compiler_processes,
        "difference": float((output.double() - expected.double()).abs().max()) / scale,
        "eps": torch.finfo(output.dtype).eps,
        "counters": plain(observation)["torch"]["counters"],
    }


for change in sys.argv[2:]:
    try:
        print(json.dumps(one(change)), flush=True)
    except Exception as error:  # noqa: BLE001 - printed, and the other changes go on
        print(json.dumps({"row": change, "error": f"{type(error).__name__}: {error}"[:2000]}), flush=True)
short_life.end()
