"""Use the client in a way that nobody should: ``wrong.py HOW BUNDLE``. Print as JSON how far the outputs were
from eager, and the report.

In a forked child, the outputs and the report are the child's."""

import json
import os
import sys
import threading

import short_life

how, bundle = sys.argv[1:]


def function(x):
    return x.cos() * 2 + 1


def call(space, **options):
    """Return how far a fresh ``torch.compile`` is from eager."""
    torch, inputs = space["torch"], space["inputs"]
    with torch.no_grad():
        return float((torch.compile(function, **options)(inputs()) - function(inputs())).abs().max())


def compiles_and_runs_the_graph(graph, inputs):
    """Compile a graph as a backend and never call the compiled graph."""
    import copy

    from torch._inductor.compile_fx import compile_fx

    compile_fx(copy.deepcopy(graph), inputs)
    return graph.forward


ATTACH = "import cachesvc_client\nsession = cachesvc_client.attach(bundle=bundle)\n"
IMPORT = "import torch\nfrom model import inputs\n"
space = {"bundle": bundle}
differences, sessions = [], []

if how == "notebook":
    for cells in (
        [ATTACH, IMPORT],
        [IMPORT, ATTACH, "torch.compiler.reset()"],
        [ATTACH, "torch._dynamo.reset()"],
    ):
        for cell in cells:
            exec(compile(cell, "<cell>", "exec"), space)
        differences.append(call(space))
        sessions.append(space["session"])
elif how == "thread":
    thread = threading.Thread(target=exec, args=(ATTACH, space))
    thread.start()
    exec(IMPORT, space)
    thread.join()
elif how == "after fork":
    exec(IMPORT, space)
    import torch._dynamo

    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    exec(ATTACH, space)
elif how == "switched off":
    exec(ATTACH + IMPORT, space)
    import torch._inductor.config

    torch._inductor.config.force_disable_caches = True
elif how == "plain":
    exec(ATTACH + IMPORT, space)
elif how == "autograd function":
    exec(ATTACH + IMPORT, space)
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    batch = space["inputs"]().requires_grad_()
    output = torch.compile(lambda x: Square.apply(x).cos())(batch)
    differences.append(float((output - (batch * batch).cos()).detach().abs().max()))
elif how == "around the canary":
    exec(ATTACH + IMPORT, space)
    differences.append(call(space, backend=compiles_and_runs_the_graph))
elif how == "hook taken out":
    exec(ATTACH + IMPORT, space)
    import torch._inductor.codecache

    details = torch._inductor.codecache.FxGraphHashDetails
    while hasattr(details.__init__, "__wrapped__"):
        details.__init__ = details.__init__.__wrapped__
elif how == "without":
    exec(
        "import cachesvc_client\nfrom cachesvc_client.process.process import process\nprocess().arm()\n"
        + IMPORT,
        space,
    )

if not differences:
    differences.append(call(space))
report = space["cachesvc_client"].report()
print(
    json.dumps(
        {
            "differences": differences,
            "sessions": len({id(session) for session in sessions}),
            "state": report.state,
            "reasons": report.reasons,
            "compilations": report.compilations,
            "graphs": report.observed.torch.graphs_compiled,
            "hits": report.observed.torch.fx_hits,
        }
    ),
    flush=True,
)
short_life.end()
