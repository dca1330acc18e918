"""Compile a small model with cachesvc attached. Print the outcome and the installed hooks as JSON.

Usage: ``service.py attach-first|torch-first [wait]``: the order of the attach and the import of torch.
``wait``: wait for the restore before the compile. The variable SERVICE_BUNDLE names a bundle to attach to."""

import json
import os
import sys
from types import FunctionType

import short_life

import cachesvc_client
from cachesvc_client.hooks import imports

order, waits = sys.argv[1], "wait" in sys.argv[2:]


def compilers():
    return {
        name: module for name, module in list(sys.modules.items()) if name.startswith(("torch", "triton"))
    }


def attributes():
    """Return the attributes of every module and class of the compilers, by module and name.

    The search asks for the ``type`` of each object, since some objects of torch initialise CUDA when an
    attribute is read."""
    values = {}
    for module_name, module in compilers().items():
        for name, value in list(getattr(module, "__dict__", {}).items()):
            values[module_name, name] = value
            if issubclass(type(value), type) and value.__module__ == module_name:
                values.update({(f"{module_name}.{name}", inner): vars(value)[inner] for inner in vars(value)})
    return values


def ours():
    """Return the names in the compilers that lead to code of the client."""
    mine = []
    for (where, name), value in attributes().items():
        function = value.__func__ if type(value) in (staticmethod, classmethod) else value
        if type(function) is FunctionType and "/cachesvc_client/" in function.__code__.co_filename:
            mine.append(f"{where}.{name}")
    callback = sys.modules.get("torch._dynamo.callback")
    if callback is not None:
        handler = callback.callback_handler
        mine += [f"callback {one}" for one in (*handler.start_callbacks, *handler.end_callbacks)]
    return sorted(mine)


def pending():
    return sorted({*imports._waiting, *imports._beginning})


def wait():
    try:
        cachesvc_client.wait(60)
    except Exception as error:  # noqa: BLE001 - the test judges it
        return type(error).__name__
    return ""


answer = {}
if order == "attach-first":
    session = cachesvc_client.attach("team/x", bundle=os.environ.get("SERVICE_BUNDLE"))
    answer["pending"] = pending()
    import torch
    import torch._dynamo.callback
    import torch._inductor.compile_fx
    import torch._inductor.runtime.triton_heuristics
else:
    import torch
    import torch._dynamo.callback
    import torch._inductor.compile_fx
    import torch._inductor.runtime.triton_heuristics

    before = attributes()
    session = cachesvc_client.attach("team/x", bundle=os.environ.get("SERVICE_BUNDLE"))
    wait()
    after = attributes()
    answer["changed"] = [".".join(key) for key in before if key in after and before[key] is not after[key]]

if waits:
    answer["raised by wait"] = wait()
answer["ours"] = ours()


from linear import Model  # noqa: E402 - it imports torch, which the attach shall see or not

torch.manual_seed(0)
model, x = Model(), torch.randn(3, 8)
with torch.no_grad():
    expected = model(x)
    try:
        output = torch.compile(model)(x)
        answer["right"] = torch.allclose(output, expected, atol=1e-5)
    except Exception as error:  # noqa: BLE001 - the test judges it; Dynamo puts its own around ours
        answer["raised by the compile"] = str(error)
answer["ours after it"] = ours()
answer["pending after it"] = pending()
wait()
answer["status"] = session.status
report = cachesvc_client.report()
answer |= {"state": report.state, "compilations": report.compilations, "reasons": list(report.reasons)}
print(json.dumps(answer))
short_life.end()
