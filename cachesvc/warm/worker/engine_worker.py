"""Restore or capture in vLLM's worker, the process that compiles: one for each rank. vLLM imports this module
there, before it loads the model, because `engine` names its class as ``worker_extension_cls``.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from cachesvc_client.ranks.job import this_job
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import Unsupported

from .. import kinds_used
from ..spec.spec import RANKS
from . import ranks
from .around_compile import CompilingProcess, RestoringProcess
from .cache_files import handed_files
from .engine import REQUEST
from .execution import describe_compiles
from .phase import PhaseRequest, PhaseResult


class EngineWork:
    """Does a phase in the worker: prepares the process now, and answers after the engine has generated."""

    def __init__(self, request: PhaseRequest) -> None:
        self._request = request
        self._process: CompilingProcess | RestoringProcess
        if request.phase in ("compile", "finalise"):
            self._process = CompilingProcess(request)
        else:
            self._process = RestoringProcess(request).__enter__()

    def result(self) -> PhaseResult:
        """Return what this process compiled, read and added until now. To be called once."""
        result = describe_compiles(self._request, self._process.observer)
        if isinstance(self._process, RestoringProcess):
            self._process.__exit__(None, None, None)
            result = _without_unloaded(self._process.add_files(result))
        return self._process.add_capture(result)


class WarmWorker:
    """Extends vLLM's worker, by ``worker_extension_cls``."""

    def cachesvc_result(self) -> str:
        """Return the `PhaseResult` of this worker, as JSON."""
        assert _work is not None
        return json.dumps(codec.plain(_work.result()))


def _without_unloaded(result: PhaseResult) -> PhaseResult:
    """Return the result without files that were read and that the engine then did not take."""
    handed = handed_files()
    parts = ((name, *name.split("/", 1)) for name in result.files_read)
    read = tuple(name for name, kind, path in parts if kind not in handed or path in handed[kind])
    return replace(result, files_read=read)


def _begin() -> EngineWork | None:
    """Begin what `engine` asks for; nothing in a process that it did not start."""
    file = os.environ.get(REQUEST)
    if not file:
        return None
    return EngineWork(_as_rank(codec.build(PhaseRequest, json.loads(Path(file).read_text()))))


def _as_rank(request: PhaseRequest) -> PhaseRequest:
    """Return the request of this worker. Each of several ranks gets cache folders of its own, as the ranks of
    a script do, so that the files in them are this rank's. Raises ``Unsupported`` where the rank is not
    known.
    """
    from cachesvc_client.process.process import process

    if request.job.ranks == 1:
        return request
    job = this_job()
    if job is None or job.world != request.job.ranks:
        raise Unsupported(
            "this worker does not know which rank of the engine it is",
            f"vLLM may have moved a name that cachesvc wraps: warm with {RANKS} = 1",
        )
    os.environ.update(kinds_used.cache_folders(Path(os.environ["CACHESVC_STORE"]), "ranks", str(job.rank)))
    process().read_variables()
    stage = str(ranks.rank_folder(Path(request.stage), job.rank)) if request.stage else ""
    return replace(request, stage=stage)


# The hooks have to be in place before the worker compiles, and vLLM calls no method of an extension by then.
_work = _begin()
