"""Stand in for what PyTorch works out on the device while it traces and lowers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .decisions import Decisions, GpuNeeded, Replacement

_EXACT = frozenset(
    "full ones zeros empty scalar_tensor full_like clone detach alias lift_fresh_copy _local_scalar_dense "
    "add sub mul div neg eq ne lt le gt ge where isfinite _to_copy convert_element_type device_put "
    "logical_not logical_and logical_or bitwise_not bitwise_and bitwise_or "
    "view reshape flatten as_strided select slice squeeze unsqueeze expand broadcast_in_dim permute t".split()
)
"""Operations that have the same result on a CPU as on a GPU, to the bit (IEEE 754)."""


def replacements(decisions: Decisions) -> Iterator[Replacement]:
    """Yield what is put in the place of PyTorch's functions, and put PyTorch's attention under a check."""
    import torch
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    for name in ("__init__", "_deduce_value"):
        method = getattr(UniformValueConstantFolder, name)
        path = f"UniformValueConstantFolder.{name}"
        yield "torch._inductor.fx_passes.joint_graph", path, _on_cpu(method, decisions.refuse)

    def pad_nothing(_key: str) -> bool:
        """Run in the place of the look into earlier timings, which comes before PyTorch times a product."""
        decisions.untimed.add("whether to pad a matrix product")
        return False

    def attend(*args: Any, **kwargs: Any) -> Any:
        if problem := _attention_problem():
            raise decisions.refuse(problem)
        return torch.ops.aten.scaled_dot_product_attention.default.decompose(*args, **kwargs)

    yield "torch._inductor.fx_passes.pad_mm", "get_cached_should_pad", pad_nothing
    attention = torch.ops.aten.scaled_dot_product_attention.default
    attention.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(attend)


def _attention_problem() -> str:
    """Return why PyTorch's attention cannot be traced; empty if it can be. It asks the driver which of its
    kernels is usable, unless only the plain one is allowed."""
    import torch

    names = ("flash", "mem_efficient", "cudnn")
    if not any(getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in names):
        return ""
    return (
        "scaled_dot_product_attention asks the GPU which of its kernels it can use (call it under "
        "sdpa_kernel(SDPBackend.MATH), or use attention in plain operations: transformers has "
        'attn_implementation="eager")'
    )


def _on_cpu(method: Callable[..., Any], refuse: Callable[[str], GpuNeeded]) -> Callable[..., Any]:
    """Return the method, which works out constants of one element, with tensors on the CPU.

    It raises what ``refuse`` returns for an operation whose last bit may be another there.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    def cpu(value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    class OnCpu(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name not in _EXACT:
                raise refuse(f"a constant of {name} may differ from the GPU's in its last bit")
            return func(*tree_map(cpu, args), **tree_map(cpu, kwargs or {}))

    def run(*args: Any, **kwargs: Any) -> Any:
        with OnCpu():
            return method(*args, **kwargs)

    return run
