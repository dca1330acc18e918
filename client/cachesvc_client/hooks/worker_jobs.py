"""Tells which of the jobs that PyTorch gives to its compile workers compiled a kernel.

A worker gets each kernel of a graph that the graph's own entry in the cache does not have ready to launch,
also where Triton's folder has the kernel. The worker then reads it, and nothing is compiled.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from . import imports

_STARTS_THE_POOL = "_get_ready"
"""Name of the job that only starts the workers."""


def submit(call: imports.Call, counts: Counter[str], name: str) -> Any:
    """Give a job to a worker, and count it under ``name`` when it has ended, unless it compiled nothing."""
    job = call.args[1] if len(call.args) > 1 else call.kwargs.get("job_fn")
    if getattr(job, "__name__", "") == _STARTS_THE_POOL:
        return call()
    began, future = time.time(), call()
    if isinstance(future, Future):
        future.add_done_callback(functools.partial(_count, counts, name, began))
    else:
        counts[name] += 1
    return future


def _count(counts: Counter[str], name: str, began: float, future: Future[Any]) -> None:
    if not future.cancelled() and not _was_there(future, began):
        counts[name] += 1


def _was_there(future: Future[Any], began: float) -> bool:
    """Return whether Triton's folder had all kernels of a job when it began.

    The answer of a job is read as in torch 2.8 to 2.15; another answer is a compile."""
    try:
        from torch._inductor.runtime.runtime_utils import triton_cache_dir, triton_hash_to_path_key

        kernel, _ = future.result()
        folder = Path(triton_cache_dir(kernel.triton_meta.get("device", 0)))
        places = [folder / triton_hash_to_path_key(one.kernel.hash) for one in kernel.compile_results]
        return bool(places) and all(place.stat().st_mtime < began for place in places)
    except Exception:  # noqa: BLE001 - a job that failed, or one of another kind
        return False
