"""Says which attention kernels PyTorch may choose in this process, and in which order."""

from __future__ import annotations

import functools
import logging
from typing import Any

_log = logging.getLogger("cachesvc")


def settle_attention_order() -> None:
    """Have PyTorch decide now in which order it tries its attention kernels on this GPU.

    From 2.10 on it puts cuDNN's first on some GPUs, when it chooses a kernel for the first time in a process:
    ``check_prefer_cudnn_attention`` in its ``sdp_utils.cpp``. So a process that called attention before would
    make other keys than one that did not, for a graph that Inductor may compile to attention. Does nothing
    where the process uses no GPU.
    """
    import torch

    if torch.cuda.is_initialized():
        _choose_attention()


@functools.cache
def _choose_attention() -> None:
    """Have PyTorch choose a kernel for tensors without elements, once. Where that fails, the order stays."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        with _disable_current_modes(), torch.no_grad():
            query = torch.empty(1, 1, 0, 64, dtype=torch.bfloat16, device="cuda")
            torch._fused_sdp_choice(query, query, query)
    except Exception:  # noqa: BLE001 - internals of torch, and its driver
        _log.debug("PyTorch chose no attention kernel", exc_info=True)


@functools.cache
def backend_getters() -> tuple[str, ...]:
    """Return the names of the functions that say which attention backends are allowed, and in which order."""
    import torch

    return tuple(name for name in sorted(dir(torch._C)) if name.startswith("_get_") and "sdp" in name)


def may_be_attention(node: Any) -> bool:
    """Return whether a node is an attention operator, or Inductor may make one of it and others."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "attention" in name or "softmax" in name or name.partition(".")[0] in ("exp", "exp_")
