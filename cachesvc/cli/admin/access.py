"""``cachesvc admin tokens | namespaces | audit``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from cachesvc.console.columns import SIGNER_COLUMNS
from cachesvc.console.output import (
    Apply,
    AsJson,
    Form,
    Output,
    print_json,
    show_facts,
    show_line,
    show_plan,
    show_record,
    show_table,
)
from cachesvc.queries.registry_calls import all_pages, path_with_query
from cachesvc.schema.access import (
    DEFAULT_TOKEN_DAYS,
    AuditPage,
    Expiry,
    Rotation,
    SignerRecord,
    TokenAnswer,
    TokenRequest,
)
from cachesvc.schema.namespaces import BOUNDS, NamespaceRecord, Policy, RequireRequest
from cachesvc_client.console.listing import moment
from cachesvc_client.console.tables import bytes_text, time_text
from cachesvc_client.queries.names import Connection
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.manifest.requirement import Requirement
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.sizes import parse_size
from cachesvc_client.wire.suggestion import did_you_mean
from cachesvc_client.wire.text import count_text

from .. import completion
from ..arguments import parse_namespace, parse_option
from ..group import Group
from . import admin
from .connection import connect

tokens = typer.Typer(cls=Group, no_args_is_help=True, help="Who may use the registry.")
namespaces = typer.Typer(cls=Group, no_args_is_help=True, help="What each holds, and what it keeps.")
admin.add_typer(tokens, name="tokens")
admin.add_typer(namespaces, name="namespaces")

TokenId = Annotated[
    str, typer.Argument(help="The token's id, t-…, of tokens list.", autocompletion=completion.tokens)
]
NamespaceName = Annotated[
    str, typer.Argument(help="A namespace, of namespaces list.", autocompletion=completion.namespaces)
]
ROLES = ("read", "report", "write", "admin")
"""What a token may be for."""
_TOKENS = {
    "token": lambda row: row.token,
    "role": lambda row: row.role,
    "namespace": lambda row: row.namespace + (f" [{row.lane}]" if row.lane else ""),
    "created": lambda row: moment(row.created),
    "expires": lambda row: "revoked" if row.revoked else moment(row.expires) or "never",
    "used": lambda row: moment(row.last_used),
    "label": lambda row: row.label,
}


@tokens.command("create")
def create(
    context: typer.Context,
    label: Annotated[str, typer.Option(help="What it is for: people read it.")],
    role: Annotated[
        str,
        typer.Option(
            help="read, report (for services), write (for CI) or admin.",
            autocompletion=lambda incomplete: [role for role in ROLES if role.startswith(incomplete)],
        ),
    ] = "read",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="A namespace, or '*' for all. Required.",
            autocompletion=completion.namespaces,
        ),
    ] = None,
    lane: Annotated[str | None, typer.Option(help="Only this lane, such as pr-123.")] = None,
    days: Annotated[
        int | None, typer.Option(help=f"Until it expires; {DEFAULT_TOKEN_DAYS} if absent.")
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="It does not expire.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a token. Its secret is shown once, now."""
    if namespace is None:
        raise InvalidRequest("tokens create: which namespace?", "-n NAMESPACE, or -n '*' for all of them")
    if never and days is not None:
        raise InvalidRequest("tokens create: --days and --never contradict each other", "give one of them")
    if role not in ROLES:
        raise InvalidRequest(
            f"--role {role[:40]!r}", f"{did_you_mean(role, ROLES)} one of: {', '.join(ROLES)}".strip()
        )
    by_default = days is None and not never
    if not never:
        days = DEFAULT_TOKEN_DAYS if days is None else days
    own_lane = parse_option(lambda: Lane(lane), "--lane") if lane else None
    request = parse_option(lambda: TokenRequest(label, role, namespace, own_lane, days, never))
    with connect(context) as registry:
        token = registry.call("POST", "/v1/tokens", request, TokenAnswer, idempotent=False)
    facts = [("token", token.token), ("secret", token.secret), ("role", token.role)]
    facts += [
        ("namespace", token.namespace),
        ("lane", token.lane),
        ("expires", time_text(token.expires) or "never"),
    ]
    show_facts(facts, token, as_json)
    if by_default and not as_json:
        line = f"it expires in {DEFAULT_TOKEN_DAYS} days; --days N or --never says otherwise"
        show_line(line, err=True)


@tokens.command("list")
def list_tokens(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Revoked ones too.")] = False,
    as_json: AsJson = False,
    output: Output = Form.table,
) -> None:
    """List tokens; never their secrets."""
    with connect(context) as registry:
        show_table(
            registry.rows(path_with_query("/v1/tokens", revoked=every), TokenAnswer),
            _TOKENS,
            as_json,
            output=output,
        )


@tokens.command("revoke")
def revoke(context: typer.Context, token: TokenId, apply: Apply = False, as_json: AsJson = False) -> None:
    """End a token; it is refused everywhere within 5 s."""
    with connect(context) as registry:
        row = _token(registry, token)
        if apply:
            registry.tell("DELETE", f"/v1/tokens/{row.token}")
    show_plan([row], _TOKENS, applied=apply, as_json=as_json, summary=f"revoke {row.token} ({row.label})")


@tokens.command("expire")
def expire(
    context: typer.Context,
    token: TokenId,
    days: Annotated[int | None, typer.Option(help="So many days from now.")] = None,
    now: Annotated[bool, typer.Option("--now", help="At once.")] = False,
    never: Annotated[bool, typer.Option("--never", help="Not at all.")] = False,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Set when a token ends: --days N, --now or --never."""
    if [days is not None, now, never].count(True) != 1:
        raise InvalidRequest("tokens expire: when?", "give one of --days N, --now, --never")
    if days is not None and days < 1:
        raise InvalidRequest(f"--days {days}", "1 or more; --now ends the token at once")
    expiry = Expiry(0 if now else days, never)
    with connect(context) as registry:
        row = _token(registry, token)
        if apply:
            row = registry.call("PUT", f"/v1/tokens/{row.token}/expiry", expiry, TokenAnswer)
    when = "now" if now else "never" if never else f"in {count_text(days or 0, 'day')}"
    summary = f"end {row.token} ({row.label}) {when}"
    show_plan([row], _TOKENS, applied=apply, as_json=as_json, summary=summary)


@tokens.command("rotate")
def rotate(
    context: typer.Context,
    token: TokenId,
    overlap: Annotated[
        float, typer.Option(min=0, max=720, help="Hours for which the secret before stays valid.")
    ] = 24.0,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Give a token a new secret, which is shown once, now. The secret that it has stays valid for the
    overlap; id, rights and expiry stay as they are."""
    rotation = Rotation(round(overlap * 3600))
    with connect(context) as registry:
        row = _token(registry, token)
        if apply:
            route = f"/v1/tokens/{row.token}/rotation"
            row = registry.call("POST", route, rotation, TokenAnswer, idempotent=False)
    if as_json or not apply:
        when = f"in {duration_text(rotation.overlap_seconds)}" if overlap else "now"
        summary = f"end the secret of {row.token} ({row.label}) {when}, for a new one"
        show_plan([row], _TOKENS, applied=apply, as_json=as_json, summary=summary)
        return
    facts: list[tuple[str, object]] = [("token", row.token), ("secret", row.secret)]
    facts += [
        ("the secret before", f"valid until {time_text(row.previous_until)}"),
        ("expires", time_text(row.expires) or "never"),
    ]
    show_facts(facts, row, False)


def _token(registry: Connection, token: str) -> TokenAnswer:
    """Return the token of that id. Raise ``NotFound``, and ``InvalidRequest`` for one that was revoked."""
    for row in registry.rows(path_with_query("/v1/tokens", revoked=True), TokenAnswer):
        if row.token == token:
            if row.revoked is not None:
                raise InvalidRequest(f"token {token} was revoked", "create a new one")
            return row
    raise NotFound(f"token {token[:40]} does not exist", "see: cachesvc admin tokens list")


@namespaces.command("list")
def list_namespaces(context: typer.Context, as_json: AsJson = False, output: Output = Form.table) -> None:
    """List namespaces with what they hold and keep; an empty column is the registry's default."""
    with connect(context) as registry:
        show_table(registry.rows("/v1/namespaces", NamespaceRecord), _NAMESPACES, as_json, output=output)


@namespaces.command("show")
def show_namespace(context: typer.Context, namespace: NamespaceName, as_json: AsJson = False) -> None:
    """Show one namespace with its signers."""
    name = parse_namespace(namespace)
    with connect(context) as registry:
        row = _namespace(registry, name)
        keys = [key for key in registry.rows("/v1/signers", SignerRecord) if key.namespace in ("*", name)]
    if as_json:
        print_json({"namespace": row, "signers": keys})
        return
    show_table([row], _NAMESPACES, False)
    show_table(keys, SIGNER_COLUMNS, False, "no signers: nothing can be published")


@namespaces.command("set")
def set_namespace(
    context: typer.Context,
    namespace: NamespaceName,
    keep_revisions: Annotated[
        str | None, typer.Option(help="Newest revisions of each entry that are kept.")
    ] = None,
    keep_days: Annotated[str | None, typer.Option(help="Every younger revision is kept.")] = None,
    unused_days: Annotated[str | None, typer.Option(help="Entries not used for so long are deleted.")] = None,
    keep_bytes: Annotated[str | None, typer.Option(help="Above it gc evicts, such as 200GiB.")] = None,
    quota: Annotated[str | None, typer.Option(help="Above it publishing is refused.")] = None,
    require: Annotated[
        str | None,
        typer.Option(help="Who must have built what the trunk offers, such as 'builder=…, ref=…'; or none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set what a namespace keeps: bounds of its own, 'none', or 'default' for those of the settings. Nothing
    is removed before the next gc.

    --require counts at once."""
    name = parse_namespace(namespace)
    options: dict[str, Any] = {
        "keep_revisions": _parse_number("--keep-revisions", keep_revisions, "keep_revisions"),
        "keep_days": _parse_number("--keep-days", keep_days, "keep_days"),
        "unused_days": _parse_number("--unused-days", unused_days, "unused_days"),
        "keep_bytes": _parse_size("--keep-bytes", keep_bytes, "keep_bytes"),
        "quota_bytes": _parse_size("--quota", quota, "quota_bytes"),
    }
    changes = {field: value for field, value in options.items() if value is not _UNCHANGED}
    if not changes and require is None:
        raise InvalidRequest("nothing to set", "give --keep-days, --quota, … (see --help)")
    wanted = RequireRequest(
        None
        if require in (None, "none")
        else parse_option(lambda: Requirement.parse(require or ""), "--require")
    )
    with connect(context) as registry:
        policies = {row.namespace: row.policy for row in registry.rows("/v1/namespaces", NamespaceRecord)}
        policy = parse_option(lambda: replace(policies.get(name, Policy()), **changes))
        if changes:
            registry.call("PUT", f"/v1/namespaces/{name}/policy", policy, NamespaceRecord)
        if require is not None:
            registry.call("PUT", f"/v1/namespaces/{name}/require", wanted, RequireRequest)
        row = _namespace(registry, name)
    show_record(row, _NAMESPACES, as_json)


@admin.command("audit")
def audit(
    context: typer.Context,
    action: Annotated[str | None, typer.Option(help="Such as token, or token.revoke.")] = None,
    subject: Annotated[str | None, typer.Option(help="A part of what it was done to.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows, at most.")] = 50,
    as_json: AsJson = False,
    output: Output = Form.table,
) -> None:
    """Show what operators did, newest first."""
    with connect(context) as registry:
        rows = list(all_pages(registry, "/v1/audit", AuditPage, limit, action=action, subject=subject))
    show_table(rows, _AUDIT, as_json, output=output)


_UNCHANGED = object()


def _parse_number(option: str, text: str | None, bound: str) -> Any:
    if text is None or text in ("default", "none"):
        return _parse_bound_word(text, bound)
    if not text.isdecimal():
        raise InvalidRequest(f"{option}: {text[:40]!r}", "a number, none, or default")
    return int(text)


def _parse_size(option: str, text: str | None, bound: str) -> Any:
    if text is None or text in ("default", "none"):
        return _parse_bound_word(text, bound)
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidRequest(f"{option}: {text[:40]!r}: {error}", "or none, or default") from None


def _parse_bound_word(text: str | None, bound: str) -> Any:
    return {None: _UNCHANGED, "default": None, "none": BOUNDS[bound][1]}[text]


def _namespace(registry: Connection, name: str) -> NamespaceRecord:
    for row in registry.rows("/v1/namespaces", NamespaceRecord):
        if row.namespace == name:
            return row
    raise NotFound(f"namespace {name} does not exist", "see: cachesvc admin namespaces list")


def _bound_text(row: NamespaceRecord, bound: str) -> str:
    value = getattr(row.policy, bound)
    if value is None or value == BOUNDS[bound][1]:
        return "" if value is None else "none"
    return bytes_text(value) if bound.endswith("_bytes") else str(value)


_NAMESPACES = {
    "namespace": lambda row: row.namespace,
    "entries": lambda row: row.entries,
    "revisions": lambda row: row.revisions,
    "bytes": lambda row: bytes_text(row.bytes),
    "quota": lambda row: _bound_text(row, "quota_bytes"),
    "keep bytes": lambda row: _bound_text(row, "keep_bytes"),
    "keep revisions": lambda row: _bound_text(row, "keep_revisions"),
    "keep days": lambda row: _bound_text(row, "keep_days"),
    "unused days": lambda row: _bound_text(row, "unused_days"),
    "requires": lambda row: row.require or "",
}
_AUDIT = {
    "when": lambda row: time_text(row.at),
    "by": lambda row: f"{row.by_label} ({row.by})" if row.by_label else row.by,
    "action": lambda row: row.action,
    "namespace": lambda row: row.namespace,
    "subject": lambda row: row.subject if len(row.subject) < 60 else row.subject[:24] + "…",
    "details": lambda row: ", ".join(f"{name}={value}" for name, value in sorted(row.details.items())),
}
