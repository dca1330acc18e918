"""Run the command line. Each command has its own file and registers itself with ``app.command()``."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import sys
from typing import Annotated, Any

import typer

import cachesvc
from cachesvc_client.console.answers import report_error, wants_json
from cachesvc_client.console.documents import error_document
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest
from cachesvc_client.wire.suggestion import did_you_mean

from .group import Group

app = typer.Typer(
    name="cachesvc",
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile once, in CI; every process after that starts warm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COMMANDS = {
    "quickstart": ("quickstart",),
    "init": ("init",),
    "serve": ("serve",),
    "warm": ("warm",),
    "warm_report": ("warm-report",),
    "describe_gpu": ("describe-gpu",),
    "login": ("login", "logout", "whoami"),
    "client": ("run", "doctor", "explain", "environment", "pull", "stats", "cache"),
    "reader": ("ls", "search", "show", "misses"),
    "coverage": ("coverage",),
    "bundles": ("push", "verify", "cosign", "keygen"),
    "oci": ("oci",),
    "node": ("node",),
    "admin": ("admin",),
}
"""Modules of this package, in the order of the help, with the commands that each registers."""


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"cachesvc {cachesvc.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Compile once, in CI; every process after that starts warm."""
    del version


def main() -> None:
    """Run the command; a :class:`CacheSvcError` becomes one line on stderr and its ``exit_status``. With
    ``--json`` that line is JSON."""
    # The end of Python collects all objects, which takes up to a second here and gives nobody anything.
    atexit.register(gc.freeze)
    try:
        for module in needed_modules(sys.argv[1] if len(sys.argv) > 1 else ""):
            importlib.import_module(f"{__name__}.{module}")
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        sys.exit(_run())
    except CacheSvcError as error:
        report_error(error, sys.argv)
        if sys.argv[1:2] == ["warm"] and wants_json(sys.argv):
            # CI keeps what `warm` prints for `warm-report`, which shows why a run has no targets.
            print(json.dumps(error_document(error)))
        sys.exit(error.exit_status)


def _run() -> int:
    """Run the command and return its exit status. Raise ``InvalidRequest`` for a mistake in the command line,
    which Typer would print as several lines."""
    try:
        status = app(prog_name="cachesvc", standalone_mode=False)
    except Exception as error:
        # Typer has its own copy of Click, or uses the installed one, by version: no class names both.
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return InvalidRequest.exit_status
        if type(error).__name__ == "Abort":  # the end of the input where a question was asked
            return 130
        if hasattr(error, "format_message"):
            raise _mistake(error) from None
        raise
    return status if isinstance(status, int) else 0


def _mistake(error: Any) -> InvalidRequest:
    """Return a mistake in the command line, which Click found, with the nearest word of that command."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "cachesvc"
    message, hint = str(error.format_message()), f"see: {path} --help"
    if context and hasattr(error, "possibilities") and hasattr(error, "option_name"):
        message = f"No such option: {error.option_name}"
        known = [name for parameter in context.command.params for name in parameter.opts]
        hint = did_you_mean(error.option_name, known, hint)
    message = message.rstrip(".").replace("Value error, ", "")
    return InvalidRequest(f"{path}: {message}", hint)


def needed_modules(word: str) -> tuple[str, ...]:
    """Returns the modules that a command line with this first word needs: one for a command, all for the help
    or a mistake. The other modules would take up to half of the time of a short command."""
    return tuple(module for module, names in COMMANDS.items() if word in names) or tuple(COMMANDS)
