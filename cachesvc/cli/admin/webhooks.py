"""``cachesvc admin webhooks``."""

from __future__ import annotations

from typing import Annotated

import typer

from cachesvc.console.output import (
    Apply,
    AsJson,
    Form,
    Output,
    print_json,
    show_facts,
    show_line,
    show_plan,
    show_table,
)
from cachesvc.schema.webhooks import EVENTS, TEST, DeliveryOutcome, WebhookRecord, WebhookRequest
from cachesvc_client.console.listing import Columns, moment
from cachesvc_client.console.tables import time_text
from cachesvc_client.wire.errors import NotFound, Unavailable

from ..arguments import WebhookId, parse_namespace, parse_option
from ..group import Group
from . import admin
from .connection import connect

webhooks = typer.Typer(
    cls=Group, no_args_is_help=True, help="Who is told of publications, quarantine and cold starts."
)
admin.add_typer(webhooks, name="webhooks")

_WEBHOOKS: Columns = {
    "webhook": lambda row: row.webhook,
    "namespace": lambda row: row.namespace,
    "url": lambda row: row.url,
    "events": lambda row: " ".join(row.events) or "all",
    "label": lambda row: row.label,
    "waiting": lambda row: row.waiting,
    "oldest": lambda row: moment(row.oldest),
    "given up": lambda row: row.dead,
    "delivered": lambda row: moment(row.last_delivered),
    "next try": lambda row: time_text(row.retry) if row.failures else "",
    "last error": lambda row: row.last_error,
}


@webhooks.command("add", epilog=f"Events: {'; '.join(f'{name}: {text}' for name, text in EVENTS.items())}.")
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Where events are sent: https://…")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="The namespace whose events are sent; * is every one.")
    ],
    event: Annotated[
        list[str] | None, typer.Option("--event", "-e", help="An event to send. Repeated; all if absent.")
    ] = None,
    label: Annotated[str, typer.Option(help="What it is for: people read it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Have the events of a namespace sent to a URL. The secret of their signatures is shown once, now."""
    place = namespace if namespace == "*" else parse_namespace(namespace)
    request = parse_option(lambda: WebhookRequest(place, url, tuple(event or ()), label))
    with connect(context) as registry:
        row = registry.call("POST", "/v1/webhooks", request, WebhookRecord, idempotent=False)
    facts = [("webhook", row.webhook), ("secret", row.secret), ("events", " ".join(row.events) or "all")]
    show_facts([*facts, ("test it", f"cachesvc admin webhooks test {row.webhook}")], row, as_json)


@webhooks.command("list")
def list_webhooks(context: typer.Context, as_json: AsJson = False, output: Output = Form.table) -> None:
    """List the receivers of events, with what waits for each; never their secrets."""
    with connect(context) as registry:
        show_table(registry.rows("/v1/webhooks", WebhookRecord), _WEBHOOKS, as_json, output=output)


@webhooks.command("test")
def send_test(context: typer.Context, webhook: WebhookId, as_json: AsJson = False) -> None:
    """Send a receiver an event of the type webhook.test now, and say what came of it."""
    with connect(context) as registry:
        path = f"/v1/webhooks/{webhook}/test"
        outcome = registry.call("POST", path, None, DeliveryOutcome, idempotent=False)
    if as_json:
        print_json(outcome)
    if not outcome.delivered:
        raise Unavailable(f"{TEST} was not delivered after {outcome.seconds:.1f} s: {outcome.said}")
    if not as_json:
        show_line(f"delivered {TEST} in {outcome.seconds:.1f} s: {outcome.said}")


@webhooks.command("remove")
def remove(context: typer.Context, webhook: WebhookId, apply: Apply = False, as_json: AsJson = False) -> None:
    """Remove a receiver, with the events that wait for it."""
    with connect(context) as registry:
        rows = registry.rows("/v1/webhooks", WebhookRecord)
        row = next((row for row in rows if row.webhook == webhook), None)
        if row is None:
            raise NotFound(f"webhook {webhook[:40]} does not exist", "see: cachesvc admin webhooks list")
        if apply:
            registry.tell("DELETE", f"/v1/webhooks/{row.webhook}")
    summary = f"remove {row.webhook} of {row.namespace}, and {row.waiting} waiting events"
    show_plan([row], _WEBHOOKS, applied=apply, as_json=as_json, summary=summary)
