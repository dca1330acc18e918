"""``cachesvc admin tag | revisions rollback``: publish the bytes of a revision again.

A signed statement names its tag and its sequence, and clients hold the registry to both: nobody can move a
tag or a head to other bytes by the database alone. So a tag and a rollback are publications: the same bytes,
signed again with the operator's own key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_plan
from cachesvc.queries.registry_calls import all_pages, complete_digest
from cachesvc.schema.entries import EntryPage, EntryRecord, RevisionRecord
from cachesvc_client.bundle.check import ExpectedStatement
from cachesvc_client.bundle.file import replace_envelope
from cachesvc_client.bundle.seal import Signer
from cachesvc_client.console.listing import Columns, digest_text, moment
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.publication.signer import demand_signer
from cachesvc_client.queries.trust import check_publisher, node_store
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire.compare import ancestor_withdrawn, signer_revoked
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound, Untrusted
from cachesvc_client.wire.manifest.ancestors import in_order, line_of
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Name, Tag
from cachesvc_client.wire.text import count_text

from ..arguments import RevisionId, parse_option
from ..lifetime import parse_lifetime
from . import admin
from .connection import connect_over_http
from .downloads import acceptance_of, download_bundle, download_envelope
from .revisions import revisions

if TYPE_CHECKING:
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote
    from cachesvc_client.node.store import NodeStore

Expires = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Sign that nodes refuse it after this time, such as 90d; else as before."
    ),
]

_LEAST_DIGITS = 12
"""Hex digits of a revision that is to be signed again, at least: as many as listings show. Nobody can make
another revision of a trusted signer that begins with the same 48 bits."""


@dataclass(frozen=True, slots=True)
class Republished:
    """A revision that is signed again under ``name``, over the head ``over``.

    ``signed``: when the revision was signed before, in seconds of UTC.
    """

    name: str
    target: str
    revision: Digest
    signed: int
    bytes: int
    over: Digest | None
    state: str


_COLUMNS: Columns = {
    "name": lambda row: row.name,
    "target": lambda row: row.target,
    "bytes of": lambda row: digest_text(row.revision),
    "signed": lambda row: moment(row.signed),
    "size": lambda row: bytes_text(row.bytes),
    "over": lambda row: digest_text(row.over) or "-",
    "": lambda row: row.state,
}


@admin.command("tag")
def tag(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="namespace/name:tag, whose entries get another tag too.")],
    new: Annotated[str, typer.Argument(metavar="TAG", help="Such as prod.")],
    apply: Apply = False,
    as_json: AsJson = False,
    expires: Expires = None,
) -> None:
    """Publish what is under a name under another tag too, signed with your own key. The trunk only: a lane is
    never promoted, the trunk recompiles."""
    source, target = parse_option(lambda: Name.parse(name)), parse_option(lambda: Tag(new))
    if target == source.tag:
        raise InvalidRequest(f"{source}: that is its tag", "name another")
    config, remote = connect_over_http(context)
    query = {"namespace": source.namespace, "name": source.name, "tag": source.tag, "trunk": True}
    expected = ExpectedStatement(source.namespace, source.name, (source.tag,))
    with remote:
        operator = _Operator.of(config, remote, parse_lifetime(expires))
        entries = all_pages(remote, "/v1/entries", EntryPage, None, **query)
        heads = list(_checked_heads(remote, operator, entries, expected))  # all, before one is signed
        rows = [_republish(remote, operator, verified, target, apply) for verified in heads]
    if not rows:
        raise NotFound(f"nothing is published as {source}", "see: cachesvc admin names list")
    moved = sum(row.state != "the same already" for row in rows)
    summary = f"tag {moved} of {count_text(len(rows), 'entry', 'entries')} of {source} as {target}"
    show_plan(rows, _COLUMNS, applied=apply, as_json=as_json, summary=summary)


@revisions.command("rollback")
def rollback(
    context: typer.Context,
    revision: RevisionId,
    apply: Apply = False,
    as_json: AsJson = False,
    expires: Expires = None,
) -> None:
    """Publish an older revision's bytes over the head of its entry, signed with your own key: clients refuse
    an older sequence. REVISION: its digest, or 12 or more of its first digits."""
    config, remote = connect_over_http(context)
    if len(revision.removeprefix("sha256:")) < _LEAST_DIGITS:
        raise InvalidRequest(
            f"revision: {revision[:80]!r} is too short for what is to be signed",
            f"give {_LEAST_DIGITS} or more of its first digits: cachesvc admin revisions list",
        )
    with remote:
        operator = _Operator.of(config, remote, parse_lifetime(expires))
        key = complete_digest(remote, "revision", revision)
        verified = download_envelope(remote, key, operator.acceptance)
        _refuse_withdrawn(remote, key)
        statement = verified.manifest.statement
        head = _head(remote, verified.manifest.entry)
        if head is not None and head.revision == verified.revision:
            raise InvalidRequest(
                f"revision {digest_text(head.revision)} is the head already", "name an older one"
            )
        row = _republish(remote, operator, verified, statement.tag, apply)
    summary = f"roll {row.name} {row.target} back to the bytes of {digest_text(row.revision)}"
    show_plan([row], _COLUMNS, applied=apply, as_json=as_json, summary=summary)


@dataclass(frozen=True, slots=True)
class _Operator:
    """What signs for the operator, whose signatures the operator accepts, and what this machine has seen.

    ``lifetime``: seconds after its signing at which a revision expires; ``None`` keeps its expiry.
    """

    key: Signer
    acceptance: Acceptance
    store: NodeStore
    lifetime: float | None

    @classmethod
    def of(cls, config: Config, remote: Remote, lifetime: float | None) -> _Operator:
        """Reads what ``config`` names. Raises ``InvalidRequest`` without a signing key."""
        key = demand_signer(config, "no signing key: the bytes are signed again as what they become")
        acceptance = acceptance_of(config, remote).trusting(key.public)
        return cls(key, acceptance, node_store(config), lifetime)


def _checked_heads(
    remote: Remote, operator: _Operator, entries: Iterable[EntryRecord], expected: ExpectedStatement
) -> Iterator[Accepted]:
    """Yields the heads of ``entries``, each checked: signed for ``expected``, not older than what this
    machine has seen, not too old for services, to which a new signature would show it as new, and one for
    each entry. Raises ``Untrusted``, ``Corrupt``."""
    checked: set[Digest] = set()
    for row in entries:
        verified = download_envelope(
            remote, row.revision, operator.acceptance, expected, operator.store.marks
        )
        operator.acceptance.check_build(verified)
        entry = verified.manifest.entry
        _refuse_withdrawn(remote, verified.revision)
        if entry in checked:
            raise Corrupt(
                f"the registry lists entry {digest_text(entry)} twice: only one of its revisions is the head"
            )
        checked.add(entry)
        yield verified


def _republish(remote: Remote, operator: _Operator, verified: Accepted, tag: Tag, apply: bool) -> Republished:
    """Publishes the bytes of a revision under ``tag``, over the entry's head; without ``apply`` only says
    what it would publish."""
    before = verified.manifest.statement
    manifest = _under_tag(verified, tag, operator)
    published = manifest.statement
    check_publisher(operator.acceptance.policy, operator.key.public, published.full_name, published.lane)
    head = _head(remote, manifest.entry)
    if head is not None:
        next_sequence(head.sequence)  # refuses one of the far future in the plan already
    state = "to publish"
    if head is not None and head.pack == manifest.pack.digest:
        state = "the same already"
    elif apply:
        with download_bundle(remote, verified) as path:
            signed_again = path.with_suffix(".again")
            replace_envelope(path, signed_again, operator.key.sign(manifest))
            deed = "rollback" if tag == before.tag else "tag"
            publish_bundle(remote, signed_again, operator.key, deed=deed)
        operator.store.marks.record_sequence(manifest.entry, published.sequence, operator.key.public)
        state = "published"
    return Republished(
        name=f"{published.full_name}" + (f" [{before.lane}]" if before.lane else ""),
        target=str(before.target),
        revision=verified.revision,
        signed=before.sequence // 1000,
        bytes=manifest.pack.size,
        over=head.revision if head else None,
        state=state,
    )


def _refuse_withdrawn(remote: Remote, revision: Digest) -> None:
    """Raises ``Untrusted`` for what a revoked key signed or an operator withdrew: signed again, it would be
    offered again. An operator's own list of trusted keys may still have that key."""
    row = remote.call("GET", f"/v1/revisions/{revision}", None, RevisionRecord)
    if row.signer_revoked is not None:
        why, hint = f"its {signer_revoked(row.signer_revoked)}", "compile it again: cachesvc warm --force"
    elif row.quarantined is not None:
        why, hint = (
            f"is in quarantine: {row.why}",
            f"if it is right: cachesvc admin quarantine release {revision}",
        )
    elif row.withdrawn_ancestor is not None:
        why, hint = ancestor_withdrawn(row.withdrawn_ancestor), "compile it again: cachesvc warm --force"
    else:
        return
    raise Untrusted(f"revision {digest_text(revision)}: {why}", hint)


def _under_tag(verified: Accepted, tag: Tag, operator: _Operator) -> Manifest:
    """Returns the manifest under ``tag``, with a later sequence than any that this machine has seen, and with
    the expiry that the operator wants."""
    manifest, before = verified.manifest, verified.manifest.statement
    provenance = {**manifest.provenance, "bytes_of": f"{before.full_name}@{verified.revision}"}
    ancestors = in_order(line_of(verified))
    statement = replace(before, tag=tag)
    tagged = replace(manifest, statement=statement, provenance=provenance, ancestors=ancestors)
    highest = operator.acceptance.highest_sequence(operator.store.marks, tagged, operator.key.public)
    sequence = next_sequence(max(before.sequence, highest or 0))
    expires = before.expires if operator.lifetime is None else int(time.time() + operator.lifetime)
    return replace(tagged, statement=replace(tagged.statement, sequence=sequence, expires=expires))


def _head(remote: Remote, entry: Digest) -> RevisionRecord | None:
    try:
        rows = remote.rows(f"/v1/entries/{entry}/revisions", RevisionRecord)
    except NotFound:
        return None
    return next((row for row in rows if row.head), None)
