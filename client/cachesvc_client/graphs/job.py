"""Says what of a job decides how Inductor compiles a graph that calls other ranks."""

from __future__ import annotations

from typing import Any

from .keys import graph_nodes


def has_process_group() -> bool:
    """Return whether this process can call other ranks."""
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def communicates(graph: Any, inputs: Any) -> bool:
    """Return whether a graph calls other ranks, or gets tensors that are distributed over them."""
    if any(hasattr(one, "_local_tensor") for one in inputs):
        return True
    targets = (node.target for node in graph_nodes(graph) if node.op == "call_function")
    return any(
        str(target).startswith(_COLLECTIVES)
        or str(getattr(target, "__module__", "")).startswith("torch.distributed")
        for target in targets
    )


_COLLECTIVES = ("_c10d_functional", "c10d")
"""Beginnings of the names of operators that call other ranks."""


def of_a_job(attributes: frozenset[str]) -> dict[str, Any]:
    """Return what decides how Inductor compiles a graph that calls other ranks."""
    import torch
    from torch._inductor import config

    parts: dict[str, Any] = {}
    if "inductor_config_comms" not in attributes and (settings := _settings_of_collectives()):
        parts["inductor_config_comms"] = settings
    if "compile_on_one_rank" not in attributes:
        any_rank = getattr(getattr(torch.distributed, "config", None), "compile_on_one_rank", False)
        parts |= {"compile_on_one_rank": True} if any_rank else {}
    overlap = getattr(config, "aten_distributed_optimizations", None)
    if (
        getattr(config, "bucket_all_gathers_fx", "none") not in ("none", None)
        or getattr(overlap, "enable_overlap_scheduling", False)
        # A pass of the program's own may call PyTorch's, which have the rank in the code that they make.
        or config.post_grad_custom_pre_pass
        or config.post_grad_custom_post_pass
    ):
        parts["rank"] = torch.distributed.get_rank()
    return parts


def _settings_of_collectives() -> str:
    """Return the settings by which Inductor orders collectives; an empty text for a torch without them."""
    try:
        from torch._inductor import config_comms
    except ImportError:  # 2.8
        return ""
    return repr(sorted(config_comms.get_config_copy().items()))
