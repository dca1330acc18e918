"""Says of a trace that ended without a result what a start has to know in order to skip the function too.

Dynamo does not compile a function where it cannot go on after a graph break, such as one in a loop. It runs
the function as Python then, and traces what that calls: so does a start, and the numbers are right whatever
the arguments are. Arguments of another form may be traced to the end, into fewer graphs: their form is
compared. Read in torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..arguments import FrameCall
from ..stored import Skip
from .digests import digest
from .objects import describe
from .sharded import describe_sharding

_SKIPPED = "Unsupported"
"""The name of the error after which Dynamo skips a function. All others end a program, or are errors of
Dynamo's own."""


def skip_of(error: Exception, call: FrameCall) -> Skip | None:
    """Return how Dynamo goes on after the error of a trace; ``None`` where it raises that."""
    from torch._dynamo.types import ConvertFrameReturn

    if type(error).__name__ != _SKIPPED or raises_at_breaks(call):
        return None
    answer = ConvertFrameReturn()
    strategy = getattr(error, "frame_exec_strategy", None) or answer.frame_exec_strategy
    return Skip(strategy.cur_action.name, strategy.recursive_action.name, answer.apply_to_code)


def raises_at_breaks(call: FrameCall) -> bool:
    """Return whether the program asks for an error where a graph breaks."""
    from torch._dynamo import eval_frame

    asked = getattr(eval_frame, "_get_error_on_graph_break", lambda: False)
    return call.one_graph or bool(asked())


def form_of(call: FrameCall) -> str:
    """Return a digest of the form of the arguments of a function: what a trace of it may break at."""
    return digest(
        "\n".join(f"{name} {one}" for name in sorted(call.locals) for one in _form(call.locals[name]))
    )


def _form(value: Any) -> Iterator[str]:
    import torch

    if not isinstance(value, torch.nn.Module):
        yield _words(value)
        return
    for name, module in value.named_modules():
        hooks = ((attribute, one) for attribute, one in vars(module).items() if _is_of_hooks(attribute, one))
        texts = (f"{attribute} {[_words(hook) for hook in one.values()]}" for attribute, one in hooks)
        kind = f"{describe(type(module))}{describe_sharding(module)}"
        yield f"{name} {kind} {module.training} {' '.join(texts)}"


def _is_of_hooks(attribute: str, value: Any) -> bool:
    return "hooks" in attribute and isinstance(value, Mapping) and bool(value)


def _words(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"{describe(type(value))} {value.dtype} {value.device.type} {value.requires_grad}"
    try:
        return describe(value)
    except TypeError:
        return describe(type(value))
