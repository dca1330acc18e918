"""``cachesvc warm-report``: show what `warm --json` reported, of one run or of several as one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, printable

from . import app
from .warm_output import STDOUT, printable_lines, write

if TYPE_CHECKING:
    from cachesvc.warm.ci.annotations import Annotation
    from cachesvc.warm.report.merged import MergedReport

EPILOG = (
    "Exit status: of one report, that of its run; of several, 0 if all targets are warm everywhere and every "
    "runner reported, else 9. A comment that cannot be written changes nothing."
)


@app.command("warm-report", epilog=EPILOG)
def warm_report(
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT", help="What warm --json printed, or a folder of *.json.")
    ],
    runner: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="NAME.json must be among the reports; may be given often."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the report as Markdown; - is stdout, without the text.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout.")] = False,
    junit: Annotated[
        Path | None, typer.Option(help="Write the targets as tests in the form of JUnit (XML).")
    ] = None,
    code_quality: Annotated[
        Path | None, typer.Option(help="Write what is not warm as a Code Quality report of GitLab (JSON).")
    ] = None,
    github: Annotated[
        bool,
        typer.Option(
            "--github", help="Print annotations for GitHub Actions; write its job summary and step outputs."
        ),
    ] = False,
    comment: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Keep the report in a comment of this job's pull request, one for each KEY (GITHUB_TOKEN).",
        ),
    ] = None,
) -> None:
    """Show reports of warm, of one run or of several as one, in the forms that CI systems read."""
    if as_json + github + (report == STDOUT) > 1:
        raise InvalidRequest("--json, --github and --report - all write to stdout", "drop all but one")
    try:
        _show(reports, runner or [], report, as_json, junit, code_quality, github, comment)
    except CacheSvcError as error:
        if github:
            from cachesvc.warm.ci.annotations import Annotation

            _annotate([Annotation("error", "cachesvc warm-report", str(error))])
        raise


def _show(
    places: list[Path],
    runners: list[str],
    report: Path | None,
    as_json: bool,
    junit: Path | None,
    code_quality: Path | None,
    github: bool,
    comment: str | None,
) -> None:
    from cachesvc.warm.ci.annotations import annotate
    from cachesvc.warm.ci.code_quality import code_quality as findings
    from cachesvc.warm.ci.junit import junit as junit_text
    from cachesvc.warm.report.merged import merge_reports

    merged = merge_reports(places, runners)
    repository = Path(os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR") or ".")
    listed = annotate(merged, repository)
    if report and report != STDOUT:
        write("--report", report, merged.markdown())
    if junit:
        write("--junit", junit, junit_text(merged))
    if code_quality:
        write("--code-quality", code_quality, json.dumps(findings(listed), indent=1))
    if as_json:
        typer.echo(json.dumps(merged.document(), indent=1))
    elif report == STDOUT:
        typer.echo(printable_lines(merged.markdown().rstrip("\n")))
    elif github:
        _tell_github(merged, listed)
    else:
        typer.echo(printable_lines(merged.text()))
    if comment is not None:
        _comment(comment, merged, github)
    raise typer.Exit(merged.exit_status)


def _tell_github(merged: MergedReport, listed: list[Annotation]) -> None:
    """Print the report and its annotations, and write the files that the runner named."""
    from cachesvc.warm.ci import github as form

    typer.echo(form.unobeyed(printable_lines(merged.text())))
    _annotate(listed)
    if path := os.environ.get("GITHUB_OUTPUT"):
        form.write_outputs(Path(path), merged.outputs())
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        form.write_summary(Path(path), merged.markdown(), merged.short_markdown())


def _comment(key: str, merged: MergedReport, github: bool) -> None:
    """Write the comment. What is missing for it is a warning: the report is elsewhere too."""
    from cachesvc.warm.ci.annotations import Annotation
    from cachesvc.warm.ci.github import fitting
    from cachesvc.warm.ci.pull_request import MAX_COMMENT_BYTES, PullRequest

    try:
        pull = PullRequest.of_job(os.environ, os.environ.get("GITHUB_TOKEN", ""))
        if pull is None:
            typer.echo("no comment: this job runs for no pull request", err=True)
            return
        text = fitting(merged.markdown(), merged.short_markdown(), MAX_COMMENT_BYTES)
        address = pull.write_comment(key, text + _link())
        typer.echo(f"comment: {printable(address)}", err=True)
    except CacheSvcError as error:
        if github:
            _annotate([Annotation("warning", "cachesvc warm-report", f"no comment: {error}")])
        else:
            typer.echo(f"warning: no comment: {error}", err=True)


def _link() -> str:
    """Return a last line that leads to the run of this job."""
    from cachesvc.warm.report.render import escape

    server, run = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_RUN_ID", "")
    commit = os.environ.get("GITHUB_SHA", "")[:12]
    if not server or not run.isdigit():
        return ""
    address = f"{server}/{os.environ.get('GITHUB_REPOSITORY', '')}/actions/runs/{run}"
    return f"\n[This run]({address})" + (f", of {escape(commit)}" if commit else "") + "\n"


def _annotate(listed: list[Annotation]) -> None:
    from cachesvc.warm.ci.github import annotation_lines

    for line in annotation_lines(listed):
        typer.echo(line)
