"""Compile a model, record its frames, or serve it: ``frames.py compile|record BUNDLE KEY`` and
``frames.py serve BUNDLE CHANGE``, where the change is a name of ``CHANGES``.

With UNTIL_KILLED it looks for its own activity every ten minutes alone, and does not end by itself.

Every process has other weights. Prints as JSON what was traced, compiled and compared by a canary, why, and
how far the outputs are from eager."""

import collections
import json
import os
import sys
import time

import recorded_session
import short_life

import cachesvc_client
from cachesvc_client.hooks import activity
from cachesvc_client.process.process import process

if os.environ.get("UNTIL_KILLED"):
    activity.QUIET_SECONDS = 600.0
what, bundle, more = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import frames_model  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

assert what == "compile" or cachesvc_client.wait(60)
model = frames_model.make(seed=len(what))
optional: dict[str, bool] = {}
sizes = [4, 6, 7]


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


def graphs_not_kept():
    from cachesvc_client.kinds.frames import stored

    refused = collections.defaultdict(lambda: stored.EagerGraph(refused="it holds tensors"))
    stored.read = lambda path, read=stored.read: read(path)._replace(eager=refused)


def one_size():
    sizes[:] = [4, 4]


def no_call():
    sizes.clear()


def keyword():
    optional["twice"] = True


CHANGES = {
    "nothing": lambda: None,
    **{
        change.__name__: change
        for change in (another_function, another_global, training, forward_hook, hook_of_all_modules)
    },
    **{change.__name__: change for change in (another_module, another_dtype, tied_weights, keyword)},
    **{change.__name__: change for change in (graphs_not_kept, one_size, no_call)},
}
compared: list[object] = []
kept: list[object] = []


def count_comparisons():
    from cachesvc_client.canary import beside
    from cachesvc_client.canary.trial import _Eager

    compare_with = _Eager.compare_with
    _Eager.compare_with = lambda *call: compared.append(call[0]) or compare_with(*call)
    compare_kept = beside.compare_kept
    beside.compare_kept = lambda *call, **given: compared.append(call[0]) or compare_kept(*call, **given)


def wait_for_comparisons():
    """Wait until nothing is left that a canary compares beside the service."""
    from cachesvc_client.session.sessions import attached

    comparisons = attached().canary._comparisons
    while comparisons is not None and comparisons._thread is not None:
        time.sleep(0.01)


def kernel_names():
    """Return how a Triton kernel is named while a recorded graph is loaded and at other times: whether by the
    builder's hash of PyTorch's sources, which is that of the records of tuned kernels too, and how often
    PyTorch asked for this machine's."""
    from torch._inductor import async_compile, codecache

    from cachesvc_client.kinds.frames.deferred import sources_of_builder

    asked = []
    async_compile.torch_key = lambda torch_key=async_compile.torch_key: asked.append(1) or torch_key()
    name = async_compile.CompiledTritonKernels.key

    with sources_of_builder(b"builder"):
        by_builder = name("kernel") == codecache.code_hash("kernel", extra=b"builder")
        tuned_by_builder = codecache.torch_key() == b"builder"
    while_loading = len(asked)
    here = name("kernel") == codecache.code_hash("kernel", extra=codecache.torch_key())
    by_builder = by_builder and tuned_by_builder and codecache.torch_key() != b"builder"
    return {"by_builder": by_builder, "while_loading": while_loading, "here": here, "later": len(asked)}


def recorded_sources():
    """Return whether the files of frames hold the hash of this torch's sources; ``None`` without files."""
    from torch._inductor import codecache

    from cachesvc_client.kinds.frames import stored

    replayer = process().kinds["frames"]._replayer
    files = replayer._files if replayer is not None else ()
    same = {stored.read(file).sources == codecache.torch_key() for file in files}
    return None if not same else same == {True}


def graphs():
    """Return the ``id`` of each compiled graph that Dynamo's bytecode finds; none is freed before the end."""
    found = [one for name, one in vars(frames_model).items() if name.startswith("__compiled_fn")]
    kept.extend(found)
    return {id(one) for one in found}


def call(function):
    torch.manual_seed(0)
    dtype = model.first.weight.dtype
    return [
        function(torch.linspace(-1, 1, size * 8, dtype=dtype).reshape(size, 8), **optional) for size in sizes
    ]


if what == "serve":
    CHANGES[more]()
if os.environ.get("CACHESVC_CANARY"):
    count_comparisons()
DEFERRED = ("torch._inductor.compile_fx", "torch._inductor.lowering", "torch._dynamo.repro.after_dynamo")
with torch.no_grad():
    compiled = torch.compile(model)
    torch.compiler.cudagraph_mark_step_begin()
    outputs = call(compiled)
    imported = [name for name in DEFERRED if name in sys.modules]
    config = compiled.get_compiler_config()
    # PyTorch has imported it by now, so a program may read it.
    same_config = config == torch._inductor.compile_fx.get_patched_config_dict({})
    names = kernel_names()
    wait_for_comparisons()
    comparisons = len(compared)
    seen = process().output.observer.snapshot()
    report = cachesvc_client.report() if what == "serve" else None
    before = graphs()
    torch.compiler.reset()
    if what == "serve":
        again = [float((one - other).abs().max()) for one, other in zip(call(compiled), outputs, strict=True)]
    of_both = before & graphs()
    torch.compiler.reset()
    eager = call(model)
if what != "serve":
    recorded_session.publish(session, bundle, more, whole=what == "record")
differences = [float((one - other).abs().max()) for one, other in zip(outputs, eager, strict=True)]
print(
    json.dumps(
        {
            "traces": seen.torch.traces,
            "imported": imported,
            "same_config": same_config,
            "kernel_names": names,
            "recorded_sources": recorded_sources(),
            "compilations": seen.compilations,
            "after_reset": [again, len(before), len(of_both)] if what == "serve" else None,
            "not_recorded": list(process().all_kinds.not_recorded()),
            "state": report.state if report else "",
            "reasons": list(report.reasons) if report else [],
            "revisions": len(report.revisions) if report else 0,
            "distrusted": list(report.distrusted) if report else [],
            "compared": comparisons,
            "explained": list(process().all_kinds.explain(())),
            "difference": max(differences, default=0.0),
        }
    ),
    flush=True,
)
if os.environ.get("UNTIL_KILLED"):
    time.sleep(3600)
short_life.end()
