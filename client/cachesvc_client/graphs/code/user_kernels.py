"""Describes a user's own Triton kernels in a graph by the facts that PyTorch's keys hold of them.

In a graph a kernel is an index into a table of the process (``kernel_side_table``). The FX and AOTAutograd
keys have the kernel's source with everything that it calls and the constants in it, its constant arguments
and, under ``triton.autotune``, its configurations (``FxGraphHashDetails.user_defined_triton_source``). This
module takes the source from the same function of PyTorch's, so a difference here is a difference in the key.
Read in torch 2.11 and 2.13. A kernel needs half a millisecond; a graph without kernels takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

LAUNCHES = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
"""Names of the operators that launch a kernel in a graph."""
OF_PROCESS = ("kernel_idx", "constant_args_idx")
"""Arguments of these operators that are places in tables of the process."""


def describe_kernels(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield ``name source 91c0ed2f4a11 (BLOCK=1024, grid=4x1x1)`` for each launch in a graph.

    Never raises: where PyTorch cannot give the source of a kernel, the source is ``unknown``.
    """
    sources: dict[int, str] = {}  # a model launches a layer's kernel once for each layer

    def source(kernel: Any) -> str:
        return sources.get(id(kernel)) or sources.setdefault(id(kernel), _source(kernel))

    for node in nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", None) in LAUNCHES:
            yield _launch(node.kwargs, source)


def launched_kernels(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the object of each Triton kernel of the application that a graph launches, without what tunes it;
    the node, where a torch keeps kernels in another way. Never raises."""
    for node in nodes:
        if node.op != "call_function" or getattr(node.target, "__name__", None) not in LAUNCHES:
            continue
        try:
            from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table

            yield innermost(table.get_kernel(node.kwargs["kernel_idx"]))
        except Exception:  # noqa: BLE001 - a torch that passes kernels in another way
            yield node


def innermost(kernel: Any) -> Any:
    """Return the kernel that ``triton.autotune`` and ``triton.heuristics`` wrap, in any order."""
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        kernel = kernel.fn
    return kernel


def describe_launch(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield the same text for a kernel that is launched without Inductor; nothing if it is not known.

    ``event``: the event of Triton's ``jit_cache_hook`` (3.6, 3.9). The kernel's key has the number of its
    first line too. Never raises.
    """
    try:
        kernel, arguments = event["fn"], str(event["repr"]).partition("[")[2]
        launch = f" [{arguments}" if " at 0x" not in arguments else ""
        yield f"{kernel.name} source {kernel.jit_function.cache_key[:12]}{launch}"
    except Exception:  # noqa: BLE001 - a Triton whose event differs
        return


def _launch(arguments: Any, source: Callable[[Any], str]) -> str:
    """Return the text of one launch. ``arguments``: those of the operator that launches the kernel."""
    try:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table

        kernel = table.get_kernel(arguments["kernel_idx"])
        constants = sorted(table.get_constant_args(arguments["constant_args_idx"]).items())
        words = [f"{name}={_text(value)}" for name, value in constants]
        words.append(f"grid={_grids(arguments['grid'])}")
    except Exception:  # noqa: BLE001 - a torch that passes kernels in another way
        return "unknown"
    return f"{source(kernel)} ({', '.join(words)})"


def _source(kernel: Any) -> str:
    """Return ``name source digest``; of a tuned kernel also the number and digest of its configurations."""
    configurations = getattr(kernel, "configs", None) or ()
    function = innermost(kernel)
    name = str(getattr(function, "__name__", "kernel"))
    from .values import short  # imported late: `attach` loads it only for a process with kernels

    try:
        from torch._inductor.codegen.wrapper import (
            user_defined_triton_kernel_transitive_closure_source_code as closure,
        )

        source = short(closure(function))
        tuned = sorted(sorted(map(str, one.all_kwargs().items())) for one in configurations)
    except Exception:  # noqa: BLE001 - a kernel of another form: PyTorch will say what is wrong with it
        return f"{name} source unknown"
    return f"{name} source {source}" + (f", {len(tuned)} configurations {short(str(tuned))}" if tuned else "")


def _grids(grids: Any) -> str:
    """Return the grids of the configurations, such as ``4x1x1``, each once; a dynamic dimension is ``*``."""
    texts = ["x".join(str(size) if isinstance(size, int) else "*" for size in grid) for grid in grids]
    return " ".join(dict.fromkeys(texts))


def _text(value: Any) -> str:
    """Return a value as a text without an address, so that it is the same in every process."""
    text = str(value)
    return text if " at 0x" not in text else type(value).__qualname__
