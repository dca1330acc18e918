"""What the commands for offline keys share: read key files, read the present metadata, and write a draft or
send it to the registry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import show_plan
from cachesvc.schema.trust_changes import RootRequest, TargetsRequest, TrustState
from cachesvc_client.atomic import replacing
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.queries.names import Connection
from cachesvc_client.queries.trust import node_store
from cachesvc_client.trust_root.metadata import read_root, read_targets
from cachesvc_client.trust_root.registry_metadata import read_root_to_sign, read_to_sign
from cachesvc_client.trust_root.signed import SignedFile
from cachesvc_client.trust_root.updater import MAX_METADATA_BYTES
from cachesvc_client.wire.errors import InvalidRequest, StorageFull

from ...arguments import parse_option
from .show import TRUST_COLUMNS, TrustRow, root_rows, target_rows

if TYPE_CHECKING:
    from cachesvc.tuf.draft import Draft
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote

RootKeys = Annotated[
    list[str] | None,
    typer.Option("--root-key", help="Key file of a holder of the root, or ed25519:…; repeat it."),
]
TargetsKeys = Annotated[
    list[str] | None,
    typer.Option("--targets-key", help="Key file of a holder of the targets, or ed25519:…; repeat it."),
]
DraftFile = Annotated[
    Path | None,
    typer.Option("--draft", help="Write a draft for other holders, and send nothing: see trust sign."),
]
OutFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder for root.json and targets.json, as they were sent.")
]


@dataclass(frozen=True, slots=True)
class RoleKey:
    """Holds one key of a role. ``public``: ``None`` for a file that is to be made. ``private``: ``None`` for
    a key that another holder has."""

    text: str
    public: PublicKey | None
    private: SigningKey | None


def read_keys(texts: Sequence[str] | None, *, make: bool = False) -> list[RoleKey]:
    """Return the keys of key files and of public texts. ``make``: make the files that do not exist; else
    their keys have no public part yet.

    Raise ``InvalidRequest`` for what is neither, and for a key that is given twice.
    """
    keys = []
    for text in texts or []:
        if text.startswith("ed25519:"):
            keys.append(RoleKey(text, parse_option(lambda text=text: PublicKey(text)), None))  # type: ignore[misc]
            continue
        path = Path(text).expanduser()
        if not path.exists() and not make:
            keys.append(RoleKey(text, None, None))
            continue
        if not path.exists():
            SigningKey.generate().save(path)
        private = SigningKey.load(path)
        keys.append(RoleKey(text, private.public, private))
    public = [key.public for key in keys if key.public is not None]
    if len(set(public)) < len(public) or len(set(texts or [])) < len(texts or []):
        raise InvalidRequest("a key is given twice", "each holder has a key of their own")
    return keys


def private_keys(texts: Sequence[str] | None) -> list[SigningKey]:
    """Return the keys of key files that exist. Raise ``InvalidRequest`` for others."""
    return [SigningKey.load(Path(text).expanduser()) for text in texts or []]


def require_root_pinned(config: Config) -> Path:
    """Return the path of the pinned root. Raise ``InvalidRequest`` without one: an operator would sign what
    anybody may have put there."""
    if config.trust_root is None:
        raise InvalidRequest(
            "no root is pinned, so the present metadata cannot be verified before you sign the next ones",
            "cachesvc login URL --root FILE, or set CACHESVC_TRUST_ROOT",
        )
    return config.trust_root


def present_files(config: Config, remote: Remote) -> tuple[bytes, bytes]:
    """Return the present root and targets, verified from the pinned root. Nothing older than what this
    machine has seen passes."""
    store = node_store(config)
    return read_to_sign(require_root_pinned(config), store.trust_folder, remote)


def present_root(config: Config, remote: Remote) -> bytes:
    """Return the present root alone, verified from the pinned root."""
    store = node_store(config)
    return read_root_to_sign(require_root_pinned(config), store.trust_folder, remote)


def rows_of_targets(data: bytes) -> list[TrustRow]:
    """Return what targets say, in rows."""
    return target_rows(read_targets(_parsed(data.decode(), "targets.json")))


def draft_rows(draft: Draft) -> list[TrustRow]:
    """Return what the files of a draft say, in rows."""
    rows: list[TrustRow] = []
    targets = None
    if draft.targets is not None:
        targets = read_targets(_parsed(draft.targets, "targets.json"))
    if draft.root is not None:
        others = {"targets": targets.common} if targets is not None else {}
        rows += root_rows(read_root(_parsed(draft.root, "root.json")), others)
    elif targets is not None and draft.present is not None:
        present = read_root(_parsed(draft.present, "root.json"))
        rows += [row for row in root_rows(present, {"targets": targets.common}) if row.role == "targets"]
    return rows + (target_rows(targets) if targets is not None else [])


def finish(
    registry: Connection,
    draft: Draft,
    summary: str,
    *,
    apply: bool,
    as_json: bool,
    to: Path | None = None,
    out: Path | None = None,
) -> None:
    """Show what a draft says; with ``apply`` write it to a file for other holders, or send it."""
    counts = [str(count) for count in draft.counts()]
    if apply and to is not None:
        write_draft(draft, to)
        summary += f"; the draft is in {to}: each holder runs cachesvc admin trust sign"
    elif apply:
        send(registry, draft)
        if out is not None:
            write_files(draft, out)
    show_plan(draft_rows(draft), TRUST_COLUMNS, applied=apply, as_json=as_json, summary=summary)
    if not as_json:
        typer.echo("\n".join(counts))


def require_signatures(draft: Draft, to: Path | None) -> None:
    """Raise ``InvalidRequest`` if signatures are missing, unless the draft goes to other holders first."""
    if to is not None:
        return
    missing = [str(count) for count in draft.counts() if count.signatures < count.threshold]
    if missing:
        raise InvalidRequest(
            f"signatures are missing: {'; '.join(missing)}",
            "write it with --draft FILE, and let each holder run: cachesvc admin trust sign FILE",
        )


def send(registry: Connection, draft: Draft) -> TrustState:
    """Send the files of a draft to the registry. Raise ``InvalidRequest`` if signatures are missing."""
    require_signatures(draft, None)
    if draft.root is not None:
        return registry.call("PUT", "/v1/trust/root", RootRequest(draft.root, draft.targets), TrustState)
    assert draft.targets is not None
    return registry.call("PUT", "/v1/trust/targets", TargetsRequest(draft.targets), TrustState)


def write_draft(draft: Draft, path: Path) -> None:
    """Write a draft in place of an earlier one. Raise ``StorageFull``."""
    try:
        with replacing(path, 0o644) as file:
            file.write(draft.encode())
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None


def write_files(draft: Draft, folder: Path) -> None:
    """Write the files of a draft into a folder, for services that pin the root from a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("root.json", draft.root), ("targets.json", draft.targets)):
            if text is not None:
                with replacing(folder / name, 0o644) as file:
                    file.write(text.encode())
    except OSError as error:
        raise StorageFull(f"{folder}: cannot be written: {error.strerror or error}") from None


def now() -> int:
    """Return the time in whole seconds of UTC."""
    return int(time.time())


def _parsed(text: str, what: str) -> SignedFile:
    return SignedFile.parse(text.encode(), limit=MAX_METADATA_BYTES, what=what)
