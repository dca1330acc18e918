"""Reads the arguments with which Dynamo asks for one frame to be compiled."""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple

from ...hooks import imports

_FIRST = (
    *("code", "globals", "locals", "builtins", "closure", "compiler_fn", "one_graph", "export"),
    *("export_constraints", "hooks"),
)
"""The first parameters of ``torch._dynamo.convert_frame._compile`` (torch 2.10 to 2.15)."""
NAMES = (*_FIRST, "cache_size", "compile_id", "package")
"""All of its parameters that are read here."""
_OWN_HOOKS = ("guard_export_fn", "guard_fail_fn", "guard_filter_fn", "frame_traced_fn")
"""Functions that a caller of ``torch.compile`` may have put around Dynamo's work."""


class FrameCall(NamedTuple):
    """The arguments of one call. ``has_room``: whether Dynamo would compile this function once more, by its
    limit of recompiles."""

    code: types.CodeType
    globals: dict[str, Any]
    locals: dict[str, Any]
    compiler: Any
    one_graph: bool
    compile_id: Any
    has_room: bool

    @property
    def name(self) -> str:
        """Return the function's name, with its file and line, for a reason."""
        return f"{self.code.co_name} ({self.code.co_filename.rpartition('/')[2]}:{self.code.co_firstlineno})"


def frame_call(call: imports.Call) -> FrameCall | None:
    """Return the arguments; ``None`` for a call that only a trace can answer: of an export, of a caller with
    functions of its own around the guards, of ranks that agree on sizes while they trace, or of a torch with
    other parameters."""
    from torch._dynamo import config
    from torch._dynamo.cache_size import exceeds_recompile_limit

    if getattr(config, "enable_compiler_collectives", False):
        return None  # a rank that does not trace would keep the others waiting
    names = tuple(inspect.signature(call.original).parameters)
    if names[: len(_FIRST)] != _FIRST:
        return None
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    if any(name not in given for name in NAMES):
        return None
    hooks = given["hooks"]
    own = any(getattr(hooks, name, None) is not None for name in _OWN_HOOKS)
    if given["export"] or own or given["package"] is not None:
        return None
    return FrameCall(
        given["code"],
        given["globals"],
        given["locals"],
        given["compiler_fn"],
        bool(given["one_graph"]),
        given["compile_id"],
        not exceeds_recompile_limit(given["cache_size"], given["compile_id"])[0],
    )
