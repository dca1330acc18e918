"""Import PyTorch's CUDA graphs without Inductor's compiler, and compare what they got in its place.

Prints as JSON whether the compiler was imported, and which names differ from the compiler's."""

import json
import sys

import torch

from cachesvc_client.kinds.frames.deferred import code_cache
from cachesvc_client.kinds.frames.from_source import Source, import_with

COMPILER, TREES = "torch._inductor.compile_fx", "torch._inductor.cudagraph_trees"


def described(function):
    code = function.__code__
    return (
        *(code.co_filename, code.co_firstlineno, code.co_varnames, code.co_names, code.co_freevars),
        *(function.__defaults__, function.__kwdefaults__, function.__module__),
    )


def scope(function, owner):
    """Return the globals of a function that are no functions of its own module."""
    names = {name for name in function.__code__.co_names if name in vars(owner)}
    return {name: function.__globals__[name] for name in names if f"\ndef {name}(" not in text}


code_cache()
import torch._inductor.output_code  # noqa: E402

source = Source(COMPILER)
text = source._text
source.cudagraphify  # noqa: B018
import_with(TREES, {COMPILER: source})
imported = COMPILER in sys.modules
trees = sys.modules[TREES]

import torch._inductor.compile_fx as compiler  # noqa: E402

names = [name for name in vars(source) if not name.startswith("_")]
differ = []
for name in names:
    here, there = getattr(source, name), getattr(compiler, name)
    same = here is there or (
        described(here) == described(there) and scope(here, compiler) == scope(there, compiler)
    )
    differ += [] if same else [name]
answer = {"imported": imported, "names": names, "differ": differ}
answer["in its place"] = torch._inductor.cudagraph_trees is trees
answer["late"] = source.cudagraphify.__globals__["cudagraphify_impl"].__qualname__
print(json.dumps(answer))
