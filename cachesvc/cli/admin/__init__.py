"""``cachesvc admin``: shows and changes a registry over its API, or with ``--local`` in its own database."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from .. import app
from ..group import Group

EPILOG = (
    "Destructive commands print what they would do; --apply does it. Exit status: 0 done, or planned; "
    "1 fsck found damage that is not repaired, or doctor a store that breaks a promise; 2 malformed option, "
    "or refused for what it names (pinned, a head); 3 token unknown, expired or not allowed; 4 there is no "
    "such thing; 5 changed meanwhile; 6 registry, database or disk not available, or over a quota; "
    "7 a signature or digest does not match."
)

admin = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(admin, name="admin", help="Tokens, namespaces, entries, retention, repair.", epilog=EPILOG)


@admin.callback(epilog=EPILOG)
def _admin(
    context: typer.Context,
    local: Annotated[
        bool, typer.Option("--local", help="In the registry's database and store, past the API.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="With --local: the registry's data folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="With --local: the registry's settings (TOML).")] = None,
) -> None:
    """Administer a registry: with the login of the other commands, or CACHESVC_URL and CACHESVC_TOKEN."""
    from .connection import AdminOptions

    context.obj = AdminOptions(local, data, config)


for _module in (
    *("access", "trust.signers", "trust.publishers", "webhooks", "entries", "revisions"),
    *("trust.show", "trust.root", "trust.targets", "trust.draft"),
    *("upkeep", "doctor", "republish", "transfer", "backup"),
):
    importlib.import_module(f"{__name__}.{_module}")
