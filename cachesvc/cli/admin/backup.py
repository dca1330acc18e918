"""``cachesvc admin backup | restore``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_line, show_plan
from cachesvc_client.console.documents import utc_text
from cachesvc_client.console.listing import Columns
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.text import count_text

from ..arguments import parse_option
from . import admin

_PARTS: Columns = {
    "what": lambda row: row.part,
    "count": lambda row: row.count,
    "size": lambda row: bytes_text(row.bytes),
}


@admin.command("backup")
def backup(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave out the private keys of the data folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a backup of the registry, while it serves: the index as of one moment, the packs that it names,
    and the private keys of the data folder. Needs --local.

    Keep it as you keep the registry: it has private keys, and a hash of each token's secret, so that tokens
    go on working. Sessions of the web page and uploads under way are not in it. Keep the digest that is
    printed somewhere else: restore asks for it, and so takes no backup that somebody wrote in or exchanged.
    """
    _require_local(context, "backup")
    from cachesvc.bootstrap import key_files, open_running, require_registry
    from cachesvc.registry.upkeep.backup import parts_of, write_backup
    from cachesvc.settings import read_settings

    settings = read_settings(context.obj.config, data=context.obj.data)
    require_registry(settings)
    keys = {} if without_keys else key_files(settings)
    with open_running(settings) as (index, blobs):
        summary = write_backup(index, blobs, folder, keys)
    parts = parts_of(summary)
    held = f"the private keys {', '.join(summary.keys)}" if summary.keys else "no private key"
    text = (
        f"{count_text(summary.tables['revisions'], 'revision')} and {held} in {folder}, "
        f"{bytes_text(sum(part.bytes for part in parts))}"
    )
    more = {
        "digest": summary.digest,
        "created": utc_text(summary.created),
        "schema": summary.schema,
        "keys": summary.keys,
    }
    show_plan(parts, _PARTS, applied=True, as_json=as_json, summary=text, more=more)
    if not as_json:
        show_line(f"digest: {summary.digest}")


@admin.command("restore")
def restore(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="What backup wrote.")],
    digest: Annotated[str, typer.Option(help="What backup printed. --apply needs it.")] = "",
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty registry, of the same kind of backends or another. All of it is verified
    first. Needs --local, and --data or --config of the new registry.

    What was revoked after the backup is valid again: revoke it once more.
    """
    _require_local(context, "restore")
    from cachesvc.bootstrap import has_store, key_path, knows_schema, open_empty, require_empty
    from cachesvc.registry.upkeep.backup import (
        check_store_empty,
        parts_of,
        read_backup,
        restore_backup,
    )
    from cachesvc.settings import read_settings

    settings = read_settings(context.obj.config, data=context.obj.data)
    if apply and not digest:
        raise InvalidRequest(
            "restore --apply needs --digest: which backup it is", "the digest that backup printed"
        )
    named = parse_option(lambda: Digest(digest), "--digest") if digest else None
    summary = read_backup(folder, knows_schema, named)
    left: tuple[str, ...] = ()
    require_empty(settings)
    if apply or has_store(settings):
        with open_empty(settings) as (open_index, blobs):
            check_store_empty(folder, blobs)
            if apply:
                places = partial(key_path, settings)
                left = restore_backup(folder, summary, blobs, open_index=open_index, key_path=places)
    text = f"restore {count_text(summary.tables.get('revisions', 0), 'revision')} of {folder}"
    more: dict[str, object] = {"digest": summary.digest, "created": utc_text(summary.created)}
    more |= {"schema": summary.schema, "keys": summary.keys}
    show_plan(parts_of(summary), _PARTS, applied=apply, as_json=as_json, summary=text, more=more)
    if left and not as_json:
        show_line(f"not restored, since the settings hold such keys here: {', '.join(left)}", err=True)


def _require_local(context: typer.Context, command: str) -> None:
    if not context.obj.local:
        raise InvalidRequest(
            f"{command} works on the database and the store themselves", f"cachesvc admin --local {command}"
        )
