"""Compares the options of a compile, and the settings of Dynamo, as far as they decide what a frame is.

Most options are in what Inductor generates. Some decide alone what Dynamo does where it cannot go on, or with
a size that changes: a frame that is one graph, or one of fixed sizes, is the same with and without them. Read
in torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import FrameCall
from ..split import describe_splitter
from ..stored import Backend, FrameOutput, RecordedFrame
from .ambient import changed_settings, setting_words, short
from .objects import text_of

_DYNAMO = "torch._dynamo.config."
_ERRORS = _DYNAMO + "suppress_errors"
"""Decides what becomes of a frame that cannot be compiled."""
_SCALARS = _DYNAMO + "capture_scalar_outputs"
"""Decides whether ``item()`` breaks the graph. ``fullgraph=True`` implies it."""
_SIZES = _DYNAMO + "automatic_dynamic_shapes"
"""Decides whether a size that changed becomes a variable; ``dynamic=False`` clears it."""


def describe_backend(backend: Any, call: FrameCall) -> Backend:
    """Return what compiles the graphs of a frame. ``backend``: Inductor's.

    Raises ``TypeError`` for an option whose value has no words, such as a function.
    """
    options, split = text_of(backend.config), describe_splitter(call.compiler)
    return Backend(options, backend.dynamic, call.one_graph, split)


def changed_backend(frame: RecordedFrame, here: Backend) -> str:
    """Return in words what differs from the options that a frame was recorded with, if it decides anything of
    that frame; else an empty text."""
    recorded, output = frame.backend, frame.output
    is_whole = _is_whole(output)
    if recorded.options != here.options:
        return "compiled with another mode or other options"
    if recorded.split != here.split:
        words = (one.split or "not there" for one in (here, recorded))
        return "DistributedDataParallel is {}, recorded {}".format(*words)
    if recorded.fullgraph != here.fullgraph and not (here.fullgraph and is_whole):
        return f"compiled with fullgraph={here.fullgraph}, recorded with {recorded.fullgraph}"
    fixed = is_whole and output.of_fixed_sizes and not recorded.dynamic and not here.dynamic
    if recorded.dynamic != here.dynamic and not fixed:
        return f"compiled with dynamic={here.dynamic}, recorded with {recorded.dynamic}"
    return ""


def changed_setting(frame: RecordedFrame, here: Mapping[str, str]) -> str:
    """Return in words the settings that differ and decide something of a frame; else an empty text.

    ``here``: `ambient.settings` of this process."""
    recorded = frame.facts.settings
    names = changed_settings(recorded, here)
    return setting_words([name for name in names if not _decides_nothing(name, frame.output, recorded)])


def _decides_nothing(name: str, output: FrameOutput, recorded: Mapping[str, str]) -> bool:
    """Return whether a setting of Dynamo's cannot change a frame that was traced to its end."""
    if not _is_whole(output):
        return False
    if name == _SCALARS:  # without it ``item()`` had broken the graph, so the frame has none
        return recorded.get(name) == short(False)
    return name == _ERRORS or (name == _SIZES and output.of_fixed_sizes)


def _is_whole(output: FrameOutput) -> bool:
    return output.without_breaks and len(output.graphs) == 1
