"""Declares the names of PyTorch that this kind wraps."""

from __future__ import annotations

from ...hooks.table import Hook

FRAME = Hook(
    "torch._dynamo.convert_frame",
    "_compile",
    "gives recorded frames to Dynamo, which then does not trace",
    "every start traces",
    role="speed",
)
_NO_FRAMES = "an entry holds no frames, so its services trace"
SERIALIZE = Hook(
    "torch._dynamo.guards",
    "CheckFunctionManager.serialize_guards",
    "records the guards of a frame (`warm` only)",
    _NO_FRAMES,
    "2.9",
    role="speed",
)
INSTALL = Hook(
    "torch._dynamo.output_graph",
    "OutputGraph.install_global_by_id",
    "records which modules the bytecode of a frame needs (`warm` only)",
    _NO_FRAMES,
    role="speed",
)
GRAPH = Hook(
    "torch._inductor.compile_fx",
    "compile_fx",
    "records what a graph calls (`warm` only)",
    _NO_FRAMES,
    role="speed",
)
HOOKS = (FRAME, SERIALIZE, INSTALL, GRAPH)
