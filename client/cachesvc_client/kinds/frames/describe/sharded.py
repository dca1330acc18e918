"""Describes how a module is sharded by ``fully_shard`` (FSDP2).

Its hooks gather the parameters before each call, and run as Python. So a trace reads plain parameters, and
nothing of the mesh; all that decides what the hooks do is compared all the same. Read in torch 2.11 to 2.15.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from .groups import describe_of_job

_MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"
_POLICIES = ("mp_policy", "offload_policy")
_OF_TORCH = "torch.distributed.fsdp"


def describe_sharding(module: Any) -> str:
    """Return how a module is sharded; an empty text for one that is not. Raises ``TypeError`` where this
    torch does not tell."""
    kind = getattr(sys.modules.get(_MODULE), "FSDPModule", None)
    if kind is None or not isinstance(module, kind):
        return ""
    try:
        return f" {'; '.join(_parts(module._get_fsdp_state()))}"
    except AttributeError as error:
        raise TypeError(f"this torch does not tell how a module is sharded: {error}") from None


def _parts(state: Any) -> Iterator[str]:
    one = getattr(state, "_fsdp_param_group", None)  # up to torch 2.11
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [one] if one else []
    yield f"sharded in {len(groups)}"
    for group in groups:
        for name in _POLICIES:
            policy = getattr(group, name)
            if not type(policy).__module__.startswith(_OF_TORCH):
                raise TypeError(f"a policy of {type(policy).__qualname__} has no description")
            own = vars(policy) if hasattr(policy, "__dict__") else {}
            yield f"{type(policy).__name__} {[f'{key}={value}' for key, value in own.items()]}"
        for name in ("mesh_info", "post_forward_mesh_info"):
            yield f"{name} {_mesh(getattr(group, name))}"


def _mesh(info: Any) -> str:
    if info is None:
        return "none"
    mesh = describe_of_job(info.mesh)
    return f"{type(info).__name__} {mesh} {info.shard_mesh_dim} {info.replicate_mesh_dim}"
