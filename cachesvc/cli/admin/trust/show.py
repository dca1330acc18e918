"""``cachesvc admin trust``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from cachesvc.console.output import AsJson, show_table
from cachesvc_client.bundle.seal import key_text
from cachesvc_client.console.listing import Columns, moment
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import InvalidRequest, NotFound

from ...group import Group
from .. import admin
from ..connection import connect_over_http
from .state import no_metadata_hint, read_state

if TYPE_CHECKING:
    from cachesvc_client.trust_root.metadata import Common, Root, Targets

TOP_ROLES = ("root", "targets", "snapshot", "timestamp")
"""Names of the roles that a root defines, in the order in which they are shown."""
trust = typer.Typer(
    cls=Group, no_args_is_help=True, help="The signed metadata that say whose signatures count."
)
admin.add_typer(trust, name="trust")


@dataclass(frozen=True, slots=True)
class TrustRow:
    """Describes a role of the trust metadata.

    ``keys``: whole, as ``ed25519:…``. ``threshold``: how many of them must sign; 0 if none counts.
    ``expires``: seconds of UTC; ``None`` for a role that another file defines."""

    role: str
    paths: tuple[str, ...]
    keys: tuple[str, ...]
    threshold: int
    version: int | None = None
    expires: int | None = None


TRUST_COLUMNS: Columns = {
    "role": lambda row: row.role,
    "signs": lambda row: " ".join(row.paths),
    "keys": lambda row: ", ".join(key_text(key) for key in row.keys) or ("none" if row.threshold else ""),
    "must sign": lambda row: row.threshold or "",
    "version": lambda row: row.version or "",
    "expires": lambda row: moment(row.expires),
}


@trust.callback()
def _require_server(context: typer.Context) -> None:
    """Refuse a command that signs where python-tuf is not installed. `show` works without it."""
    if context.invoked_subcommand == "show":
        return
    try:
        importlib.import_module("cachesvc.tuf.files")
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"cachesvc admin trust needs {error.name}", "pip install 'cachesvc[server]'"
        ) from None


@trust.command("show")
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Verify the registry's trust metadata from the pinned root, and show the keys of each role."""
    from cachesvc_client.trust_root.registry_metadata import read_pinned, verify_first

    config, remote = connect_over_http(context)
    with remote:
        pinned = read_pinned(config.trust_root) if config.trust_root is not None else None
        verified = verify_first(pinned, remote)
        state = read_state(remote)
    if verified is None:
        raise NotFound(f"{remote.url} has no trust metadata", no_metadata_hint(state))
    metadata = verified[1]
    others = {
        "targets": metadata.targets.common,
        "snapshot": metadata.snapshot.common,
        "timestamp": metadata.timestamp.common,
    }
    rows = [*root_rows(metadata.root, others), *target_rows(metadata.targets)]
    show_table(rows, TRUST_COLUMNS, as_json)
    if state is not None and not state.signs_online:
        typer.echo(
            "the registry cannot sign snapshot and timestamp anew: the root names another online key than it "
            "has; cachesvc admin trust rotate-online names the present one",
            err=True,
        )
    if config.trust_root is None:
        typer.echo("not verified: no root is pinned (cachesvc login pins it)", err=True)


def root_rows(root: Root, others: Mapping[str, Common]) -> list[TrustRow]:
    """Returns a row for each role of a root, with version and expiry as far as ``others`` has the file."""
    from cachesvc_client.trust_root.metadata import key_texts

    files = {"root": root.common, **others}
    rows = []
    for name in TOP_ROLES:
        role, common = root.roles[name], files.get(name)
        ends = (common.version, common.expires) if common is not None else (None, None)
        rows.append(TrustRow(name, (), key_texts(root.keys, role), role.threshold, *ends))
    return rows


def target_rows(targets: Targets) -> list[TrustRow]:
    """Return a row for each delegation, one for the revoked keys, and one for each age."""
    from cachesvc_client.trust_root.metadata import key_texts

    rows = []
    for delegation in targets.delegations:
        signers = key_texts(targets.keys, delegation.role)
        rows.append(TrustRow(delegation.name, delegation.paths, signers, delegation.role.threshold))
    revoked = tuple(one.key for one in targets.revoked)
    ages = [
        TrustRow("max-age", (f"{place}: {duration_text(age)}",), (), 0) for place, age in targets.ages.items()
    ]
    return [*rows, *([TrustRow("revoked", (), revoked, 0)] if revoked else []), *ages]
