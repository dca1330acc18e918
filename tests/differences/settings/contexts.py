"""Contexts of PyTorch in which a service may compile, by name."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .generate import called, patched

Change = Callable[[], contextlib.AbstractContextManager[Any]]


class SwapsFunctions(torch.overrides.TorchFunctionMode):
    """Computes a cosine where a sine is asked for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.sin, torch.Tensor.sin):
            func = torch.cos
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def packed(dtype: torch.dtype) -> Iterator[None]:
    """Keep what a backward needs in another dtype."""
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.to(dtype), lambda x: x.float()):
        yield


@contextlib.contextmanager
def annotated(**values: Any) -> Iterator[None]:
    with torch.fx.traceback.annotate(values):
        yield


def _attention() -> dict[str, Change]:
    backends = torch.nn.attention.SDPBackend.__members__
    return {
        f"sdpa_kernel({name})": called(torch.nn.attention.sdpa_kernel, value)
        for name, value in backends.items()
        if name not in ("ERROR", "OVERRIDEABLE")
    }


CONTEXTS: dict[str, Change] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "inference_mode(False)": lambda: torch.inference_mode(False),
    "autocast(cpu, bfloat16)": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast(cpu, float16)": lambda: torch.autocast("cpu", torch.float16),
    "autocast(cpu, enabled=False)": lambda: torch.autocast("cpu", enabled=False),
    "autocast(cpu, cache_enabled=False)": lambda: torch.autocast("cpu", cache_enabled=False),
    "autocast(cuda)": lambda: torch.autocast("cuda", enabled=True),
    "use_deterministic_algorithms": called(torch.use_deterministic_algorithms, True),
    "deterministic, warn only": called(torch.use_deterministic_algorithms, True, warn_only=True),
    "fill_uninitialized_memory": patched(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "fork_rng": torch.random.fork_rng,
    "manual_seed": called(torch.manual_seed, 12345),
    "saved tensors in bfloat16": lambda: packed(torch.bfloat16),
    "saved tensors on the CPU": lambda: torch.autograd.graph.save_on_cpu(),
    "saved tensors disabled": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "one backward thread": lambda: torch.autograd.set_multithreading_enabled(False),
    "several backward threads": called(torch.autograd.grad_mode.set_multithreading_enabled, True),
    "view replay": lambda: torch.autograd._force_original_view_tracking(True),
    "function mode": SwapsFunctions,
    "function modes disabled": torch._C.DisableTorchFunction,
    "device context cpu": lambda: torch.device("cpu"),
    "device context meta": lambda: torch.device("meta"),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "record_function": lambda: torch.profiler.record_function("x"),
    "annotate": lambda: annotated(stage=1),
    "warnings ignored": called(warnings.simplefilter, "ignore"),
    "checkpoint early stop": lambda: torch.utils.checkpoint.set_checkpoint_early_stop(False),
    "debug checkpoint": lambda: torch.utils.checkpoint.set_checkpoint_debug_enabled(True),
    "stance eager_on_recompile": lambda: torch.compiler.set_stance("eager_on_recompile"),
    "stance skip_guard_eval_unsafe": lambda: torch.compiler.set_stance(skip_guard_eval_unsafe=True),
    "overwrite module params": called(torch.__future__.set_overwrite_module_params_on_conversion, True),
    "swap module params": called(torch.__future__.set_swap_module_params_on_conversion, True),
    "parametrize.cached": lambda: torch.nn.utils.parametrize.cached(),
    "mkldnn.verbose": lambda: torch.backends.mkldnn.verbose(0),
    "mkldnn.flags(False)": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cudnn.flags(False)": lambda: torch.backends.cudnn.flags(enabled=False),
    "cudnn.flags(benchmark)": lambda: torch.backends.cudnn.flags(benchmark=True),
    "reset compiler": called(torch.compiler.reset),
    **_attention(),
}
