"""Stand in for what loads, times and runs kernels: they are compiled, and not run.

Of several candidates PyTorch would time, the first is taken, as PyTorch itself does in deterministic mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .cubin import kernel_use
from .decisions import Decisions, Replacement, always

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"


def replacements(decisions: Decisions) -> Iterator[Replacement]:
    """Yield what is put in the place of PyTorch's functions."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    precompile: Callable[[Any], None] = CachingAutotuner._precompile_worker

    def compile_first(autotuner: Any) -> None:
        _take_first(decisions, autotuner)
        precompile(autotuner)

    def describe(autotuner: Any) -> None:
        for result in autotuner.compile_results:
            _describe_kernel(decisions, autotuner, result)

    def run(autotuner: Any, *_args: Any, **_kwargs: Any) -> None:
        _settle(decisions, autotuner)

    def refuse_timing(*_args: Any, **_kwargs: Any) -> None:
        raise decisions.refuse("tuning times kernels (max-autotune and its like)")

    yield _HEURISTICS, "CachingAutotuner._precompile_worker", compile_first
    yield _HEURISTICS, "CachingAutotuner._make_launchers", describe
    yield _HEURISTICS, "CachingAutotuner.run", run
    yield "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", always(None)
    yield "torch._inductor.compile_fx", "cudagraphify", _no_graph
    yield "torch._inductor.select_algorithm", "AlgorithmSelectorCache.benchmark", refuse_timing
    yield "torch._inductor.runtime.benchmarking", "InductorBenchmarker.benchmark_gpu", refuse_timing


def _take_first(decisions: Decisions, autotuner: Any) -> None:
    """Leave the first of the candidates that are not compiled yet."""
    if autotuner.compile_results or not autotuner.configs:
        return
    if autotuner.inductor_meta.get("coordinate_descent_tuning"):
        raise decisions.refuse("coordinate descent times each step of a kernel")
    if len(autotuner.configs) > 1:
        decisions.untimed.add(_name(autotuner))
        autotuner.configs = autotuner.configs[:1]


def _describe_kernel(decisions: Decisions, autotuner: Any, result: Any) -> None:
    """Say of a kernel what the driver would say once it is loaded: PyTorch decides by it whether a reduction
    gets another candidate."""
    kernel, device = result.kernel, decisions.device
    if not hasattr(kernel, "cubin_path"):
        raise decisions.refuse(
            f"the kernel {_name(autotuner)} needs a library of Triton's to be launched (a kernel of the "
            "program's own, or one with a long name)"
        )
    if kernel.cubin_path is None:
        result.reload_cubin_path()
    use = kernel_use(Path(kernel.cubin_path), kernel.name)
    kernel.n_regs, kernel.n_spills = use.registers, use.spills
    if kernel.shared > device.properties["shared_memory_per_block_optin"]:
        raise decisions.refuse(
            f"the first candidate of {_name(autotuner)} needs more shared memory than it has"
        )


def _settle(decisions: Decisions, autotuner: Any) -> None:
    """Run in the place of a kernel: one that got a second candidate keeps the first.

    A service would compile the second one and time both. A recorded winner keeps it from that.
    """
    if len(autotuner.compile_results) < 2:
        return
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    first = autotuner.compile_results[0]
    decisions.untimed.add(_name(autotuner))
    autotuner.compile_results = [first]
    meta = {**autotuner.inductor_meta, "autotune_remote_cache": False}
    cache = AutotuneCache.create(meta, autotuner.filename, "") if autotuner.filename else None
    if cache is None:
        raise decisions.refuse(f"the choice for {_name(autotuner)} cannot be recorded")
    cache.save(first.config, 0)


def _name(autotuner: Any) -> str:
    return str(autotuner.inductor_meta.get("kernel_name", "unknown"))[:150]


def _no_graph(model: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Stand in for the recording of a CUDA graph: the process that runs it records it."""
    return model
