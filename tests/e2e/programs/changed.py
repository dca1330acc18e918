"""Compiles under all hooks in a torch that is not what they were made for; tells as JSON what came of it.

``changed.py absent|raises-before|raises-after|parameters``: the hooked names are not there when the hooks are
put in; each hook raises, before or after it has run the original; each hooked function has one more
parameter, and its callers give it.
"""

import functools
import inspect
import json
import logging
import sys
from collections import Counter

import cachesvc_client
from cachesvc_client.hooks import imports
from cachesvc_client.session.process import process

how = sys.argv[1]
names, calls, failures, warnings = set(), Counter(), Counter(), []
real_wrap, real_guarded, real_callback = imports.wrap, imports._Guarded, imports.callback


class Log(logging.Handler):
    def emit(self, record):
        if "cachesvc stays out of it" in record.getMessage():
            failures[record.args[0]] += 1
        elif record.levelno >= logging.WARNING:
            warnings.append(record.getMessage())


logging.getLogger("cachesvc").setLevel(logging.DEBUG)
logging.getLogger("cachesvc").addHandler(Log())


def absent(module, path, around):
    """Hides the name while ours looks for it: torch itself goes on with it."""
    *parents, attribute = path.split(".")
    owner = functools.reduce(getattr, parents, module)
    kept = vars(owner)[attribute]
    delattr(owner, attribute)
    try:
        return real_wrap(module, path, around)
    finally:
        setattr(owner, attribute, kept)


def raising(module, path, around):
    """Puts in a hook that fails, in the place of the one that is asked for."""

    def body(call):
        calls[f"{module.__name__}.{path}"] += 1
        if how == "raises-after":
            call()
        raise RuntimeError("ours")

    return real_wrap(module, path, real_guarded(body, around.reaches))


def failing(_ours, *, reaches=()):
    """Makes a callback that fails."""

    def fails(*_, **__):
        calls["callback"] += 1
        raise RuntimeError("ours")

    return real_callback(fails, reaches=reaches)


def longer(name, original):
    """Adds a parameter that has to be given."""

    @functools.wraps(original)
    def function(*args, another, **kwargs):
        calls[name] += another
        return original(*args, **kwargs)

    signature = inspect.signature(original)
    parameters = [one for one in signature.parameters.values() if one.name != "another"]
    place = len(parameters) - bool(parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters.insert(place, inspect.Parameter("another", inspect.Parameter.KEYWORD_ONLY))
    function.__signature__ = signature.replace(parameters=parameters)
    return function


def giving(original):
    """Gives it, as torch's own callers would."""

    @functools.wraps(original)
    def caller(*args, **kwargs):
        return original(*args, another=1, **kwargs)

    return caller


def with_parameter(module, path, around):
    """Puts the hook between a function with one more parameter and callers that give it."""
    if not real_wrap(module, path, functools.partial(longer, f"{module.__name__}.{path}")):
        return False
    return real_wrap(module, path, around) and real_wrap(module, path, giving)


changed = {"absent": absent, "parameters": with_parameter}.get(how, raising)


def wrap(module, path, around):
    try:
        functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        return False  # it is absent in this torch
    names.add(f"{module.__name__}.{path}")
    return changed(module, path, around)


imports.wrap = wrap
if how.startswith("raises"):
    imports.callback = failing

session = cachesvc_client.attach("team/x")
import torch  # noqa: E402

session.wait(60)


@torch.library.custom_op("changed::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.sin(twice(self.linear(x))) + 1


torch.manual_seed(0)
model, x = Model(), torch.randn(3, 8)
with torch.no_grad():
    expected = model(x)
    right = [torch.allclose(torch.compile(model)(x), expected, atol=1e-5)]
    torch._dynamo.reset()  # the second time from PyTorch's own cache
    right.append(torch.allclose(torch.compile(model)(x), expected, atol=1e-5))
print(
    json.dumps(
        {
            "right": right,
            "names": sorted(names),
            "calls": calls,
            "failures": failures,
            "warnings": warnings,
            "kernels": len(process().kinds["inductor"].used_paths()),
            "missing": sorted(cachesvc_client.report().observed.missing),
        }
    )
)
