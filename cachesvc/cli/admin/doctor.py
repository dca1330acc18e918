"""``cachesvc admin doctor``."""

from __future__ import annotations

import typer

from cachesvc.console.output import Apply, AsJson, show_plan
from cachesvc_client.console.listing import Columns
from cachesvc_client.wire.errors import InvalidRequest

from . import admin

_PLAN: Columns = {
    "check": lambda row: row.check.replace("_", " "),
    "what the store promises": lambda row: row.promise,
}
_VERDICTS: Columns = {
    "check": lambda row: row.check.replace("_", " "),
    "verdict": lambda row: row.problem or "ok",
}


@admin.command("doctor")
def doctor(context: typer.Context, apply: Apply = False, as_json: AsJson = False) -> None:
    """Check that the bucket or folder of the settings does what a registry needs of it; --apply runs the
    checks, which write about 60 MB below contract/ and remove it. Needs --local.

    Exit status 1 if the store breaks a promise.
    """
    if not context.obj.local:
        raise InvalidRequest("doctor works on the store itself", "cachesvc admin --local doctor")
    from cachesvc.blobs import testing
    from cachesvc.bootstrap import open_store, require_registry
    from cachesvc.settings import read_settings

    settings = read_settings(context.obj.config, data=context.obj.data)
    require_registry(settings, store=True)
    where = f"folder {settings.data}"
    if settings.packs_elsewhere:
        kinds = {settings.bucket: "bucket", settings.oci_repository: "repository"}
        where = f"{kinds.get(settings.packs_elsewhere, 'store')} {settings.packs_elsewhere}"
    with open_store(settings) as (store, links):
        rows = list(testing.judge(store, links)) if apply else testing.promises(links)
    broken = sum(bool(row.problem) for row in rows)
    summary = f"run {len(rows)} checks in {where}"
    if apply:
        summary = f"{where}: {len(rows)} checks, {broken} failed"
    show_plan(rows, _VERDICTS if apply else _PLAN, applied=apply, as_json=as_json, summary=summary)
    if broken:
        raise typer.Exit(1)
