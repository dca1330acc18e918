"""Tells which rank of an engine this process is, before the process restores anything.

vLLM gives each worker its rank when it makes the worker: after the process has attached, and before it loads
the model. Read in vLLM 0.26.0 and 0.32.0. Imported by processes of vLLM alone.
"""

from __future__ import annotations

from typing import Any

from ...hooks import imports
from ..kind import ProcessCallbacks


def note_rank(callbacks: ProcessCallbacks, call: imports.Call) -> Any:
    """Run in the place of ``WorkerWrapperBase.init_worker(self, all_kwargs)``."""
    arguments = call.argument("all_kwargs")[call.argument("self").rpc_rank]
    parallel = arguments["vllm_config"].parallel_config
    if shares_one_node(parallel):
        callbacks.joined(arguments["rank"], parallel.world_size, [str(arguments["distributed_init_method"])])
    return call()


def shares_one_node(parallel: Any) -> bool:
    """Return whether an engine has several ranks, and one process of this node starts all of them.

    ``parallel``: a ``ParallelConfig`` of vLLM. Ray may start them on other nodes, and data parallel engines
    are several, so these are no such ranks.
    """
    return bool(
        parallel.world_size > 1
        and parallel.distributed_executor_backend == "mp"
        and parallel.local_world_size == parallel.world_size
        and parallel.data_parallel_size == 1
    )
