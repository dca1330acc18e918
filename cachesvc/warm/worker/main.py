"""Do one phase of one job, in a fresh process: ``python -m cachesvc.warm.worker.main REQUEST RESULT``.

    probe     checks whether cachesvc's hooks work in this environment; runs nothing of the job
    eager     builds the model, describes it, times eager calls; compiles nothing
    compile   compiles all input sets into this process's folders, compares with eager, captures
    finalise  does the same in the folders of an earlier compile, whose graphs are dropped and whose tuning
              results are kept, so that the new graphs hold tuned configurations
    replay    restores through the client's own session, as a service does, calls all input sets, and
              reports what was compiled, tuned, started, read and added nevertheless
    record    does the same, and records what Dynamo makes of each function that it traces

Of an engine, which compiles in a process of its own, `engine` does these phases.

The process shares nothing with its parent but files; folders come from the environment. A phase that fails
still writes a result, with one line of ``error``; the exit status is 0 whenever a result was written, but
for a rank, whose error must end the other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from cachesvc_client.environment import march
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, Unsupported

from .. import kinds_used
from ..spec.plan import Job
from . import engine, ranks
from .around_compile import CompilingProcess, RestoringProcess
from .comparisons import compare_speed, compare_with_builder, compare_with_eager
from .execution import build_model, execute, script_digest
from .phase import PhaseRequest, PhaseResult
from .user_code import UserCodeError, one_line

Phase = Callable[[PhaseRequest], PhaseResult]
_TRACE_CHARACTERS = 8000
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2), Linux: the signal that this process gets when its parent ends."""


def main(arguments: list[str], do: Phase | None = None) -> int:
    """Read the request, do its phase, and write the result, whole or not at all. ``do``: as `perform`."""
    _die_with_parent()
    request = codec.build(PhaseRequest, json.loads(Path(arguments[0]).read_text()))
    request, result_file, error_status = as_rank(request, Path(arguments[1]))
    name_cache_folders(request)
    result = perform(request, do)
    partial = result_file.with_suffix(".partial")
    partial.write_text(json.dumps(codec.plain(result)))
    partial.rename(result_file)
    return error_status if result.error else 0


def as_rank(request: PhaseRequest, result_file: Path) -> tuple[PhaseRequest, Path, int]:
    """Return the request of this rank, where its result goes, and the exit status of an error.

    That status makes torchrun end the other ranks, which may wait for this one. Each rank gets cache folders
    of its own, so that the files in them are this rank's.
    """
    if not request.ranks:
        return request, result_file, 0
    rank = os.environ["RANK"]
    os.environ.update(kinds_used.cache_folders(Path(os.environ["CACHESVC_STORE"]), "ranks", rank))
    stage = str(ranks.rank_folder(Path(request.stage), int(rank))) if request.stage else ""
    return replace(request, stage=stage), ranks.result_file(result_file, int(rank)), 1


def name_cache_folders(request: PhaseRequest) -> None:
    """Name the cache folders of the phases that compile.

    The next process empties a private folder, and ``finalise`` needs the tuning results that ``compile``
    left.
    """
    if request.phase in ("compile", "finalise"):
        folders = kinds_used.cache_folders(Path(os.environ["CACHESVC_STORE"]), "compile")
        for variable, folder in folders.items():
            os.environ.setdefault(variable, folder)


def perform(request: PhaseRequest, do: Phase | None = None) -> PhaseResult:
    """Do one phase and return its result. An error of the user's code, the compiler or the cache is in it.

    ``do``: what does every phase in the place of this module, as `gpuless` does.
    """
    try:
        if (level := request.job.level) and (problem := march.refusal(level, detect())):
            raise Unsupported(f'march = "{level}": {problem}', march.NEEDS)
        return (do or _phases(request.job)[request.phase])(request)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it for this target
        text = str(error) if isinstance(error, (CacheSvcError, UserCodeError)) else one_line(error)
        status = error.exit_status if isinstance(error, CacheSvcError) else 0
        log = engine.read_log() if request.job.is_engine else ""
        trace = (log + traceback.format_exc())[-_TRACE_CHARACTERS:]
        return PhaseResult(request.phase, error=text, error_status=status, trace=trace)


def _phases(job: Job) -> Mapping[str, Phase]:
    """Return what does each phase of a job."""
    if job.is_engine:
        ran = dict.fromkeys(("compile", "finalise", "replay", "record"), engine.run_engine)
        return {"probe": _probe, "eager": engine.describe_engine, **ran}
    compiling, restoring = ("compile", "finalise"), ("replay", "record")
    ran = dict.fromkeys(compiling, _compile) | dict.fromkeys(restoring, _replay)
    return {"probe": _probe, "eager": _eager, **ran}


def _probe(request: PhaseRequest) -> PhaseResult:
    from .conformance import failures

    return PhaseResult(request.phase, probe=failures())


def _eager(request: PhaseRequest) -> PhaseResult:
    job = request.job
    if job.is_script:
        return PhaseResult(request.phase, script=script_digest(job), fingerprint=detect())
    model = build_model(job)
    facts = model.describe()
    with model.eager():
        times = model.first_calls(model.module, "the eager model")
    return PhaseResult(request.phase, model=facts, times=times, fingerprint=detect())


def _compile(request: PhaseRequest) -> PhaseResult:
    process = CompilingProcess(request)
    execution = execute(request, process.observer)
    result = execution.result
    if request.phase == "compile":
        result = compare_speed(execution, compare_with_eager(request, execution))
    return process.add_capture(result)


def _replay(request: PhaseRequest) -> PhaseResult:
    from cachesvc_client.process.process import process

    with RestoringProcess(request) as restoring:
        execution = execute(request, restoring.observer)
    execution = replace(execution, result=restoring.add_files(execution.result))
    result = restoring.add_capture(compare_with_builder(request, execution))
    if request.name:
        result = replace(compare_speed(execution, result), log_reasons=restoring.log_reasons())
    return replace(result, why_traced=(*process().all_kinds.not_recorded(), *process().all_kinds.explain(())))


def _die_with_parent() -> None:
    """Make this process end with its parent, even if the parent is killed (prctl(2), Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_to_the_end(do: Callable[[list[str]], int]) -> None:
    """Do the phase, as `main` does, and end without taking the modules of torch apart, which takes a second.

    Threads are joined and exit functions run as in any process: they run in reverse order, so the first one
    that is registered can end the process."""
    statuses: list[int] = []

    def leave() -> None:
        if statuses:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(statuses[0])

    atexit.register(leave)
    statuses.append(do(sys.argv[1:]))
    sys.exit(statuses[0])


if __name__ == "__main__":
    run_to_the_end(main)
elif __name__ == "__mp_main__":  # multiprocessing imports this module first in a process that it spawns
    engine.arm_hooks()
