"""Takes out of PyTorch's keys the name that Dynamo gives a compiled graph in one process.

``torch.compile(f).aot_compile(…)`` marks its graph with the name of the compiled function, which holds a
random number (``__compiled_fn_1_<uuid>``), and from 2.13 on AOTAutograd's key holds that name
(``precompile_backend_id``, torch 2.13 to 2.15, ``AOTAutogradCachePickler._reduce_aot_config``). So such a
graph has another key in each process, and no cache of PyTorch's ever has it. vLLM compiles that way.

The name decides nothing: PyTorch does not read it from a cached entry ("this new run that cache hit has a
*new* backend id", ``AOTAutogradCache._lookup``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..hooks import imports
from .keys import AUTOGRAD_KEY


def install_hooks() -> None:
    """Put the hook in place when the application imports the module. Safe to call again."""
    AUTOGRAD_KEY.install(forget_backend_name)


def forget_backend_name(call: imports.Call) -> None:
    """Run in the place of the constructor of the key's details: leave the name out of them.

    The configuration that PyTorch passed keeps the name, since PyTorch uses it after the look-up.
    """
    call()
    details = call.args[0]
    config: Any = getattr(details, "aot_config", None)
    if getattr(config, "precompile_backend_id", None) is not None:
        details.aot_config = dataclasses.replace(config, precompile_backend_id=None)
