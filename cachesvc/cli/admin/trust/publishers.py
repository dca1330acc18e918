"""``cachesvc admin publishers``."""

from __future__ import annotations

from typing import Annotated

import typer

from cachesvc.console.output import Apply, AsJson, Form, Output, show_plan, show_record, show_table
from cachesvc.schema.publishers import DEFAULT_MINUTES, MAX_MINUTES, PublisherRecord, PublisherRequest
from cachesvc_client.wire.errors import InvalidRequest, NotFound

from ... import completion
from ...arguments import parse_namespace, parse_option
from ...group import Group
from .. import admin
from ..connection import connect

publishers = typer.Typer(
    cls=Group, no_args_is_help=True, help="Which CI jobs get tokens without a stored secret."
)
admin.add_typer(publishers, name="publishers")

ISSUERS = {
    "github": "https://token.actions.githubusercontent.com",
    "gitlab": "https://gitlab.com",
}
"""Short names of issuers."""
_PUBLISHERS = {
    "publisher": lambda row: row.publisher,
    "namespace": lambda row: row.rule.namespace,
    "lane": lambda row: row.rule.lane or "trunk",
    "role": lambda row: row.rule.role,
    "minutes": lambda row: row.rule.minutes,
    "issuer": lambda row: row.rule.issuer,
    "audience": lambda row: row.rule.audience,
    "claims": lambda row: " ".join(f"{name}={value}" for name, value in sorted(row.rule.claims.items())),
    "label": lambda row: row.rule.label,
}


@publishers.command("add")
def add(
    context: typer.Context,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="The namespace that a job writes to.")],
    issuer: Annotated[str, typer.Option(help="Who issues the jobs' tokens: github, gitlab, or https://…")],
    audience: Annotated[
        str, typer.Option(help="Whom the jobs' tokens are for: the registry's address, as jobs have it.")
    ],
    claim: Annotated[
        list[str],
        typer.Option(help="NAME=VALUE, such as repository=org/app; a * at its end is any rest. Repeated."),
    ],
    lane: Annotated[
        str | None,
        typer.Option(help="The lane that a job writes to, such as pr-{number}; the trunk if absent."),
    ] = None,
    role: Annotated[str, typer.Option(help="write or read.")] = "write",
    minutes: Annotated[
        int, typer.Option(help=f"How long an issued token lives; at most {MAX_MINUTES}.")
    ] = DEFAULT_MINUTES,
    label: Annotated[str, typer.Option(help="What it is for: people read it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give the jobs of an issuer that have these claims tokens of minutes. A pull request never gets the
    trunk."""
    name = parse_namespace(namespace)
    claims = dict(_parse_claim(text) for text in claim)
    if len(claims) != len(claim):
        raise InvalidRequest("--claim: a claim stands twice", "give each once")
    request = parse_option(
        lambda: PublisherRequest(
            ISSUERS.get(issuer, issuer), audience, claims, name, lane, role, minutes, label
        )
    )
    with connect(context) as registry:
        row = registry.call("POST", "/v1/publishers", request, PublisherRecord, idempotent=False)
    show_record(row, _PUBLISHERS, as_json)


@publishers.command("list")
def list_publishers(context: typer.Context, as_json: AsJson = False, output: Output = Form.table) -> None:
    """List the rules by which CI jobs get tokens."""
    with connect(context) as registry:
        show_table(registry.rows("/v1/publishers", PublisherRecord), _PUBLISHERS, as_json, output=output)


@publishers.command("remove")
def remove(
    context: typer.Context,
    publisher: Annotated[
        str, typer.Argument(help="The rule's id, of publishers list.", autocompletion=completion.publishers)
    ],
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Remove a rule, and end the tokens that it gave, everywhere within 5 s."""
    with connect(context) as registry:
        rows = registry.rows("/v1/publishers", PublisherRecord)
        row = next((row for row in rows if row.publisher == publisher), None)
        if row is None:
            raise NotFound(f"rule {publisher[:40]} does not exist", "see: cachesvc admin publishers list")
        if apply:
            registry.tell("DELETE", f"/v1/publishers/{row.publisher}")
    summary = f"remove {row.publisher} of {row.rule.namespace}, and end its tokens"
    show_plan([row], _PUBLISHERS, applied=apply, as_json=as_json, summary=summary)


def _parse_claim(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidRequest(f"--claim: {text[:80]!r}", "NAME=VALUE, such as ref=refs/heads/main")
    return name, value
