"""Compile a model, record its frames, or serve it: ``frames.py compile|record BUNDLE KEY`` and
``frames.py serve BUNDLE CHANGE``, where the change is a name of ``CHANGES``.

Every process has other weights. Prints as JSON what was traced and compiled, why, and how far the outputs are
from eager."""

import json
import sys

import recorded_session
import short_life

import cachesvc_client
from cachesvc_client.session.process import process

what, bundle, more = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import frames_model  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

assert what == "compile" or cachesvc_client.wait(60)
model = frames_model.make(seed=len(what))
optional: dict[str, bool] = {}


def another_function():
    frames_model.scaled = lambda x: x * 3


def another_global():
    frames_model.SCALE = 5.0


def training():
    model.train()


def forward_hook():
    model.second.register_forward_hook(lambda *call: call[-1] + 1)


def hook_of_all_modules():
    nn.modules.module.register_module_forward_hook(lambda *call: call[-1] + isinstance(call[0], nn.Linear))


def another_module():
    model.second = nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def another_dtype():
    model.double()


def tied_weights():
    model.second.weight = model.first.weight


def keyword():
    optional["twice"] = True


CHANGES = {
    "nothing": lambda: None,
    **{
        change.__name__: change
        for change in (another_function, another_global, training, forward_hook, hook_of_all_modules)
    },
    **{change.__name__: change for change in (another_module, another_dtype, tied_weights, keyword)},
}


def call(function):
    torch.manual_seed(0)
    dtype = model.first.weight.dtype
    sizes = (4, 6, 7)
    return [
        function(torch.linspace(-1, 1, size * 8, dtype=dtype).reshape(size, 8), **optional) for size in sizes
    ]


if what == "serve":
    CHANGES[more]()
with torch.no_grad():
    outputs = call(torch.compile(model))
    seen = process().observer.snapshot()
    report = cachesvc_client.report() if what == "serve" else None
    torch.compiler.reset()
    eager = call(model)
if what != "serve":
    recorded_session.publish(session, bundle, more, whole=what == "record")
differences = [float((one - other).abs().max()) for one, other in zip(outputs, eager, strict=True)]
print(
    json.dumps(
        {
            "traces": seen.traces,
            "compilations": seen.compilations,
            "not_recorded": list(process().not_recorded()),
            "state": report.state if report else "",
            "reasons": list(report.reasons) if report else [],
            "explained": list(process().explain(())),
            "difference": max(differences),
        }
    )
)
short_life.end()
