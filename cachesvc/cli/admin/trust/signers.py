"""``cachesvc admin signers``."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from cachesvc.console.columns import SIGNER_COLUMNS
from cachesvc.console.output import (
    Apply,
    AsJson,
    Form,
    Output,
    plan_text,
    print_json,
    show_line,
    show_plan,
    show_record,
    show_table,
)
from cachesvc.queries.registry_calls import path_with_query
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import Revocation, RevocationRequest, RevokedSigner
from cachesvc_client.bundle.seal import PublicKey, key_text
from cachesvc_client.console.listing import Columns, moment, name_and_lane
from cachesvc_client.console.tables import time_text
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.text import count_text

from ... import completion
from ...arguments import parse_option
from ...group import Group
from .. import admin
from ..connection import connect
from ..revisions import show_descendants
from .keys import complete_key, near_key
from .state import say_if_offline

signers = typer.Typer(cls=Group, no_args_is_help=True, help="Whose signatures count.")
admin.add_typer(signers, name="signers")

KnownKey = Annotated[
    str,
    typer.Argument(help="ed25519:…, its beginning, or its id in messages.", autocompletion=completion.keys),
]
"""A key that the registry knows."""
Space = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", help="A namespace, or '*' for all.", autocompletion=completion.namespaces
    ),
]

_WITH_REVOKED: Columns = {
    "namespace": lambda row: row.namespace,
    "key": lambda row: row.key,
    "label": lambda row: getattr(row, "label", ""),
    "revoked": lambda row: time_text(getattr(row, "revoked", None)),
    "why": lambda row: getattr(row, "why", ""),
}
_NAMES: Columns = {
    "name": name_and_lane,
    "revisions": lambda row: row.revisions,
    "last offered": lambda row: moment(row.offered) or "never",
}
_NODES: Columns = {
    "node": lambda row: row.node,
    "token": lambda row: f"{row.token} {row.label}".strip(),
    "last report": lambda row: moment(row.seen),
    "revisions": lambda row: row.revisions,
    "": lambda row: "used" if row.used else "",
}


@signers.command("list")
def list_signers(context: typer.Context, as_json: AsJson = False, output: Output = Form.table) -> None:
    """List the keys whose signatures are accepted at a commit, and those that were revoked."""
    with connect(context) as registry:
        accepted = registry.rows("/v1/signers", SignerRecord)
        revoked = registry.rows("/v1/revocations", RevokedSigner)
    if as_json or output is Form.json:
        print_json({"rows": accepted, "revoked": revoked})
        return
    show_table([*accepted, *revoked], _WITH_REVOKED if revoked else SIGNER_COLUMNS, False, output=output)


@signers.command("add")
def add_signer(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="ed25519:…")],
    namespace: Space,
    label: Annotated[str, typer.Option(help="Whose it is.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Although the key was revoked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accept a key's signatures in a namespace. A revoked key takes --again: its revocation ends, and what it
    signed there is offered again."""
    with connect(context) as registry:
        path = path_with_query("/v1/signers", again="true" if again else None)
        row = registry.call("POST", path, SignerRecord(namespace, key, label), SignerRecord)
        say_if_offline(registry, f"delegate {shlex.quote(namespace)} --key {row.key}")
    show_record(row, SIGNER_COLUMNS, as_json)


@signers.command("remove")
def remove_signer(
    context: typer.Context, key: KnownKey, namespace: Space, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Accept a key's signatures no more, and offer nothing that it signed, on every replica within 5 s. The
    revisions stay until they are deleted; adding the key again offers them again."""
    with connect(context) as registry:
        key = complete_key(registry, key)
        everybody = registry.rows("/v1/signers", SignerRecord)
        signers_of_key = [row for row in everybody if row.key == key]
        row = next((row for row in signers_of_key if row.namespace == namespace), None)
        if row is None:
            names = ", ".join(sorted(row.namespace for row in signers_of_key)) or "none"
            near = near_key(key, (PublicKey(row.key) for row in everybody)) if not signers_of_key else ""
            raise NotFound(
                f"{key_text(key)} is no signer of {namespace}", near or f"namespaces that have it: {names}"
            )
        if apply:
            registry.tell("DELETE", path_with_query("/v1/signers", namespace=namespace, key=key))
        say_if_offline(registry, f"delegate {shlex.quote(namespace)} --remove {key}")
    summary = f"remove {key_text(key)} from the signers of {namespace}"
    show_plan([row], SIGNER_COLUMNS, applied=apply, as_json=as_json, summary=summary)


@signers.command("revoke")
def revoke_signer(
    context: typer.Context,
    key: KnownKey,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Only there; if absent, wherever you are an administrator."),
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, which services log.")] = "",
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a key that leaked: no commit accepts it any more, and what it signed is offered to nobody, in
    lanes too, on every replica within 5 s. Lists the nodes that reported some of it in the last 30 days."""
    with connect(context) as registry:
        whole = complete_key(registry, key)
        request = parse_option(lambda: RevocationRequest(whole, namespace, why))
        path = "/v1/revocations" if apply else "/v1/revocations/plan"
        revocation = registry.call("POST", path, request, Revocation)
        say_if_offline(registry, f"revoke {revocation.key} --why TEXT")
    summary = revocation_summary(revocation, apply)
    if as_json:
        print_json({"applied": apply, "summary": plan_text(summary, apply), "revocation": revocation})
        return
    if revocation.names:
        show_table(revocation.names, _NAMES, False)
    show_table(revocation.nodes, _NODES, False, "no node reported any of it in the last 30 days")
    if revocation.more_nodes:
        show_line(f"and more nodes than these {len(revocation.nodes)}")
    if revocation.descendants:
        show_descendants(revocation.descendants, apply)
    show_plan([], {}, applied=apply, as_json=False, summary=summary)


def revocation_summary(revocation: Revocation, applied: bool = False) -> str:
    """Returns what a revocation withholds, in one line."""
    where = "every namespace" if revocation.namespace == "*" else f"namespace {revocation.namespace}"
    used = sum(node.used for node in revocation.nodes)
    made = f"; {count_text(len(revocation.descendants), 'revision')} made with these"
    return (
        f"refuse {key_text(revocation.key)} in {where}, and {'withheld' if applied else 'withhold'} "
        f"{count_text(revocation.revisions, 'revision')} under {count_text(len(revocation.names), 'name')}; "
        f"{count_text(len(revocation.nodes), 'node')} reported some, "
        f"{used} used it{made * bool(revocation.descendants)}"
    )
