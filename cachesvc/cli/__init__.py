"""Run the command line. Each command has its own file and registers itself with ``app.command()``."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

import cachesvc
from cachesvc_client.wire.errors import CacheSvcError

app = typer.Typer(
    name="cachesvc",
    help="Compile once, in CI; every process after that starts warm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COMMANDS = ("serve", "warm", "client", "admin")
"""Modules of this package that register commands, in the order of the help."""


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
    """Runs the command; a :class:`CacheSvcError` becomes one line on stderr and its ``exit_status``."""
    for command in COMMANDS:
        importlib.import_module(f"{__name__}.{command}")
    try:
        app()
    except CacheSvcError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
