"""``cachesvc warm``: compile what a spec declares, prove it, publish it."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc_client.environment.variables import obsolete_line
from cachesvc_client.wire.errors import InvalidRequest, StorageFull, printable
from cachesvc_client.wire.names import Name, Tag

from . import app
from .lifetime import parse_lifetime
from .signals import interruptible
from .warm_access import hide_from_other_processes, take_job, take_key, with_registry

if TYPE_CHECKING:
    from cachesvc.warm.context import OnStep, WarmContext
    from cachesvc.warm.job_token import JobTokenSource
    from cachesvc.warm.missing import MissingPlan
    from cachesvc.warm.report.head import ReportHead
    from cachesvc.warm.spec.plan import Job
    from cachesvc.warm.verdict.results import Outcome
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.config import Config
    from cachesvc_client.wire.factors import Fingerprint

STDOUT = Path("-")
"""Path that stands for standard output."""
EPILOG = (
    "Exit status: 0 all targets are warm; 9 some target is not (cold, does not settle, numbers differ, "
    "cannot be compiled); 2 malformed spec or option; 3 token refused; 4 not found; 5 another publisher "
    "was faster; 6 registry or disk not available; 7 not trusted; 8 not supported; 130 interrupted.\n\n"
    "\b\nExamples:\n"
    "  cachesvc warm warm.toml\n"
    "  cachesvc warm warm.toml --target bert --force --report report.md\n"
    "  cachesvc warm warm.toml --check\n"
    "  cachesvc warm warm.toml --missing --dry-run"
)


def _print_schema(schema: bool) -> None:
    if schema:
        from cachesvc.warm.spec.schema import spec_schema

        typer.echo(json.dumps(spec_schema(), indent=1))
        raise typer.Exit


@app.command(epilog=EPILOG)
def warm(
    spec: Annotated[Path, typer.Argument(help="The spec (TOML); its format is in docs/warm.md.")],
    target: Annotated[
        list[str] | None, typer.Option(help="Only this target id, or id/dtype/mode. May be repeated.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Publish under this tag instead of the spec's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compile what the registry has, too.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Publish nothing; fail if a target is cold. The CI gate.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing",
            help="Only what services wanted and compiled, the dearest first, as far as it can be built here.",
        ),
    ] = False,
    days: Annotated[
        int, typer.Option(min=1, max=90, help="With --missing: of the starts of the last days.")
    ] = 30,
    workers: Annotated[
        int, typer.Option("-j", "--jobs", min=1, max=256, help="Targets at once; times are best with 1.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write bundle files (*.cachesvc) here; no registry is needed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write the report as Markdown; - is stdout, without the table.")
    ] = None,
    signing_key_env: Annotated[
        str | None,
        typer.Option(
            help="The variable that holds the signing key itself, instead of a file that all may read."
        ),
    ] = None,
    oidc: Annotated[
        str | None,
        typer.Option(
            envvar="CACHESVC_OIDC",
            help="Log in with this CI job's own token: github, gitlab[:VARIABLE], kubernetes or file:PATH.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Sign that nodes refuse it after this time, such as 90d; warm it before."
        ),
    ] = None,
    for_gpu: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Build for the GPU that FILE describes (describe-gpu), without one here; experimental.",
        ),
    ] = None,
    env_matrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Build nothing: merge the reports (--json) of several environments' runners.",
        ),
    ] = None,
    runner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --env-matrix: NAME.json must be among the reports; may be given often.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of a failure.")] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", callback=_print_schema, is_eager=True, help="Print the spec's JSON Schema and exit."
        ),
    ] = False,
) -> None:
    """Compile declared models in fresh processes, prove that a restored process compiles nothing, publish."""
    del schema
    hide_from_other_processes()
    key = take_key(signing_key_env)
    job = take_job(oidc)
    lifetime = parse_lifetime(expires)
    from cachesvc.warm.kinds_used import REFUSED
    from cachesvc.warm.report import render as reports
    from cachesvc.warm.spec.plan import plan
    from cachesvc.warm.spec.spec import load_spec

    warm_spec = load_spec(spec)
    for line in filter(None, (obsolete_line(), *REFUSED)):
        _echo(f"warning: {line}", err=True)
    name = _with_tag(warm_spec.name, tag)
    jobs = plan(warm_spec, target or ())
    if missing and (check or out or env_matrix is not None):
        raise InvalidRequest(
            "--missing asks the registry what to build", "drop --check, --out and --env-matrix, or --missing"
        )
    if missing and dry_run:
        _print_missing(name, jobs, job, days, as_json)
        return
    if dry_run:
        _print_plan(name, jobs, as_json)
        return
    _check_report(report, as_json)
    if runner and env_matrix is None:
        raise InvalidRequest("--runner goes with --env-matrix", "it names a report that must be there")
    if env_matrix is not None:
        _merge(env_matrix, name, jobs, report, as_json, runner or ())
        return
    outcomes, head = _run(
        jobs,
        name,
        spec,
        force=force,
        check=check,
        workers=workers,
        out=out,
        key=key,
        lifetime=lifetime,
        job=job,
        days=days if missing else None,
        for_gpu=for_gpu,
    )
    if report:
        _write(report, reports.markdown(head, outcomes))
    if as_json:
        typer.echo(json.dumps(reports.document(head, outcomes), indent=1))
    elif report != STDOUT:
        _print(head, outcomes)
    if verbose:
        _print_traces(outcomes)
    elif any(outcome.trace for outcome in outcomes):
        _echo("--verbose shows the traceback", err=True)
    raise typer.Exit(reports.exit_status(outcomes))


def _check_report(report: Path | None, as_json: bool) -> None:
    """Refuse a place of the report that cannot be written, before anything compiles."""
    if report == STDOUT and as_json:
        raise InvalidRequest(
            "--report - and --json both write to stdout", "give --report a file, or drop one"
        )
    if report and not report.absolute().parent.is_dir():
        raise InvalidRequest(f"--report {report}: no such folder", "make the folder first")


def _with_tag(name: Name, tag: str | None) -> Name:
    try:
        return replace(name, tag=Tag(tag)) if tag else name
    except ValueError as error:
        raise InvalidRequest(f"--tag: {error}") from None


def _print_plan(name: Name, jobs: Sequence[Job], as_json: bool) -> None:
    from cachesvc.warm.report import render as reports
    from cachesvc_client.wire.codec import plain

    if as_json:
        document = {"format": reports.PLAN_FORMAT, "name": str(name), "rows": plain(list(jobs))}
        typer.echo(json.dumps(document, indent=1))
        return
    typer.echo(f"{name}:")
    for line in reports.plan_lines(jobs):
        _echo(f"  {line}")


def _print_missing(
    name: Name, jobs: Sequence[Job], job: JobTokenSource | None, days: int, as_json: bool
) -> None:
    """Print what services wanted, and what of it would be built here. Needs no signing key."""
    from cachesvc.warm.context import WarmContext
    from cachesvc.warm.launcher import Launcher
    from cachesvc_client.config import Config

    config = Config.read()
    with ExitStack() as stack:
        context = WarmContext(name, Launcher(), lambda _job, _step: None, lane=config.lane, check=True)
        found = _missing(with_registry(context, config, job, stack), jobs, days)
    if as_json:
        typer.echo(json.dumps(found.document(name), indent=1))
        return
    for line in found.lines(name):
        _echo(line)


def _missing(context: WarmContext, jobs: Sequence[Job], days: int) -> MissingPlan:
    from cachesvc.warm.missing import ask_wanted, plan_missing
    from cachesvc.warm.spec.variables import choose_variables
    from cachesvc_client.environment.detect import detect

    @functools.cache
    def detect_with(variables: tuple[tuple[str, str], ...]) -> Fingerprint:
        return detect(dict(variables))

    def here(job: Job) -> Fingerprint:
        variables = choose_variables(os.environ, job.spec.pass_env) | job.spec.env
        return detect_with(tuple(sorted(variables.items())))

    assert context.registry is not None
    answer = ask_wanted(context.registry.remote, context.name, context.lane, days)
    return plan_missing(jobs, answer, here)


def _merge(
    folder: Path, name: Name, jobs: Sequence[Job], report: Path | None, as_json: bool, runners: Sequence[str]
) -> None:
    """Show the reports of several environments as one; end with its status."""
    from cachesvc.warm.report.env_matrix import read_reports

    matrix = read_reports(folder, str(name), [str(job.target) for job in jobs], runners)
    if report:
        _write(report, matrix.markdown())
    if as_json:
        typer.echo(json.dumps(matrix.document(), indent=1))
    elif report != STDOUT:
        _echo(matrix.text())
    raise typer.Exit(matrix.exit_status)


def _run(
    jobs: Sequence[Job],
    name: Name,
    spec: Path,
    *,
    force: bool,
    check: bool,
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
    from cachesvc.warm.context import WarmContext
    from cachesvc.warm.launcher import Cancelled, Launcher
    from cachesvc.warm.provenance import BuildOrigin
    from cachesvc.warm.run import run
    from cachesvc.warm.verdict.results import Outcome
    from cachesvc_client.config import Config

    config = Config.read()
    with guarded_job(os.environ), ExitStack() as stack:
        context = WarmContext(
            name=name,
            launcher=Launcher(),
            on_step=stack.enter_context(_progress(jobs)),
            key=key,
            lane=config.lane,
            out=_folder(out),
            force=force,
            check=check,
            provenance=_provenance(spec),
            origin=BuildOrigin.of(spec.absolute()),
            lifetime=lifetime,
        )
        if for_gpu is not None:
            context = _without_gpu(context, for_gpu)
        context = with_registry(context, config, job, stack)
        if days is not None:
            found = _missing(context, jobs, days)
            jobs = found.jobs
            for line in found.lines(name):
                _echo(line, err=True)
        head = _head(context, spec)
        stack.enter_context(interruptible())
        try:
            context = _prove(context, jobs, config)
        except (KeyboardInterrupt, Cancelled):
            return [Outcome(str(one.target), "cancelled", ("interrupted",)) for one in jobs], head
        return run(jobs, context, workers), head


def _without_gpu(context: WarmContext, device: Path) -> WarmContext:
    """Return the context of a run for the GPU that a file describes. Its entries go into a lane, since
    nothing shows yet that they work there. Raises ``InvalidRequest``."""
    from cachesvc.warm.gpuless import description
    from cachesvc_client.publication.as_you_go import UNPROVEN_LANE

    if context.check:
        raise InvalidRequest(
            "--check restores on the GPU, and --for-gpu has none", "run --check where the service runs"
        )
    name = description.read(device).name
    built = {"built": f"without a GPU, for {name}; unproven until its first start there"}
    return replace(
        context,
        device=device.absolute(),
        lane=context.lane or UNPROVEN_LANE,
        provenance={**context.provenance, **built},
    )


def _head(context: WarmContext, spec: Path) -> ReportHead:
    """Describe the run for its report."""
    from cachesvc.warm.report.head import ReportHead, use_bundles_line
    from cachesvc_client.environment.detect import detect

    if context.registry is None and context.out and context.key:
        use = use_bundles_line(context.out, str(context.key.public))
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
    if environment.needs_probe and jobs and not context.check:
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


def _provenance(spec: Path) -> dict[str, str]:
    """Return, for people, which spec this is, and the commit that a CI system names."""
    commit = os.environ.get("GITHUB_SHA") or os.environ.get("CI_COMMIT_SHA")
    return {"spec": spec.name, **({"commit": commit[:64]} if commit else {})}


@contextmanager
def _progress(jobs: Sequence[Job]) -> Iterator[OnStep]:
    """Show a live line for each target on a terminal, and else a plain line for each step; both on stderr."""
    if sys.stderr.isatty():
        with _live(jobs) as show_step:
            yield show_step
        return
    begin, lock = time.monotonic(), threading.Lock()

    def print_step(job: Job, step: str) -> None:
        with lock:
            _echo(f"[{time.monotonic() - begin:6.1f} s] {job.target}: {step}", err=True)

    yield print_step


@contextmanager
def _live(jobs: Sequence[Job]) -> Iterator[OnStep]:
    """Show a live line for each target."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[step]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        rows = {job.target: progress.add_task(job.target, start=False, total=1, step="") for job in jobs}

        def show_step(job: Job, step: str) -> None:
            progress.start_task(rows[job.target])
            done = step in ("warm", "fresh", "cold", "failed", "cancelled")
            progress.update(rows[job.target], step=step, completed=int(done))

        yield show_step


def _echo(text: str, *, err: bool = False) -> None:
    typer.echo(_printable_lines(text), err=err)


def _printable_lines(text: str) -> str:
    """Return text without what a terminal obeys beside the end of a line: parts of it come from models."""
    return "\n".join(map(printable, text.split("\n")))


def _print(head: ReportHead, outcomes: Sequence[Outcome]) -> None:
    from cachesvc.warm.report import render as reports

    if not sys.stdout.isatty():
        for line in reports.lines(head, outcomes):
            _echo(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table(box=None, pad_edge=False)
    for column in reports.TERMINAL_COLUMNS:
        table.add_column(column, justify="left" if column in ("target", "status") else "right")
    for line in reports.head_lines(head):
        _echo(line)
    for outcome in filter(reports.is_measured, outcomes):
        cells = reports.cells(outcome)
        style = "green" if outcome.good else "red"
        row = [
            Text(cells[column], style if column == "status" else "") for column in reports.TERMINAL_COLUMNS
        ]
        table.add_row(*row)
    if table.rows:
        console.print(table)
    for outcome in outcomes:
        if not reports.is_measured(outcome):
            console.print(Text(f"{outcome.target}: {outcome.status}", "" if outcome.good else "red"))
        for line in reports.details(outcome):
            text = _printable_lines(f"{outcome.target}: {line}")
            console.print(Text(text, "" if outcome.good else "red"))
    for line in reports.tail_lines(head, outcomes):
        console.print(Text(_printable_lines(line), "bold"), soft_wrap=True)


def _print_traces(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.trace:
            _echo(f"--- {outcome.target}\n{outcome.trace}", err=True)


def _write(path: Path, text: str) -> None:
    if path == STDOUT:
        _echo(text.rstrip("\n"))
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise StorageFull(f"--report {path}: {error.strerror or error}") from None
