"""Run `warm` over all jobs of a plan.

Each job is one target:

    eager -> (skip what the registry has; wait, if another run compiles it) -> compile
    -> finalise, if something was tuned -> capture
    -> replays from the bundle alone, until one does nothing -> trim to what a replay used
    -> one more replay of the trimmed bundle, which is the verdict -> seal -> publish, or write

A key that lives as long as the run signs interim bundles; the real key signs only what has its verdict.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cachesvc_client.wire.errors import CacheSvcError, StorageFull

from .context import TargetContext, WarmContext
from .launcher import Cancelled
from .spec.plan import Job
from .target import TargetRun
from .verdict.results import Outcome
from .worker.phase import PhaseRequest


def run(jobs: Sequence[Job], context: WarmContext, workers: int = 1) -> list[Outcome]:
    """Return an outcome for every job, in their order; one job's failure does not lose the others.

    On KeyboardInterrupt every process that was started is ended, nothing more is published, and unfinished
    jobs are ``cancelled``; the interrupt is not raised again. The errors of a job are in its outcome.
    """
    outcomes: dict[int, Outcome] = {}
    with ThreadPoolExecutor(max(1, workers)) as pool:
        futures = {index: pool.submit(_warm, job, context) for index, job in enumerate(jobs)}
        try:
            for index, future in futures.items():
                outcomes[index] = future.result()
        except KeyboardInterrupt:
            context.launcher.cancel()
            pool.shutdown(cancel_futures=True)
    for index, job in enumerate(jobs):
        future = futures[index]
        if index not in outcomes:
            done = future.done() and not future.cancelled()
            outcomes[index] = future.result() if done else Outcome(str(job.label), "cancelled")
    return [outcomes[index] for index in range(len(jobs))]


def _warm(job: Job, context: WarmContext) -> Outcome:
    """Warm the target of one job. Raises nothing that belongs to the job."""
    begin, name = time.monotonic(), str(job.label)
    try:
        with tempfile.TemporaryDirectory(prefix="cachesvc-warm-") as folder:
            outcome = _warm_in(Path(folder), job, context)
    except Cancelled:
        outcome = Outcome(name, "cancelled", ("interrupted",))
    except CacheSvcError as error:
        outcome = Outcome(name, "failed", (str(error),), error_status=error.exit_status)
    except OSError as error:
        text, status = f"{type(error).__name__}: {error}", StorageFull.exit_status
        outcome = Outcome(name, "failed", (text,), error_status=status)
    except Exception as error:  # noqa: BLE001 - one job's failure does not lose the others
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        outcome = Outcome(name, "failed", (text,), trace=traceback.format_exc(), error_status=1)
    outcome = replace(outcome, seconds=time.monotonic() - begin)
    context.on_step(job, outcome.status)
    return outcome


def _warm_in(folder: Path, job: Job, context: WarmContext) -> Outcome:
    """Run the model eagerly, which describes the target, and then warm it."""
    context.on_step(job, "eager")
    eager = context.launcher.run(
        PhaseRequest("eager", job, device=str(context.device or "")), folder / "eager", {}
    )
    if eager.error:
        status = eager.error_status
        return Outcome(str(job.label), "failed", (eager.error,), trace=eager.trace, error_status=status)
    model = eager.model
    workload = job.workload(
        model=model.digest if model else None,
        script=eager.script,
        inputs=model.inputs if model else {},
        dtype=model.dtype if model else "",
    )
    return TargetRun(TargetContext(job, context, folder, eager, workload)).run()
