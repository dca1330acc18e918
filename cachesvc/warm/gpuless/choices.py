"""Stand in for what PyTorch works out on the device while it traces and lowers."""

from __future__ import annotations

import contextlib
import importlib
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
_MARK = "_cachesvc_of_absent_device"
"""Attribute of tensors on the CPU that stand for tensors on the absent device."""


def replacements(decisions: Decisions) -> Iterator[Replacement]:
    """Yield what is put in the place of PyTorch's functions, and put PyTorch's attention under a check."""
    import torch
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    for name in ("__init__", "_deduce_value"):
        method = getattr(UniformValueConstantFolder, name)
        path = f"UniformValueConstantFolder.{name}"
        yield "torch._inductor.fx_passes.joint_graph", path, _on_cpu(method, refuse=decisions.refuse)

    module = "torch.fx.experimental.proxy_tensor"
    unset = importlib.import_module(module).unset_fake_temporarily

    @contextlib.contextmanager
    def work_out() -> Iterator[None]:
        """Run in the place of the step out of fake tensors in which a trace works out its constants."""
        with unset(), _cpu_mode(decisions.refuse):
            yield

    yield module, "unset_fake_temporarily", work_out

    def pad_nothing(_key: str) -> bool:
        """Run in the place of the look into earlier timings, which comes before PyTorch times a product."""
        decisions.untimed.add("whether to pad a matrix product")
        return False

    def attend(*args: Any, **kwargs: Any) -> Any:
        if problem := _attention_problem():
            raise decisions.refuse(problem)
        return attention._op_dk(composite, *args, **kwargs)

    yield "torch._inductor.fx_passes.pad_mm", "get_cached_should_pad", pad_nothing
    attention, composite = (
        torch.ops.aten.scaled_dot_product_attention.default,
        torch._C.DispatchKey.CompositeImplicitAutograd,
    )
    attention.py_impl(composite)(attend)


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


def _on_cpu(method: Callable[..., Any], *, refuse: Callable[[str], GpuNeeded]) -> Callable[..., Any]:
    """Return the method, which works out constants, with tensors on the CPU."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _cpu_mode(refuse):
            return method(*args, **kwargs)

    return run


def _cpu_mode(refuse: Callable[[str], GpuNeeded]) -> Any:
    """Return a mode in which tensors of the absent device are made on the CPU.

    What is computed from them raises what ``refuse`` returns, where its last bit may be another there.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    def cpu(value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    class OnCpu(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = (args, kwargs or {})
            of_device = any(cpu(item) is not item or hasattr(item, _MARK) for item in tree_leaves(given))
            name = func.overloadpacket.__name__
            if of_device and name not in _EXACT:
                raise refuse(f"a constant of {name} may differ from the GPU's in its last bit")
            args, kwargs = tree_map(cpu, given)
            answer = func(*args, **kwargs)
            for item in tree_leaves(answer) if of_device else ():
                if isinstance(item, torch.Tensor):
                    setattr(item, _MARK, True)
            return answer

    return OnCpu()
