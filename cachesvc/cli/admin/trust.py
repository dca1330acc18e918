"""``cachesvc admin trust``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from cachesvc_client.wire.errors import NotFound

from . import admin
from .connection import connect_over_http
from .output import AsJson, show_table, time_text

if TYPE_CHECKING:
    from cachesvc_client.trust_root.metadata import Targets
    from cachesvc_client.trust_root.updater import TrustMetadata

trust = typer.Typer(no_args_is_help=True, help="The signed metadata that say whose signatures count.")
admin.add_typer(trust, name="trust")


@dataclass(frozen=True, slots=True)
class TrustRow:
    """Describes a role of the trust metadata. ``threshold``: how many of ``keys`` must sign; 0 if none
    counts. ``expires``: seconds of UTC; ``None`` for a role that another file defines."""

    role: str
    paths: tuple[str, ...]
    keys: tuple[str, ...]
    threshold: int
    version: int | None = None
    expires: int | None = None


_TRUST = {
    "role": lambda row: row.role,
    "signs": lambda row: " ".join(row.paths),
    "keys": lambda row: " ".join(key[:16] for key in row.keys) or "none",
    "must sign": lambda row: row.threshold or "",
    "version": lambda row: row.version or "",
    "expires": lambda row: time_text(row.expires),
}


@trust.command("show")
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Verify the registry's trust metadata from the pinned root, and show the keys of each role."""
    from cachesvc_client.trust_root.registry_metadata import read_pinned, verify_first

    config, remote = connect_over_http(context)
    with remote:
        pinned = read_pinned(config.trust_root) if config.trust_root is not None else None
        verified = verify_first(pinned, remote)
    if verified is None:
        raise NotFound(
            f"{remote.url} has no trust metadata", "a registry with its index in a folder makes them"
        )
    show_table([*_top_roles(verified[1]), *_signers(verified[1].targets)], _TRUST, as_json)
    if config.trust_root is None:
        typer.echo("not verified: no root is pinned (cachesvc login pins it)", err=True)


def _top_roles(metadata: TrustMetadata) -> list[TrustRow]:
    files = {
        "root": metadata.root.common,
        "targets": metadata.targets.common,
        "snapshot": metadata.snapshot.common,
        "timestamp": metadata.timestamp.common,
    }
    roles = metadata.root.roles
    return [
        TrustRow(name, (), roles[name].keyids, roles[name].threshold, common.version, common.expires)
        for name, common in files.items()
    ]


def _signers(targets: Targets) -> list[TrustRow]:
    """Returns a row for each delegation, with the ids that envelopes and messages have of its keys."""
    rows = []
    for delegation in targets.delegations:
        keys = (targets.keys[keyid].signer for keyid in delegation.role.keyids if keyid in targets.keys)
        signers = tuple(key.keyid for key in keys if key is not None)
        rows.append(TrustRow(delegation.name, delegation.paths, signers, delegation.role.threshold))
    revoked = tuple(one.key.keyid for one in targets.revoked)
    return [*rows, *([TrustRow("revoked", (), revoked, 0)] if revoked else [])]
