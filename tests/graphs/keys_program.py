"""Print as JSON the keys that PyTorch looks for under several settings, by function: ``keys_program.py
plain|armed``.

*armed*: with the hooks of cachesvc. Nothing is compiled: the program stops Inductor after the lookup."""

import contextlib
import json
import sys

if sys.argv[1] == "armed":
    from cachesvc_client.process.process import process

    process().arm()

import torch
import torch._functorch._aot_autograd.autograd_cache as autograd_cache
import torch._inductor.codecache as codecache
import torch._inductor.compile_fx as compile_fx

from cachesvc_client.hooks import imports

keys: dict[str, list[str]] = {}


class Stopped(Exception):
    pass


def stop_after_lookup(_):
    raise Stopped


def noting(position):
    def looked_up(call):
        answer = call()
        keys[program.__name__].append(call.args[0] if position is None else answer[position])
        return answer

    return looked_up


# As hooks of cachesvc, which would take functions of this program in torch for replacements.
imports.hook(codecache, "FxGraphCache.load_with_key", noting(None))
imports.hook(autograd_cache, "autograd_cache_key", noting(0))
imports.hook(compile_fx, "fx_codegen_and_compile", stop_after_lookup, reaches=(Stopped,))


def function(x):
    return (x @ x.t()).relu() + torch.linspace(0, 1, 8)


def inside(x):
    with torch.autocast("cpu"):
        return x @ x


SETTINGS = {
    "none": contextlib.nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "grad": torch.enable_grad,
}
for program in (function, inside):
    keys[program.__name__] = []
    for setting in SETTINGS.values():
        torch._dynamo.reset()
        with torch.no_grad(), setting(), contextlib.suppress(Exception):
            torch.compile(program)(torch.ones(8, 8))
torch.set_default_dtype(torch.float64)
torch.set_num_threads(3)
torch._dynamo.reset()
program = function
with torch.no_grad(), contextlib.suppress(Exception):
    torch.compile(program)(torch.ones(8, 8))
print(json.dumps(keys))
