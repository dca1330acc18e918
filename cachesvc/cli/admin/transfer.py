"""``cachesvc admin export | import``: carry the heads of a namespace to another registry, in one file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_line, show_plan
from cachesvc.domain.offers import OfferFacts, withheld
from cachesvc.queries.registry_calls import all_pages
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.entries import EntryPage, RevisionRecord
from cachesvc.schema.namespaces import NamespaceRecord
from cachesvc_client.bundle.check import Policy
from cachesvc_client.bundle.seal import PublicKey, TrustedKey, key_text
from cachesvc_client.console.listing import Columns, digest_text, name_text
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.publication.publish_bundle import publish_signed
from cachesvc_client.publication.signer import signer_of
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, HeadConflict, NotFound, Untrusted
from cachesvc_client.wire.names import LATEST, Name, Namespace
from cachesvc_client.wire.requests.protocol import EntrySummary
from cachesvc_client.wire.text import count_text

from ..arguments import parse_namespace, parse_option
from . import admin
from .connection import connect_over_http
from .downloads import acceptance_of, download_bundle, download_envelope
from .export_file import read_export, write_export

if TYPE_CHECKING:
    from cachesvc_client.http.registry import Remote


@dataclass(frozen=True, slots=True)
class Transferred:
    """A revision in an export, and what an import does with it.

    ``state``: exported, new, newer, same, or kept (the registry has a newer revision).
    """

    name: str
    target: str
    revision: Digest
    bytes: int
    signer: str
    state: str = ""


_COLUMNS: Columns = {
    "name": lambda row: row.name,
    "target": lambda row: row.target,
    "revision": lambda row: digest_text(row.revision),
    "size": lambda row: bytes_text(row.bytes),
    "signer": lambda row: key_text(row.signer),
    "": lambda row: row.state,
}


@dataclass(frozen=True, slots=True)
class _Offer:
    """Says which revisions of a namespace services would accept.

    ``signers``: keys that the registry accepts there. ``require``: what the registry requires of builders.
    """

    signers: frozenset[str]
    require: str | None
    policy: Policy | None

    @classmethod
    def of(cls, remote: Remote, namespace: Namespace, policy: Policy | None) -> _Offer:
        """Ask the registry. It shows the requirement to administrators of the namespace only."""
        keys = remote.rows("/v1/signers", SignerRecord)
        signers = frozenset(row.key for row in keys if row.namespace in ("*", namespace))
        require: str | None = None
        with suppress(Forbidden):
            rows = remote.rows("/v1/namespaces", NamespaceRecord)
            require = next((row.require for row in rows if row.namespace == namespace), None)
        return cls(signers, require, policy)

    def refusal(self, row: RevisionRecord, verified: Accepted) -> str:
        """Return why services do not get a revision, or would refuse it; nothing if they accept it."""
        facts = OfferFacts(
            revision=row.revision,
            lane=row.lane,
            quarantined=row.quarantined,
            quarantine_why=row.why,
            builder=row.builder,
            source_ref=row.source_ref,
            require=self.require,
            signer_removed=row.signer not in self.signers,
            revoked_why=row.signer_revoked,
            withdrawn_ancestor=row.withdrawn_ancestor,
        )
        difference = withheld(facts)
        if difference is not None:
            return difference.mine
        try:
            Acceptance([verified.signer], self.policy).accept_signed(verified.envelope, None)
        except Untrusted as error:
            return error.message
        return ""


@admin.command("export")
def export(
    context: typer.Context,
    where: Annotated[str, typer.Argument(help="A namespace, namespace/name, or namespace/name:tag.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    all_revisions: Annotated[
        bool,
        typer.Option(
            "--withheld", help="Also what the registry offers to nobody, and what the pinned root refuses."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the heads of a namespace's trunk as one file, for a registry that cannot be reached from here.
    What is quarantined, revoked or withheld otherwise is left out, with the reason."""
    name = parse_option(lambda: Name.parse(where)) if "/" in where else None
    namespace = name.namespace if name else parse_namespace(where)
    query = {
        "namespace": namespace,
        "name": name and name.name,
        "tag": name.tag if name and (name.tag != LATEST or ":" in where) else None,
        "trunk": True,
    }
    config, remote = connect_over_http(context)
    rows: list[Transferred] = []
    with remote, write_export(out, namespace) as writer:
        offer = None if all_revisions else _Offer.of(remote, namespace, acceptance_of(config, remote).policy)
        for entry in all_pages(remote, "/v1/entries", EntryPage, None, **query):
            row = remote.call("GET", f"/v1/revisions/{entry.revision}", None, RevisionRecord)
            # An export signs nothing, and an import decides by its own keys: any signer will do.
            signers = [parse_option(partial(PublicKey, row.signer))]
            verified = download_envelope(remote, entry.revision, Acceptance(signers))
            reason = offer.refusal(row, verified) if offer is not None else ""
            if reason:
                show_line(f"left out: {name_text(row)}: {reason}", err=True)
                continue
            with download_bundle(remote, verified) as path:
                writer.add(path, verified.revision)
            rows.append(_row(verified, "exported"))
        if not rows:
            raise NotFound(f"nothing is offered under {where}", "see: cachesvc admin entries list")
    summary = f"{count_text(len(rows), 'revision')} of {where} in {out}, {bytes_text(out.stat().st_size)}"
    show_plan(rows, _COLUMNS, applied=True, as_json=as_json, summary=summary)


@admin.command("import")
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What export wrote.")],
    trust: Annotated[
        list[str] | None, typer.Option(help="Accept this signer too (team=ed25519:…). May be repeated.")
    ] = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Publish an export as it was signed. All of it is verified before anything is sent; what the registry
    has newer is kept."""
    config, remote = connect_over_http(context)
    keys = parse_option(lambda: [TrustedKey(key) for key in trust or ()], "--trust")
    signer = signer_of(config)
    with remote:
        accepted = acceptance_of(config, remote).trusting(*keys, *([signer.public] if signer else []))
        rows = [_compare(remote, verified) for _, verified in read_export(file, accepted)]
        if apply:
            rows = [_publish(remote, path, one, accepted) for path, one in read_export(file, accepted)]
    moved = sum(row.state in ("new", "newer") for row in rows)
    summary = f"publish {moved} of {count_text(len(rows), 'revision')}"
    show_plan(rows, _COLUMNS, applied=apply, as_json=as_json, summary=summary)


def _row(verified: Accepted, state: str) -> Transferred:
    statement, pack = verified.manifest.statement, verified.manifest.pack
    name, target = str(statement.full_name), str(statement.target)
    return Transferred(name, target, verified.revision, pack.size, verified.signer, state)


def _compare(remote: Remote, verified: Accepted) -> Transferred:
    """Says what an import does with a revision, by the head that the registry has."""
    statement = verified.manifest.statement
    try:
        head: EntrySummary | None = remote.entry(verified.manifest.entry)
    except NotFound:
        head = None
    if head is None:
        return _row(verified, "new")
    if head.revision == verified.revision:
        return _row(verified, "same")
    return _row(verified, "newer" if head.sequence < statement.sequence else "kept")


def _publish(remote: Remote, path: Path, verified: Accepted, accepted: Acceptance) -> Transferred:
    row = _compare(remote, verified)
    if row.state in ("new", "newer"):
        try:
            publish_signed(remote, path, accepted, "import")
        except HeadConflict:  # somebody published meanwhile
            return replace(row, state="kept")
    return row
