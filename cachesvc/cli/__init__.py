"""The command line. Each command has its own file and registers itself with ``app.command()``."""

from __future__ import annotations

import importlib
import sys

import typer

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


@app.callback()
def root() -> None:
    """Compile once, in CI; every process after that starts warm."""


def main() -> None:
    """Runs the command. A :class:`CacheSvcError` is one line on stderr and its ``exit_status``."""
    for command in COMMANDS:
        importlib.import_module(f"{__name__}.{command}")
    try:
        app()
    except CacheSvcError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
