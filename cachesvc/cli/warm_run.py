"""Prepare a run of `warm` and start it: its context, its registry, the proof of its environment."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cachesvc_client.wire.errors import InvalidRequest

from .signals import interruptible
from .warm_access import with_registry
from .warm_output import echo, progress

if TYPE_CHECKING:
    from cachesvc.warm.context import Task, WarmContext
    from cachesvc.warm.job_token import JobTokenSource
    from cachesvc.warm.missing import MissingPlan
    from cachesvc.warm.report.head import ReportHead
    from cachesvc.warm.spec.plan import Job
    from cachesvc.warm.verdict.results import Outcome
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.config.settings import Config
    from cachesvc_client.wire.factors import Fingerprint
    from cachesvc_client.wire.names import Name


def run_jobs(
    jobs: Sequence[Job],
    name: Name,
    spec: Path,
    *,
    task: Task,
    workers: int,
    out: Path | None,
    key: SigningKey | None,
    job: JobTokenSource | None,
    lifetime: float | None,
    days: int | None,
    for_gpu: Path | None,
) -> tuple[list[Outcome], ReportHead]:
    """Warm the jobs. ``days``: only those that services wanted in so many days, the dearest first."""
    from cachesvc.warm.ci.job_guard import guarded_job
    from cachesvc.warm.context import Sealing, WarmContext
    from cachesvc.warm.launcher import Cancelled, Launcher
    from cachesvc.warm.provenance import BuildOrigin
    from cachesvc.warm.run import run
    from cachesvc.warm.verdict.results import Outcome
    from cachesvc_client.config.settings import Config

    config = Config.read()
    with guarded_job(os.environ), ExitStack() as stack:
        context = WarmContext(
            name=name,
            launcher=Launcher(),
            on_step=stack.enter_context(progress(jobs)),
            sealing=Sealing(
                key, lifetime=lifetime, origin=BuildOrigin.of(spec.absolute()), remarks=_remarks(spec)
            ),
            lane=config.lane,
            out=_folder(out),
            task=task,
        )
        if for_gpu is not None:
            context = _without_gpu(context, for_gpu)
        context = with_registry(context, config, job, stack)
        if days is not None:
            found = find_missing(context, jobs, days)
            jobs = found.jobs
            for line in found.lines(name):
                echo(line, err=True)
        head = _head(context, spec)
        stack.enter_context(interruptible())
        try:
            context = _prove(context, jobs, config)
        except (KeyboardInterrupt, Cancelled):
            return [Outcome(str(one.label), "cancelled", ("interrupted",)) for one in jobs], head
        return run(jobs, context, workers), head


def find_missing(context: WarmContext, jobs: Sequence[Job], days: int) -> MissingPlan:
    """Ask the registry what services wanted, and return what of it is to be built here."""
    from cachesvc.warm.missing import ask_wanted, plan_missing
    from cachesvc.warm.spec.variables import choose_variables
    from cachesvc_client.environment.detect import detect
    from cachesvc_client.environment.march import for_level

    @functools.cache
    def detect_with(variables: tuple[tuple[str, str], ...]) -> Fingerprint:
        return for_level(detect(dict(variables)))

    def here(job: Job) -> Fingerprint:
        variables = choose_variables(os.environ, job.spec.pass_env) | job.env
        return detect_with(tuple(sorted(variables.items())))

    assert context.registry is not None
    answer = ask_wanted(context.registry.remote, context.name, context.lane, days)
    return plan_missing(jobs, answer, here)


def _without_gpu(context: WarmContext, device: Path) -> WarmContext:
    """Return the context of a run for the GPU that a file describes. Its entries go into a lane, since
    nothing shows yet that they work there. Raises ``InvalidRequest``."""
    from cachesvc.warm.gpuless import description
    from cachesvc_client.publication.as_you_go import UNPROVEN_LANE

    if context.task == "check":
        raise InvalidRequest(
            "--check restores on the GPU, and --for-gpu has none", "run --check where the service runs"
        )
    name = description.read(device).name
    built = {"built": f"without a GPU, for {name}; unproven until its first start there"}
    return replace(
        context,
        device=device.absolute(),
        lane=context.lane or UNPROVEN_LANE,
        sealing=replace(context.sealing, remarks={**context.sealing.remarks, **built}),
    )


def _head(context: WarmContext, spec: Path) -> ReportHead:
    """Describe the run for its report."""
    from cachesvc.warm.report.head import ReportHead, use_bundles_line
    from cachesvc_client.environment.detect import detect

    key = context.sealing.key
    if context.registry is None and context.out and key:
        use = use_bundles_line(context.out, str(key.public))
        return ReportHead.of(context.name, spec, detect(), use=use)
    return ReportHead.of(
        context.name, spec, detect(), context.registry.remote.url if context.registry else ""
    )


def _prove(context: WarmContext, jobs: Sequence[Job], config: Config) -> WarmContext:
    """Return the context with its environment. If entries of this environment need a proof, the conformance
    probe has passed in it before a target is built. Raises ``Unsupported``."""
    from cachesvc.warm.probe import prove_environment
    from cachesvc.warm.worker.proven_environment import judge_environment

    environment = judge_environment()
    if environment.needs_probe and jobs and context.task != "check":
        context.on_step(jobs[0], "probe")
        prove_environment(environment, jobs[0], context.launcher, config)
    return replace(context, environment=environment)


def _folder(out: Path | None) -> Path | None:
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"--out {out}: {error.strerror or error}") from None
    return out.absolute()


def _remarks(spec: Path) -> dict[str, str]:
    """Return, for people, which spec this is, and the commit that a CI system names."""
    from cachesvc.warm.report.head import ci_commit

    commit = ci_commit()
    return {"spec": spec.name, **({"commit": commit} if commit else {})}
