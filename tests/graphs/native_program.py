"""Print as JSON the keys that PyTorch looks for in graphs of operators in C++: ``native_program.py LIBRARY``.

Nothing is compiled: the program stops Inductor after the look-up."""

import contextlib
import json
import sys

from cachesvc_client.hooks import imports
from cachesvc_client.process.process import process

if sys.argv[2] == "armed":
    process().arm()

import torch
import torch._functorch._aot_autograd.autograd_cache as autograd_cache
import torch._inductor.compile_fx as compile_fx

torch.ops.load_library(sys.argv[1])
keys: dict[str, str] = {}
now = ""


class Stopped(Exception):
    pass


def noted(call):
    answer = call()
    keys.setdefault(now, answer[0])
    return answer


def stop(_):
    raise Stopped


imports.hook(autograd_cache, "autograd_cache_key", noted)
imports.hook(compile_fx, "fx_codegen_and_compile", stop, reaches=(Stopped,))
FUNCTIONS = {
    "a composite": lambda x: torch.ops.cachesvc_test.composite(x) * 1.5,
    "a backward": lambda x: torch.ops.cachesvc_test.graded(x) * 1.5,
    "run alone": lambda x: torch.ops.cachesvc_test.plain(x) * 1.5,
    "over torch's own": lambda x: torch.nn.functional.hardswish(x) * 1.5,
}
for name, function in FUNCTIONS.items():
    now = name
    with contextlib.suppress(Exception):
        torch.compile(function)(torch.ones(3))
print(json.dumps(keys))
