"""Takes out of PyTorch's keys what only one process has: the name that Dynamo gives a compiled graph, and
Python's hash of a device mesh. A graph with one of them has another key in each process, and no cache of
PyTorch's ever has it.

``torch.compile(f).aot_compile(…)`` marks its graph with the name of the compiled function, which has a
random number (``__compiled_fn_1_<uuid>``), and from 2.13 on AOTAutograd's key holds that name
(``precompile_backend_id``, torch 2.13 to 2.15, ``AOTAutogradCachePickler._reduce_aot_config``). vLLM compiles
that way. The name decides nothing: PyTorch does not read it from a cached entry ("this new run that cache hit
has a *new* backend id", ``AOTAutogradCache._lookup``).

A graph of distributed tensors has their mesh as an input, and AOTAutograd's key has the pickled mesh (2.13
and 2.15). One of its attributes is ``_hash``, which Python computes of the others and which is another number
in each process. Who gets a mesh without it computes it again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..hooks import imports
from ..hooks.table import Hook
from .keys import AUTOGRAD_KEY

MESH = Hook(
    "torch.distributed.device_mesh",
    "DeviceMesh.__getstate__",
    "leaves Python's hash of a mesh, which is another one in each process, out of keys and pickles",
    "a graph of distributed tensors compiles in each process",
    "2.11",
    role="restore",
)
HOOKS = (MESH,)


def install_hooks() -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again."""
    AUTOGRAD_KEY.install(forget_backend_name)
    MESH.install(forget_hash)


def forget_backend_name(call: imports.Call) -> None:
    """Run in the place of the constructor of the key's details: leave the name out of them.

    The configuration that PyTorch passed keeps the name, since PyTorch uses it after the look-up.
    """
    call()
    details = call.args[0]
    config: Any = getattr(details, "aot_config", None)
    if getattr(config, "precompile_backend_id", None) is not None:
        details.aot_config = dataclasses.replace(config, precompile_backend_id=None)


def forget_hash(call: imports.Call) -> dict[str, Any]:
    """Run in the place of the function that pickles a mesh: leave its hash out."""
    state: dict[str, Any] = call()
    return {name: value for name, value in state.items() if name != "_hash"}
