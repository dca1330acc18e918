"""Finds the job that this process is a rank of, and tells whether files of single ranks can serve it.

Launchers put rank and size of a job into variables (torchrun: docs of ``torch.distributed.run``, *Environment
variables*) before the process starts. A worker of ``multiprocessing`` may learn its rank later, or give it to
``torch.distributed`` alone. Of a worker of an engine, the kind that hooks the engine tells it (`join`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..node.processes import boot_id, pid_namespace
from ..wire.codec import canonical
from ..wire.digest import Digest

if TYPE_CHECKING:
    from ..wire.manifest.records import Manifest

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
"""Values of ``MASTER_ADDR`` that say that all ranks run on this node."""
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
"""Programs and modules that start the ranks of a job."""
_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables whose values are the same for all ranks of a job, and differ from other jobs and restarts."""


@dataclass(frozen=True, slots=True)
class Job:
    """Describes this process as ``rank`` of ``world`` processes, at least two. ``here``: the number of ranks
    on this node, of which this process is number ``local``. Both are 0 if that is not known; then the ranks
    cannot agree.

    ``key`` is the same for all ranks on this node, and changes when torchrun restarts them."""

    rank: int
    world: int
    local: int
    here: int
    key: Digest

    @property
    def one_node(self) -> bool:
        """Tells whether all ranks share this node, and so its store."""
        return self.here == self.world


_joined: list[Job] = []
"""The job that this process has joined, if an engine has told its rank."""


def join(rank: int, world: int, about: Sequence[str]) -> None:
    """Note that this process is ``rank`` of the ``world`` ranks of an engine, all of them on this node and
    started by one process. ``about``: what is the same for these ranks, and differs from other jobs of that
    process. Numbers that are no rank of a job are ignored."""
    from .job_folder import process_id  # Few processes need the module.

    if 0 <= rank < world and world >= 2:
        key = Digest.of(canonical([_machine(), world, process_id(os.getppid()), *about]))
        _joined[:] = [Job(rank, world, rank, world, key)]


def this_job(environ: Mapping[str, str] | None = None) -> Job | None:
    """Returns the job as far as it is known now; ``None`` for a process alone. Imports nothing, never
    raises."""
    if environ is None and _joined:
        return _joined[0]
    environ = os.environ if environ is None else environ
    rank, world = _process_group() or (_number(environ, "RANK"), _number(environ, "WORLD_SIZE"))
    if rank is None or world is None or not 0 <= rank < world or world < 2:
        return None
    local, here = _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    if here is None and environ.get("MASTER_ADDR") in (*_LOOPBACK, os.uname().nodename):
        local, here = rank, world
    if local is None or here is None or not 0 <= local < here <= world or "MASTER_PORT" not in environ:
        local = here = 0
    key = Digest.of(canonical([_machine(), world, here, *(environ.get(name, "") for name in _JOB_VARIABLES)]))
    return Job(rank, world, local, here, key)


def may_become_rank() -> bool:
    """Tells whether this process may learn its rank later than now, since `multiprocessing` started it; or
    starts ranks itself, which have to agree before anything is installed on their node."""
    words = {os.path.basename(word) for word in sys.orig_argv[:6]}
    if words & {"--multiprocessing-fork", *_LAUNCHERS}:
        return True
    module = sys.modules.get("multiprocessing.process")
    parent: Callable[[], object] | None = getattr(module, "parent_process", None)
    return parent is not None and parent() is not None


def signs() -> bool:
    """Tells whether this process has to sign what is published: of a job, rank 0 alone does. False where that
    is not known yet."""
    job = this_job()
    return job.rank == 0 if job is not None else not may_become_rank()


def misfit(manifest: Manifest, job: Job | None) -> str:
    """Says why the files of single ranks cannot serve this job: some ranks would hit, others would compile.
    Returns an empty text if they can. A process alone may have the files of all ranks: PyTorch takes only
    its own."""
    builder_ranks = manifest.workload.ranks
    if job is None or job.world == builder_ranks or not any(file.ranks for file in manifest.files):
        return ""
    target = manifest.statement.target
    return f"{target}: built by {builder_ranks} ranks, with files of single ones; this job has {job.world}"


def _process_group() -> tuple[int, int] | None:
    """Returns rank and size of the process group that the application made."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    try:
        return (module.get_rank(), module.get_world_size()) if module.is_initialized() else None
    except Exception:  # noqa: BLE001 - a torch without distributed, or a group that is being destroyed
        return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _machine() -> str:
    """Names this machine's boot and PID namespace. Containers may share a node store; so may machines, on a
    volume that outlives them."""
    boot, namespace = boot_id(), pid_namespace()
    return f"{boot} {namespace}" if boot and namespace else os.uname().nodename
