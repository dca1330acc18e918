"""Calls compiled functions of many forms while they are to run eagerly, and after that. Needs torch.

Usage: ``eager_program.py [FORM ...]``: the forms that are called after it too, all unless some are named.

Prints a line of JSON for each form: whether outputs were right, how many frames were traced while calls were
eager and after that, and what was raised."""

import json
import sys
import threading

import torch

from cachesvc_client.hooks import counters
from cachesvc_client.kinds.frames.kind import FramesState
from cachesvc_client.kinds.kind import ProcessCallbacks

eager = True
state = FramesState()
counters.start()
state.install_hooks(ProcessCallbacks(lambda: None, lambda _: None, runs_eagerly=lambda: eager))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.inside(x).relu() + 1


def function(x):
    return x.sin() * 2 + 1


def inner(x):
    return x.cos()


def breaks(x):
    y = inner(x) + 1
    torch._dynamo.graph_break()
    return y * 2


compiled_inner = torch.compile(inner)


def nested(x):
    return compiled_inner(x) * 3


def on_a_thread(call, x):
    results = []
    thread = threading.Thread(target=lambda: results.append(call(x)))
    thread.start()
    thread.join()
    return results[0]


CALLS = 300
"""Calls of each form: more than Dynamo compiles a function anew, whose count they must leave alone."""
net = Net()
FORMS = {
    "function": (function, {}),
    "module": (net, {}),
    "whole graph": (lambda x: x.tanh() - 1, {"fullgraph": True}),
    "whole graph of a module": (Net(), {"fullgraph": True}),
    "graph break": (breaks, {}),
    "nested": (nested, {}),
    "nested whole graph": (lambda x: nested(x) + 1, {"fullgraph": True}),
    "dynamic": (lambda x: x * x.shape[0], {"dynamic": True}),
    "method in place": (Net().eval(), {"in_place": True}),
    "other backend": (lambda x: x + 7, {"backend": "eager"}),
}


def check(name, original, options, thread):
    x = torch.randn(4, 8, requires_grad=name == "module")
    expected = original(x)
    if options.pop("in_place", False):
        original.compile()
        compiled = original
    else:
        compiled = torch.compile(original, **options)
    before = counters.counts["frames_traced"]
    wrong, error = 0, ""
    try:
        for _ in range(CALLS):
            output = on_a_thread(compiled, x) if thread else compiled(x)
            wrong += not torch.allclose(output, expected, atol=1e-5)
            if output.requires_grad:
                output.sum().backward()
    except Exception as raised:  # noqa: BLE001 - the test shows it
        error = f"{type(raised).__name__}: {raised}"[:300]
    return (
        compiled,
        x,
        expected,
        {"wrong": wrong, "traced": counters.counts["frames_traced"] - before, "error": error},
    )


kept = {name: check(name, form, dict(options), name == "dynamic") for name, (form, options) in FORMS.items()}
eager, stats = False, torch._dynamo.utils.counters["stats"]
for name, (compiled, x, expected, while_eager) in kept.items():
    if sys.argv[1:] and name not in sys.argv[1:]:
        print(json.dumps({"form": name, "eager": while_eager}), flush=True)
        continue
    before, graphs = counters.counts["frames_traced"], stats["unique_graphs"]
    try:
        wrong, error = sum(not torch.allclose(compiled(x), expected, atol=1e-5) for _ in range(2)), ""
    except Exception as raised:  # noqa: BLE001 - as above
        wrong, error = 0, f"{type(raised).__name__}: {raised}"[:300]
    after = {"wrong": wrong, "graphs": stats["unique_graphs"] - graphs, "error": error}
    print(json.dumps({"form": name, "eager": while_eager, "after": after}), flush=True)
infos = getattr(getattr(torch._dynamo.convert_frame, "dynamo_tls", None), "traced_frame_infos", [])
print(json.dumps({"not_eager": state.not_eager(), "listed": len(infos)}))
sys.exit(0)
