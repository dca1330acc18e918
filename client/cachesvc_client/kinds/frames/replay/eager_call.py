"""Runs one call of a compiled function as Python, while another process compiles what it needs.

Dynamo asks for a compile before it runs a frame that it has no code for. The answer of this module skips the
frame and the frames inside it for this one call, and leaves nothing at the function: the next call asks
again. The object that ``torch.compile`` returned stays as it is.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ....hooks import imports
from ..describe.ambient import inductor_backend

_PARAMETERS = ("compiler_fn", "export", "compile_id")
"""The parameters of ``torch._dynamo.convert_frame._compile`` that are read here (torch 2.10 to 2.15)."""


def is_of_inductor(call: imports.Call) -> bool:
    """Return whether a frame is compiled for Inductor, and not for an export or another backend. Raises what
    a torch raises whose names have moved."""
    compiler, export, _ = _arguments(call)
    return not export and inductor_backend(compiler) is not None


def skip_once(call: imports.Call) -> Any:
    """Return Dynamo's answer with which it runs this frame and those inside it as Python, this time.

    Raises what a torch raises whose names have moved; nothing is changed then.
    """
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    # Recursive: a function inside would be compiled as a graph of its own, which nobody else compiles.
    strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    answer = ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)
    _take_back(_arguments(call)[2])
    _count_for_full_graph()
    _forget_trace()
    return answer


def _arguments(call: imports.Call) -> list[Any]:
    given = {**dict(zip(_names(call.original), call.args, strict=False)), **call.kwargs}
    return [given[name] for name in _PARAMETERS]


@functools.lru_cache(maxsize=4)
def _names(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _take_back(compile_id: Any) -> None:
    """Take back the number that Dynamo gave this compile. It compiles a function no more whose number has
    reached ``accumulated_recompile_limit`` (256), and with ``fullgraph=True`` raises."""
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER as NUMBERS

    if NUMBERS[compile_id.frame_id] == compile_id.frame_compile_id + 1:
        NUMBERS[compile_id.frame_id] -= 1


def _count_for_full_graph() -> None:
    """Count the frame as one that ran compiled: ``fullgraph=True`` raises where no frame did (torch 2.12)."""
    from torch._dynamo import eval_frame

    count = getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)
    if count is None:
        return
    before = count(-1)
    if before >= 0:
        count(before + 1)


def _forget_trace() -> None:
    """Take this call out of the list of traced frames that Dynamo logs at exit, which would grow with each
    call."""
    from torch._dynamo import convert_frame

    frames = getattr(getattr(convert_frame, "dynamo_tls", None), "traced_frame_infos", None)
    if isinstance(frames, list) and frames:
        frames.pop()
