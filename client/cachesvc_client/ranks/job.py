"""The job that this process is a rank of, and what its ranks captured, as the files of one revision.

Launchers say it in variables (torchrun: docs of ``torch.distributed.run``, *Environment variables*) before
the process starts; a worker of ``multiprocessing`` may be told later, or tell ``torch.distributed`` alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire.codec import canonical
from ..wire.digest import Digest

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..wire.records import Manifest

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
_SAME_JOB = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Job:
    """``rank`` of ``world`` processes, at least two. ``here``: how many of them run on this node, of which
    this is number ``local``; 0 if that is not known, and then they cannot be brought to agree.

    ``key`` is the same for all ranks on this node, and another one after torchrun restarted them."""

    rank: int
    world: int
    local: int
    here: int
    key: Digest

    @property
    def one_node(self) -> bool:
        """All ranks share this node, and so its store."""
        return self.here == self.world


def this_job(environ: Mapping[str, str] | None = None) -> Job | None:
    """What is known now; ``None`` for a process alone. Imports nothing, and never raises."""
    environ = os.environ if environ is None else environ
    told = _told_by_torch() or (_number(environ, "RANK"), _number(environ, "WORLD_SIZE"))
    rank, world = told
    if rank is None or world is None or not 0 <= rank < world or world < 2:
        return None
    local, here = _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    if here is None and environ.get("MASTER_ADDR") in (*_LOOPBACK, os.uname().nodename):
        local, here = rank, world
    if local is None or here is None or not 0 <= local < here <= world or "MASTER_PORT" not in environ:
        local = here = 0
    key = Digest.of(canonical([_place(), world, here, *(environ.get(name, "") for name in _SAME_JOB)]))
    return Job(rank, world, local, here, key)


def may_become_rank() -> bool:
    """Whether this process may be told its rank later than now, since `multiprocessing` started it; or starts
    ranks itself, which have to agree before anything is installed on their node."""
    words = {os.path.basename(word) for word in sys.orig_argv[:6]}
    if words & {"--multiprocessing-fork", *_LAUNCHERS}:
        return True
    module = sys.modules.get("multiprocessing.process")
    parent: Callable[[], object] | None = getattr(module, "parent_process", None)
    return parent is not None and parent() is not None


def misfit(manifest: Manifest, job: Job | None) -> str:
    """Why files of single ranks cannot serve this job: some ranks would hit, others would compile. Empty if
    they can. A process alone may have the files of all ranks: PyTorch takes none that are not its own."""
    built = manifest.workload.ranks
    if job is None or job.world == built or not any(file.ranks for file in manifest.files):
        return ""
    target = manifest.statement.target
    return f"{target}: built by {built} ranks, with files of single ones; this job has {job.world}"


def join_captures(captured: Mapping[int, Sequence[SourceFile]]) -> list[SourceFile]:
    """The captures of all ranks as the files of one revision: each path once, with the ranks that produced or
    used it; none are named where all did.

    Files that are merged at install are merged here. Of others the lowest rank's stays, as in a folder that
    the ranks share: compilers name such files by what decides them. So it is with two under one key that
    differ in nothing that matters.
    """
    from ..kinds import RULES

    made: dict[tuple[str, str], SourceFile] = {}
    for rank in sorted(captured):
        for file in captured[rank]:
            place = (file.kind, file.path)
            before = made.get(place)
            if before is None:
                made[place] = replace(file, ranks=(rank,))
                continue
            rule = RULES[file.kind].rule(file.path)
            join = rule.merge if rule is not None else None
            data = join(_bytes(before.data), _bytes(file.data)) if join is not None else before.data
            made[place] = replace(before, data=data, ranks=(*before.ranks, rank))
    everyone = tuple(sorted(captured))
    files = _one_of_each(list(made.values()))
    return [replace(file, ranks=()) if file.ranks == everyone else file for file in files]


def _one_of_each(files: list[SourceFile]) -> list[SourceFile]:
    """Of files that do the same, in one folder, the first; for the ranks of all of them."""
    from ..kinds import RULES

    made: dict[tuple[str, ...], SourceFile] = {}
    for file in files:
        rule = RULES[file.kind].rule(file.path)
        same: tuple[str, ...] = (file.kind, file.path)
        if rule is not None and rule.alike is not None:
            with suppress(ValueError):
                common = Digest.of(rule.alike(_bytes(file.data)))
                same = (file.kind, file.path.rpartition("/")[0], common)
        before = made.setdefault(same, file)
        if before is not file:
            made[same] = replace(before, ranks=tuple(sorted({*before.ranks, *file.ranks})))
    return list(made.values())


def _bytes(data: bytes | Path) -> bytes:
    return data if isinstance(data, bytes) else data.read_bytes()


def _told_by_torch() -> tuple[int, int] | None:
    """From a process group that the application made."""
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


def _place() -> str:
    """This machine's boot and PID namespace: a node store may be shared by containers and, on a volume that
    outlives them, by machines."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename
