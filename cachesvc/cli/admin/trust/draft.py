"""``cachesvc admin trust sign`` and ``put``: a draft goes from holder to holder, and then to the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_plan
from cachesvc_client.wire.errors import InvalidRequest

from ..connection import connect
from .offline import OutFolder, RootKeys, TargetsKeys, draft_rows, finish, private_keys, write_draft
from .show import TRUST_COLUMNS, trust

if TYPE_CHECKING:
    from cachesvc.tuf.draft import Draft

DraftArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Draft that --draft of a command wrote.")]


@trust.command("sign")
def sign(
    file: DraftArgument,
    root_key: RootKeys = None,
    targets_key: TargetsKeys = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Add signatures to a draft. Works without a network: read what the draft says before you sign it."""
    draft = _read(file)
    if not (root_key or targets_key):
        raise InvalidRequest("no key to sign with", "--root-key FILE or --targets-key FILE")
    draft = draft.sign_all(private_keys(root_key), "root")
    draft = draft.sign_all(private_keys(targets_key), "targets")
    if apply:
        write_draft(draft, file)
    counts = [str(count) for count in draft.counts()]
    summary = f"sign {file}, a draft for {draft.registry}"
    if draft.is_complete:
        summary += f"; no signature is missing: cachesvc admin trust put {file}"
    show_plan(draft_rows(draft), TRUST_COLUMNS, applied=apply, as_json=as_json, summary=summary)
    if not as_json:
        typer.echo("\n".join(counts))


@trust.command("put")
def put(
    context: typer.Context,
    file: DraftArgument,
    out: OutFolder = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Send a draft that has all its signatures to the registry, which checks it as clients do."""
    draft = _read(file)
    with connect(context) as registry:
        summary = f"send {file}, a draft for {draft.registry}"
        finish(registry, draft, summary, apply=apply, as_json=as_json, out=out)


def _read(path: Path) -> Draft:
    """Return the draft in a file. Raise ``InvalidRequest``."""
    from cachesvc.tuf.draft import MAX_DRAFT_BYTES, Draft

    try:
        with path.open("rb") as file:
            data = file.read(MAX_DRAFT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"draft {path}: {error.strerror or error}") from None
    return Draft.parse(data, f"draft {path}")
