"""``python -m cachesvc.warm.worker ORDER.json RESULT.json``: one phase of one job, in a fresh process.

    eager     builds the model, describes it, times eager calls; compiles nothing
    compile   compiles all input sets into this process's folders, compares with eager, captures
    finalise  the same into the folders of a compile before, whose graphs are dropped and whose tuning
              results are kept, so that the new graphs hold tuned configurations
    replay    restores through the client's own session, as a service does, calls all input sets and
              tells what was compiled, tuned, started, read and added nevertheless

It shares nothing with its parent but files; folders come from the environment. A phase that fails
still writes a result, with one line of ``error``; the exit status is 0 whenever a result was written.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cachesvc_client
from cachesvc_client import kinds
from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.environment.detect import detect, unsupported_reason
from cachesvc_client.hooks import counters
from cachesvc_client.kinds.inductor import bundler
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Unavailable, Unsupported
from cachesvc_client.wire.factors import Facts

from . import ranks
from .file_reads import ReadWatch
from .plan import Job
from .results import Captured, PhaseResult, Times

if TYPE_CHECKING:
    from cachesvc_client.session.session import Session

    from .subject import Subject

RESTORE_SECONDS = 600.0
"""A replay waits for its bundle this long: it is on this machine, so only its size counts."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Order:
    """What one process is to do. A replay restores ``bundle``, or ``name`` from the registry that the
    environment names. ``reference``: the file to which a compile writes its outputs, and from which a
    replay reads them, if it is there. ``stage``: the folder that captured files are copied to; empty:
    nothing is captured."""

    phase: str
    job: Job
    reference: str = ""
    bundle: str = ""
    name: str = ""
    stage: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks torchrun starts for it; 0 is one process without torchrun. ``eager`` runs none of a
        script."""
        return self.job.spec.nproc if self.job.spec.nproc > 1 and self.phase != "eager" else 0


def main(arguments: list[str]) -> int:
    """Reads the order, does it, writes the result (whole or not at all)."""
    _die_with_parent()
    order = codec.build(Order, json.loads(Path(arguments[0]).read_text()))
    order, answer, bad = as_rank(order, Path(arguments[1]))
    name_folders(order)
    begin = time.monotonic()
    result = replace(perform(order), seconds=time.monotonic() - begin)
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(codec.plain(result)))
    partial.rename(answer)
    return bad if result.error else 0


def as_rank(order: Order, answer: Path) -> tuple[Order, Path, int]:
    """The order of one rank, where its result goes, and the exit status of an error (torchrun then ends the
    others, which may wait for it). Each has a cache folder of its own: what lies there is this rank's."""
    if not order.ranks:
        return order, answer, 0
    rank = os.environ["RANK"]
    for variable, folder in _folders("ranks"):
        os.environ[variable] = str(folder / rank)
    stage = str(ranks.folder(Path(order.stage), int(rank))) if order.stage else ""
    return replace(order, stage=stage), ranks.result_file(answer, int(rank)), 1


def name_folders(order: Order) -> None:
    """Names the cache folders of the phases that compile: a private folder is emptied by its next user, and
    ``finalise`` goes on with the tuning results that ``compile`` left."""
    if order.phase in ("compile", "finalise"):
        for variable, folder in _folders("compile"):
            os.environ.setdefault(variable, str(folder))


def _folders(purpose: str) -> Iterator[tuple[str, Path]]:
    """The variable and a folder of each kind that lies in no other's."""
    for kind in kinds.KINDS:
        if kind.home != "inside":
            yield kind.variable, Path(os.environ["CACHESVC_STORE"], f"{purpose}-{kind.name}")


def perform(order: Order) -> PhaseResult:
    """Does one phase. What the user's code, the compiler or the cache does wrong is told, not raised."""
    phases = {"eager": _eager, "compile": _compile, "finalise": _compile, "replay": _replay}
    try:
        return phases[order.phase](order)
    except CacheSvcError as error:
        trace = traceback.format_exc()[-8000:]
        return PhaseResult(order.phase, error=str(error), error_status=error.exit_status, trace=trace)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it for this target
        from .subject import SubjectError, one_line

        text = str(error) if isinstance(error, SubjectError) else one_line(error)
        return PhaseResult(order.phase, error=text, trace=traceback.format_exc()[-8000:])


def _eager(order: Order) -> PhaseResult:
    job = order.job
    if reason := unsupported_reason(detect()):
        raise Unsupported(reason)
    if job.is_script:
        return PhaseResult(order.phase, script=_script_digest(job), fingerprint=detect())
    subject = _subject(job)
    model = subject.describe()
    with subject.eager():
        times = subject.times(subject.module, "the eager model")
    return PhaseResult(order.phase, model=model, times=times, fingerprint=detect())


def _compile(order: Order) -> PhaseResult:
    from cachesvc_client.config import Config
    from cachesvc_client.session.sessions import open_local

    observer = counters.start(audit=True)
    bundler.install_hooks(bundler.UsedFiles(), apart=True)
    session = open_local(Config.read())
    if order.phase == "finalise":
        for kind in kinds.KINDS:
            for name in kind.graph_folders:
                shutil.rmtree(_roots()[kind.name] / name, ignore_errors=True)
    ran = _run(order, observer)
    result = _against_eager(order, ran) if order.phase == "compile" else ran.result
    return _with_capture(order, session, result)


def _replay(order: Order) -> PhaseResult:
    observer = counters.start(audit=True)
    kernels = bundler.UsedFiles()
    bundler.install_hooks(kernels, apart=True)
    session = cachesvc_client.attach(order.name or None, bundle=order.bundle or None)
    if session is None or not session.wait(RESTORE_SECONDS):
        raise Unavailable(f"not restored within {RESTORE_SECONDS:.0f} s" if session else "not attached")
    restored = sum(session.report().seconds.get(step, 0.0) for step in ("resolve", "download", "install"))
    roots = _roots()
    before = set(_known_files(roots))
    with contextlib.ExitStack() as stack:
        watches = {root: stack.enter_context(ReadWatch(root)) for root in _outermost(roots)}
        ran = _run(order, observer)
    emitted = _named(roots, kernels.emitted) - before
    new = set(_known_files(roots)) - before - emitted
    beside = {name for name in new if not kinds.BY_NAME[name.partition("/")[0]].decides_fit}
    read = _named(roots, (root / path for root, watch in watches.items() for path in watch.read()))
    result = replace(
        _against_builder(order, ran),
        read=tuple(sorted(read & before)),
        read_method="+".join(sorted({watch.method for watch in watches.values()})),
        looked_at=tuple(sorted(_named(roots, kernels.looked_at) & before)),
        added=tuple(sorted(new - beside)),
        beside=tuple(sorted(beside)),
        emitted=tuple(sorted(emitted)),
        restore_seconds=restored,
    )
    return _with_capture(order, session, result)


# The calls ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ran:
    """A result with what made it; a script has no subject."""

    result: PhaseResult
    subject: Subject | None = None
    compiled: Callable[..., Any] | None = None


def _subject(job: Job) -> Subject:
    from . import subject

    subject.import_paths(job)
    return subject.Subject(job)


def _run(order: Order, observer: counters.Observer) -> _Ran:
    """Calls all input sets (or runs the script), and takes the counts right after."""
    job = order.job
    if job.is_script:
        times = {"script": Times(_run_script(job))}
        observed = observer.snapshot()
        result = PhaseResult(order.phase, times=times, observed=observed, fingerprint=detect())
        return _Ran(replace(result, scopes=_scopes(), asked=_asked()))
    from . import subject as subjects

    subject = _subject(job)
    compiled = subject.compiled()
    times = subject.times(compiled, "the compiled model")
    observed = observer.snapshot()
    result = PhaseResult(
        order.phase,
        model=subject.describe(),
        times=times,
        observed=observed,
        graph_breaks=subjects.graph_breaks(),
        recompiles=subjects.recompiles(),
        fingerprint=detect(),
        scopes=_scopes(),
        asked=_asked(),
    )
    return _Ran(result, subject, compiled)


def _run_script(job: Job) -> float:
    """The whole program, as ``python script args`` would run it. Raises ``SubjectError`` if it fails."""
    from .subject import SubjectError, import_paths, one_line

    import_paths(job)
    script = Path(job.spec.script)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *job.spec.args]
    begin = time.perf_counter()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise SubjectError(f"{script.name} ended with status {error.code}") from None
    except Exception as error:
        raise SubjectError(f"{script.name} raised {one_line(error)}") from error
    return time.perf_counter() - begin


def _scopes() -> tuple[str, ...]:
    from cachesvc_client.session.process import process

    return process().scopes()


def _asked() -> Facts:
    from cachesvc_client.session.process import process

    return process().asked.facts()


def _script_digest(job: Job) -> Digest:
    from cachesvc_client.environment import model_hash

    files = {Path(name).name: Digest.of(Path(name).read_bytes()) for name in job.spec.files}
    return model_hash.script_digest(Path(job.spec.script).read_bytes(), dict(job.options), files)


# Comparisons ----------------------------------------------------------------------------------


def _against_eager(order: Order, ran: _Ran) -> PhaseResult:
    """Compiled outputs against eager ones of the same process; the compiled ones kept for the replays."""
    subject, compiled, result = ran.subject, ran.compiled, ran.result
    if subject is None or compiled is None:
        return result
    import torch

    kept: dict[str, Any] = {"weights": result.model.weights if result.model else ""}
    compared = {}
    for name in subject.names:
        mine = subject.outputs(compiled, name, "the compiled model")
        with subject.eager():
            reference = subject.outputs(subject.module, name, "the eager model")
            again = subject.outputs(subject.module, name, "the eager model", seed=1)
        compared[name] = subject.compared(mine, reference)
        if not subject.compared(again, reference).passed:
            compared[name] = Compared(note="random: eager differs from itself under another seed (dropout?)")
            mine = []
        kept[name] = mine
    torch.save(kept, order.reference)
    return replace(result, compared=compared)


def _against_builder(order: Order, ran: _Ran) -> PhaseResult:
    """Restored outputs against the builder's compiled ones, where the two have the same weights."""
    subject, compiled, result = ran.subject, ran.compiled, ran.result
    if subject is None or compiled is None or not Path(order.reference).is_file():
        return result
    import torch

    kept = torch.load(order.reference, weights_only=True)
    same = result.model is not None and kept["weights"] == result.model.weights
    compared = {}
    for name in subject.names:
        if not same:
            note = "the factory makes other weights or inputs in each process: seed it to have them compared"
            compared[name] = Compared(note=note)
        elif not kept[name]:
            compared[name] = Compared(note="random, or no tensors in the output")
        else:
            mine = subject.outputs(compiled, name, "the restored model")
            compared[name] = subject.compared(mine, kept[name])
    return replace(result, compared=compared)


# Files ----------------------------------------------------------------------------------------


def _roots() -> dict[str, Path]:
    from cachesvc_client.session.process import process

    roots = process().folders.roots()
    for root in roots.values():
        root.mkdir(parents=True, exist_ok=True)
    return roots


def _outermost(roots: dict[str, Path]) -> list[Path]:
    """The folders to watch: one inside of another is watched with it."""
    return [root for root in roots.values() if not any(other in root.parents for other in roots.values())]


def _known_files(roots: dict[str, Path]) -> Iterator[str]:
    """``kind/path`` of every file that a kind captures."""
    for kind, root in roots.items():
        for folder, _, files in os.walk(root):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), root)
                if kinds.RULES[kind].rule(path):
                    yield f"{kind}/{path}"


def _named(roots: dict[str, Path], paths: Iterable[Path]) -> set[str]:
    """``kind/path`` of absolute paths: of the innermost kind."""
    inner_first = sorted(roots.items(), key=lambda item: -len(item[1].parts))
    found = set()
    for path in paths:
        kind = next(((kind, root) for kind, root in inner_first if path.is_relative_to(root)), None)
        if kind is not None:
            found.add(f"{kind[0]}/{path.relative_to(kind[1])}")
    return found


def _with_capture(order: Order, session: Session, result: PhaseResult) -> PhaseResult:
    """Copies what this process produced or used, in portable form, to the stage; what its entries hold and
    PyTorch wrote out of them needs no second copy."""
    from cachesvc_client.session.process import process

    if not order.stage:
        return result
    captured = []
    emitted = set(result.emitted)
    for file in session.capture(whole=True):
        if f"{file.kind}/{file.path}" in emitted:
            continue
        target = Path(order.stage, file.kind, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        data = file.data if isinstance(file.data, bytes) else file.data.read_bytes()
        target.write_bytes(data)
        captured.append(Captured(file.kind, file.path, len(data), file.mode))
    return replace(result, captured=tuple(captured), keys=process().key_facts())


def _die_with_parent() -> None:
    """A worker does not outlive a parent that was killed (prctl(2), Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
