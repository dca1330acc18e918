"""``cachesvc describe-gpu``: what a machine without this GPU needs to compile for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cachesvc_client.wire.errors import StorageFull

from . import app


@app.command("describe-gpu")
def describe_gpu(
    out: Annotated[
        Path | None, typer.Option(help="Write the description here; without it, it goes to stdout.")
    ] = None,
) -> None:
    """Describe the first GPU that this process sees, for `warm --for-gpu` on a machine without one."""
    from cachesvc.warm.gpuless import description
    from cachesvc_client.wire.codec import plain

    text = json.dumps(plain(description.describe()), indent=1, sort_keys=True) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise StorageFull(f"--out {out}: {error.strerror or error}") from None
