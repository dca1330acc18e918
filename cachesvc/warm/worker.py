"""Do one phase of one job, in a fresh process: ``python -m cachesvc.warm.worker REQUEST.json RESULT.json``.

    probe     checks whether cachesvc's hooks work in this environment; runs nothing of the job
    eager     builds the model, describes it, times eager calls; compiles nothing
    compile   compiles all input sets into this process's folders, compares with eager, captures
    finalise  does the same in the folders of an earlier compile, whose graphs are dropped and whose tuning
              results are kept, so that the new graphs hold tuned configurations
    replay    restores through the client's own session, as a service does, calls all input sets, and
              reports what was compiled, tuned, started, read and added nevertheless
    record    does the same, and records what Dynamo makes of each function that it traces

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
import shutil
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import cachesvc_client
from cachesvc_client.environment.detect import detect
from cachesvc_client.hooks import counters
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, Unavailable

from . import kinds_used, ranks, triton_bundler
from .cache_files import cache_roots, capture_files, list_files, name_files, outermost
from .comparisons import compare_with_builder, compare_with_eager
from .execution import build_model, execute, script_digest
from .file_reads import ReadWatch
from .phase import PhaseRequest, PhaseResult
from .user_code import UserCodeError, one_line

if TYPE_CHECKING:
    from cachesvc_client.session.session import Session

RESTORE_SECONDS = 600.0
"""Seconds that a replay waits for its bundle: the bundle is on this machine, so only its size counts."""
_TRACE_CHARACTERS = 8000
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2), Linux: the signal that this process gets when its parent ends."""


def main(arguments: list[str]) -> int:
    """Read the request, do its phase, and write the result, whole or not at all."""
    _die_with_parent()
    request = codec.build(PhaseRequest, json.loads(Path(arguments[0]).read_text()))
    request, result_file, error_status = as_rank(request, Path(arguments[1]))
    name_cache_folders(request)
    result = perform(request)
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


def perform(request: PhaseRequest) -> PhaseResult:
    """Do one phase and return its result. An error of the user's code, the compiler or the cache is in it."""
    compiling, restoring = ("compile", "finalise"), ("replay", "record")
    phases = {"probe": _probe, "eager": _eager}
    phases |= dict.fromkeys(compiling, _compile) | dict.fromkeys(restoring, _replay)
    try:
        return phases[request.phase](request)
    except CacheSvcError as error:
        text, status = str(error), error.exit_status
    except UserCodeError as error:
        text, status = str(error), 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it for this target
        text, status = one_line(error), 0
    trace = traceback.format_exc()[-_TRACE_CHARACTERS:]
    return PhaseResult(request.phase, error=text, error_status=status, trace=trace)


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
        times = model.times(model.module, "the eager model")
    return PhaseResult(request.phase, model=facts, times=times, fingerprint=detect())


def _compile(request: PhaseRequest) -> PhaseResult:
    from cachesvc_client.config import Config
    from cachesvc_client.session.sessions import open_local

    observer = counters.start(audit=True)
    triton_bundler.leave_out_copies()
    session = open_local(Config.read())
    if request.phase == "finalise":
        for folder in kinds_used.graph_folders(cache_roots()):
            shutil.rmtree(folder, ignore_errors=True)
    execution = execute(request, observer)
    compare = request.phase == "compile"
    result = compare_with_eager(request, execution) if compare else execution.result
    return _add_capture(request, session, result)


def _replay(request: PhaseRequest) -> PhaseResult:
    from cachesvc_client.session.process import process

    observer = counters.start(audit=True)
    kernels = triton_bundler.KernelFiles()
    triton_bundler.record_files(kernels)
    triton_bundler.leave_out_copies()
    session = cachesvc_client.attach(request.name or None, bundle=request.bundle or None)
    if request.phase == "record":
        process().start_recording()
    if session is None or not session.wait(RESTORE_SECONDS):
        raise Unavailable(f"not restored within {RESTORE_SECONDS:.0f} s" if session else "not attached")
    roots = cache_roots()
    before = set(list_files(roots))
    with contextlib.ExitStack() as stack:
        watches = {root: stack.enter_context(ReadWatch(root)) for root in outermost(roots)}
        execution = execute(request, observer)
    emitted = name_files(roots, kernels.emitted) - before
    new = set(list_files(roots)) - before - emitted
    of_libraries = {name for name in new if not kinds_used.decides_fit(name.partition("/")[0])}
    read = name_files(roots, (root / path for root, watch in watches.items() for path in watch.read()))
    result = replace(
        compare_with_builder(request, execution),
        files_read=tuple(sorted(read & before)),
        files_required=tuple(sorted(name_files(roots, kernels.required) & before)),
        files_added=tuple(sorted(new - of_libraries)),
        files_of_libraries=tuple(sorted(of_libraries)),
        files_emitted=tuple(sorted(emitted)),
    )
    result = _add_capture(request, session, result)
    return replace(result, why_traced=(*process().not_recorded(), *process().explain(())))


def _add_capture(request: PhaseRequest, session: Session, result: PhaseResult) -> PhaseResult:
    """Return the result with the captured files and the key components, if the request has a stage."""
    from cachesvc_client.session.process import process

    if not request.stage:
        return result
    capture = capture_files(session, Path(request.stage), result.files_emitted)
    return replace(result, capture=capture, keys=process().key_facts())


def _die_with_parent() -> None:
    """Make this process end with its parent, even if the parent is killed (prctl(2), Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_to_the_end() -> None:
    """Do the phase and end without taking the modules of torch apart, which takes a second of CPU.

    Threads are joined and exit functions run as in any process: they run in reverse order, so the first one
    that is registered can end the process."""
    statuses: list[int] = []

    def leave() -> None:
        if statuses:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(statuses[0])

    atexit.register(leave)
    statuses.append(main(sys.argv[1:]))
    sys.exit(statuses[0])


if __name__ == "__main__":
    run_to_the_end()
