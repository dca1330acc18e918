"""Describes the process groups of a job and its device meshes, in words that are equal in two jobs exactly if
code that was traced in one may run in the other.

A trace puts what it reads of a group into the code as constants: its name, under which the code looks the
group up when it runs, its size, and the place of this rank in it. Dynamo guards few of these:
``get_rank``, ``get_world_size``, and of a group that is an argument its type alone (torch 2.13). So a record
compares all groups that the process had when the trace began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ....graphs.job import has_process_group

_OF_THIS_PROCESS = ("_hash", "_pg_registry", "_rank_map")
"""Attributes of a mesh that say nothing more: Python's hash of the others, which is another one in each
process, the groups by their names, and the ranks as a tensor."""
_PLAIN = (type(None), bool, int, str)


def groups_of_job() -> dict[str, str]:
    """Return all process groups of this process: name -> backends and ranks in words, and under an empty name
    the rank and size of the job; an empty dict for a process without groups.

    Raises ``TypeError`` where this torch does not tell its groups.
    """
    if not has_process_group():
        return {}
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    try:
        configs = distributed_c10d._get_all_pg_configs()
        groups = {str(one["pg_name"]): _words(one) for one in configs}
    except (AttributeError, KeyError) as error:
        raise TypeError(f"this torch does not tell its process groups: {error}") from None
    return {"": f"rank {dist.get_rank()} of {dist.get_world_size()}", **groups}


def _words(config: Mapping[str, Any]) -> str:
    return f"{config['backend_config']}, ranks {[*config['ranks']]}, {config['pg_desc']}"


def changed_group(recorded: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return in words the first difference between two answers of `groups_of_job`; else an empty text."""
    for name in sorted({*recorded, *here}):
        before, now = recorded.get(name, "none"), here.get(name, "none")
        if before != now:
            what = f"process group {name!r}" if name else "the job"
            return f"{what} is {now}, and was {before}"
    return ""


def is_of_another_rank(recorded: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Return whether these were the groups of another rank of a job as large: ranks may share a folder."""
    before, now = recorded.get("", ""), here.get("", "")
    return before != now and before.partition(" of ")[2] == now.partition(" of ")[2]


def describe_of_job(value: Any) -> str:
    """Return what a process group, a device mesh or a placement of a distributed tensor is; an empty text for
    any other object."""
    value = getattr(value, "real_obj", value)
    if not has_process_group():
        return ""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import _get_pg_config
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    if isinstance(value, dist.ProcessGroup):
        config = _get_pg_config(value)
        return f"process group {config['pg_name']!r} of {_words(config)}"
    if isinstance(value, DeviceMesh):
        words = [value.device_type, value._flatten_rank_map, value.mesh_dim_names]
        digest = hashlib.sha256(_mesh_text(value).encode()).hexdigest()
        return f"mesh {words}, groups {getattr(value, '_dim_group_names', None)}, {digest}"
    if type(value).__name__ == "DTensorSpec" and type(value).__module__.startswith("torch.distributed."):
        placements = [describe_of_job(one) or f"of {type(one).__name__}" for one in value.placements]
        return f"distribution {describe_of_job(value.mesh)} {placements} {value.tensor_meta}"
    # A subclass, such as that of an embedding's partial results, may hold more than it prints.
    return f"placement {value!r}" if type(value) in (Shard, Replicate, Partial) else ""


def _mesh_text(value: Any) -> str:
    """Return a mesh, or what an attribute of one holds, as a text. An object that has no words of its own is
    another one in each process."""
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(value, DeviceMesh):
        value = {name: one for name, one in vars(value).items() if name not in _OF_THIS_PROCESS}
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_mesh_text(one)}' for name, one in sorted(value.items()))}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_mesh_text, value))}]"
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value).__name__} {value!r}"
