"""A user's own Triton kernels in a graph: what PyTorch's keys hold of them, which the operations do not show.

In a graph a kernel is an index into a table of the process (``kernel_side_table``); the FX and AOTAutograd
keys hold its source with all that it calls and the constants in it, its constant arguments and, under
``triton.autotune``, its configurations (``FxGraphHashDetails.user_defined_triton_source``). Read in torch
2.11 and 2.13; the sources are taken from the same function of PyTorch's, so that what differs here differs
there. Half a millisecond for a kernel, and nothing where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_CALLS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


def described(nodes: Iterable[Any]) -> Iterator[str]:
    """``name source 91c0ed2f4a11 (BLOCK=1024, grid=4x1x1)`` of each launch. Never raises: of a kernel whose
    source PyTorch does not tell, the source is ``unknown``."""
    told: dict[int, str] = {}  # a layer's kernel is launched once for each layer

    def source(kernel: Any) -> str:
        return told.get(id(kernel)) or told.setdefault(id(kernel), _source(kernel))

    for node in nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", None) in _CALLS:
            yield _launch(node.kwargs, source)


def launched(event: Mapping[str, Any]) -> Iterator[str]:
    """The same of a kernel that is launched without Inductor: ``event`` is that of Triton's
    ``jit_cache_hook`` (3.6, 3.9). Its key holds the first line's number too. Never raises."""
    try:
        kernel, how = event["fn"], str(event["repr"]).partition("[")[2]
        launch = f" [{how}" if " at 0x" not in how else ""
        yield f"{kernel.name} source {kernel.jit_function.cache_key[:12]}{launch}"
    except Exception:  # noqa: BLE001 - a Triton that tells it otherwise
        return


def _launch(given: Any, source: Callable[[Any], str]) -> str:
    try:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table

        kernel = table.get_kernel(given["kernel_idx"])
        constants = sorted(table.get_constant_args(given["constant_args_idx"]).items())
        said = [*(f"{name}={_text(value)}" for name, value in constants), f"grid={_grids(given['grid'])}"]
    except Exception:  # noqa: BLE001 - a torch that passes kernels otherwise
        return "unknown"
    return f"{source(kernel)} ({', '.join(said)})"


def _source(kernel: Any) -> str:
    """``name source digest``; with the number and the digest of its configurations, if it is tuned."""
    configurations = getattr(kernel, "configs", None) or ()
    function = getattr(kernel, "fn", kernel) if type(kernel).__name__ == "Autotuner" else kernel
    name = str(getattr(function, "__name__", "kernel"))
    from .code_digest import short  # as the hooks do: `attach` loads it for nobody who has no kernels

    try:
        from torch._inductor.codegen.wrapper import (
            user_defined_triton_kernel_transitive_closure_source_code as closure,
        )

        source = short(closure(function))
        tuned = sorted(sorted(map(str, one.all_kwargs().items())) for one in configurations)
    except Exception:  # noqa: BLE001 - a kernel that is made otherwise: PyTorch will say what is wrong with it
        return f"{name} source unknown"
    return f"{name} source {source}" + (f", {len(tuned)} configurations {short(str(tuned))}" if tuned else "")


def _grids(grids: Any) -> str:
    """``4x1x1``, each once of those that the configurations have; a dimension that is dynamic is ``*``."""
    told = ["x".join(str(size) if isinstance(size, int) else "*" for size in grid) for grid in grids]
    return " ".join(dict.fromkeys(told))


def _text(value: Any) -> str:
    """Without an address, so that it is the same in every process."""
    text = str(value)
    return text if " at 0x" not in text else type(value).__qualname__
