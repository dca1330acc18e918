"""Run a service that compiles a model: ``recording_service.py NAME CHANGE``.

It answers each line of stdin with JSON: a number is a batch of as many rows, ``train`` a step of training,
``step`` compiled steps of an optimizer, ``new`` compiles another function, and ``drop`` says whether the
model is alive once the program dropped it.

``CHANGE`` is what differs from the service before, see ``CHANGES``. Every process has other weights."""

import gc
import json
import os
import sys
import time
import weakref

import cachesvc_client

cachesvc_client.attach(sys.argv[1])

import frames_model  # noqa: E402
import torch  # noqa: E402

from cachesvc_client.process.process import process  # noqa: E402


def another_function():
    frames_model.scaled = lambda x: x * 3


def replaced_forward():
    forward = torch.nn.Linear.forward
    torch.nn.Linear.forward = lambda self, x: forward(self, x) + 1


def broken_recorder():
    """Each recording raises when it is written."""
    from cachesvc_client.kinds.frames import stored

    def write(*_):
        raise RuntimeError("no room")

    stored.write = write


def broken_trace():
    """Dynamo ends a trace that is recorded."""
    from torch._dynamo import exc
    from torch._dynamo.output_graph import OutputGraph

    compile_graph = OutputGraph.compile_and_call_fx_graph

    def fail(self, *arguments, **given):
        if self.package is not None:
            raise exc.PackageError("not to be recorded")
        return compile_graph(self, *arguments, **given)

    OutputGraph.compile_and_call_fx_graph = fail


CHANGES = {one.__name__: one for one in (another_function, replaced_forward, broken_recorder, broken_trace)}


def new(x):
    return x.erf() * 3 - x


def training(model, x):
    loss = model(x).square().sum()
    loss.backward()
    return torch.cat([loss.detach().reshape(1), *(weight.grad.flatten() for weight in model.parameters())])


def stepped(step):
    """Return the parameters after two steps of an optimizer with state, where ``step`` makes its step."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
    call = step(optimizer)
    for _ in range(2):
        layers(torch.linspace(-1, 1, 40).reshape(5, 8)).square().sum().backward()
        call()
        optimizer.zero_grad()
    return torch.cat([one.detach().flatten() for one in layers.parameters()])


def compiled_step(optimizer):
    @torch.compile
    def step():
        optimizer.step()

    return step


assert cachesvc_client.wait(60)
model = frames_model.make(seed=os.getpid())
trained = frames_model.make(seed=os.getpid())
if change := CHANGES.get(sys.argv[2]):
    change()
compiled, compiled_trained = torch.compile(model, dynamic=False), torch.compile(trained, dynamic=False)
for line in sys.stdin:
    word, begin = line.strip(), time.perf_counter()
    answer = {}
    if word == "drop":
        alive = weakref.ref(model)
        del model, compiled
        torch._dynamo.reset()
        gc.collect()
        answer["alive"] = alive() is not None
    elif word == "new":
        with torch.no_grad():
            x = torch.linspace(-1, 1, 24)
            output = torch.compile(new)(x)
            answer["difference"] = float((output - new(x)).abs().max())
    elif word == "step":
        answer["difference"] = float((stepped(compiled_step) - stepped(lambda one: one.step)).abs().max())
    elif word.startswith("train"):
        x = torch.linspace(-1, 1, 40).reshape(5, 8)
        output = training(compiled_trained, x)
        trained.zero_grad()
        answer["difference"] = float((output - training(trained, x)).abs().max())
    else:
        with torch.no_grad():
            x = torch.linspace(-1, 1, int(word) * 8).reshape(int(word), 8)
            output = compiled(x)
            answer["seconds"] = time.perf_counter() - begin
            eager = model(x)
            answer["difference"] = float((output - eager).abs().max())
    seen = process().output.observer.snapshot()
    answer |= {
        "traces": seen.torch.traces,
        "compilations": seen.compilations,
        "why": [*process().all_kinds.explain(())],
    }
    print(json.dumps(answer | {"not_recorded": [*process().all_kinds.not_recorded()]}), flush=True)
os._exit(0)
