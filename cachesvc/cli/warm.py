"""``cachesvc warm``: compile what a spec declares, prove it, publish it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc_client.environment.variables import obsolete_line
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Name, Tag

from . import app
from .lifetime import parse_lifetime
from .warm_access import hide_from_other_processes, take_job, take_key, with_registry
from .warm_output import STDOUT, echo, print_report, print_traces, write
from .warm_run import find_missing, run_jobs

if TYPE_CHECKING:
    from cachesvc.warm.job_token import JobTokenSource
    from cachesvc.warm.spec.plan import Job

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
        echo(f"warning: {line}", err=True)
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
    outcomes, head = run_jobs(
        jobs,
        name,
        spec,
        task="check" if check else "force" if force else "build",
        workers=workers,
        out=out,
        key=key,
        lifetime=lifetime,
        job=job,
        days=days if missing else None,
        for_gpu=for_gpu,
    )
    if report:
        write("--report", report, reports.markdown(head, outcomes))
    if as_json:
        typer.echo(json.dumps(reports.document(head, outcomes), indent=1))
    elif report != STDOUT:
        print_report(head, outcomes)
    if verbose:
        print_traces(outcomes)
    elif any(outcome.trace for outcome in outcomes):
        echo("--verbose shows the traceback", err=True)
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


def _merge(
    folder: Path, name: Name, jobs: Sequence[Job], report: Path | None, as_json: bool, runners: Sequence[str]
) -> None:
    """Show the reports of several environments as one; end with its status."""
    from cachesvc.warm.report.merged import merge_environments

    matrix = merge_environments(folder, str(name), [str(job.label) for job in jobs], runners)
    if report:
        write("--report", report, matrix.markdown())
    if as_json:
        typer.echo(json.dumps(matrix.document(), indent=1))
    elif report != STDOUT:
        echo(matrix.text())
    raise typer.Exit(matrix.exit_status)


def _print_missing(
    name: Name, jobs: Sequence[Job], job: JobTokenSource | None, days: int, as_json: bool
) -> None:
    """Print what services wanted, and what of it would be built here. Needs no signing key."""
    from cachesvc.warm.context import WarmContext
    from cachesvc.warm.launcher import Launcher
    from cachesvc_client.config.settings import Config

    config = Config.read()
    with ExitStack() as stack:
        context = WarmContext(name, Launcher(), lambda _job, _step: None, lane=config.lane, task="check")
        found = find_missing(with_registry(context, config, job, stack), jobs, days)
    if as_json:
        typer.echo(json.dumps(found.document(name), indent=1))
        return
    for line in found.lines(name):
        echo(line)


def _print_plan(name: Name, jobs: Sequence[Job], as_json: bool) -> None:
    from cachesvc.warm.report import render as reports
    from cachesvc_client.wire.codec import plain

    if as_json:
        document = {"format": reports.PLAN_FORMAT, "name": str(name), "rows": plain(list(jobs))}
        typer.echo(json.dumps(document, indent=1))
        return
    typer.echo(f"{name}:")
    for line in reports.plan_lines(jobs):
        echo(f"  {line}")
