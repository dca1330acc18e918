"""Describe each change that a page can make, for the page that asks whether it is meant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from cachesvc.domain.access import Action, Token, demand
from cachesvc.registry import inventory
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Registry
from cachesvc.registry.upkeep import quarantine, retention
from cachesvc.schema.access import Expiry, TokenAnswer
from cachesvc.schema.entries import RevisionRecord
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound

from . import session, text

MAX_WHY = 300
"""Characters of a reason, at most."""
RevisionAction = Literal["quarantine", "release", "pin", "unpin", "delete", "delete-entry"]
TokenAction = Literal["revoke", "expire"]
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What a change is called, what it does, and the command that does the same. ``why``: whether a reason is
    asked for: *required*, *optional*, or not at all. ``days``: whether a number of days is asked for.
    ``back``: the page that it belongs to. ``grave``: whether someone may miss what it takes away."""

    title: str
    effect: str
    command: str
    back: str
    facts: Facts = ()
    why: Literal["", "required", "optional"] = ""
    days: bool = False
    grave: bool = False


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the page says of an action on a revision. ``command``: after ``cachesvc admin``; ``{}`` is the
    revision's short digest."""

    title: str
    effect: str
    command: str
    why: Literal["", "required", "optional"] = ""
    grave: bool = False


REVISION: dict[str, _Kind] = {
    "quarantine": _Kind(
        "Quarantine the revision",
        "It is offered to nobody, on every replica within 5 s: services that start then compile. Starts keep "
        "what they have installed.",
        "quarantine set {} --why TEXT --apply",
        "required",
        grave=True,
    ),
    "release": _Kind(
        "Release the revision",
        "It is offered again wherever an operator or reports of inert installs withheld it.",
        "quarantine release {}",
    ),
    "pin": _Kind(
        "Pin the revision",
        "Retention, eviction and deletion leave it and its entry.",
        "revisions pin {}",
        "optional",
    ),
    "unpin": _Kind("Unpin the revision", "Retention and eviction may remove it again.", "revisions unpin {}"),
    "delete": _Kind(
        "Delete the revision",
        "It is gone from the index; collection deletes its bytes when the downloads under way are over. "
        "Nothing brings it back.",
        "revisions delete {} --apply",
        grave=True,
    ),
    "delete-entry": _Kind(
        "Delete the entry",
        "It is gone with all of its revisions: services of its environment compile. Nothing brings it back.",
        "entries delete --entry {} --apply",
        grave=True,
    ),
}
"""The actions on revisions."""
DONE = {
    "quarantine": "The revision is in quarantine.",
    "release": "The revision is offered again.",
    "pin": "The revision is pinned.",
    "unpin": "The revision is not pinned any more.",
    "delete": "The revision is deleted.",
    "delete-entry": "The entry is deleted.",
    "revoke": "The token is revoked.",
    "expire": "The token's end is set.",
    "collect": "The collection has run: the audit log has its counts.",
}
"""What a page says after a change. It is named in the address, so it says nothing else."""


def revision_change(registry: Registry, by: Token, revision: Digest, action: RevisionAction) -> Change:
    """Describes an action on a revision. Raises ``NotFound``, ``Forbidden``, and ``InvalidRequest`` for one
    that cannot be done now."""
    row = inventory.get_revision(registry, by, revision)
    demand(by, Action.admin, row.namespace)
    if (action == "delete" and row.head) or (action == "delete-entry" and not row.head):
        raise InvalidRequest("this is a change of another revision", "open the entry again")
    kind = REVISION[action]
    short = text.digest_text(row.entry if action == "delete-entry" else revision)
    facts = [
        ("name", f"{row.namespace}/{row.name}:{row.tag}"),
        ("target", row.target),
        ("lane", row.lane or ""),
        ("environment", text.environment_text(row.fingerprint)),
        ("entry" if action == "delete-entry" else "revision", short),
        ("size", bytes_text(row.pack_size)),
        ("published", f"{text.utc_text(row.published)} by {row.published_by}"),
        ("now", _state(row)),
    ]
    return Change(
        kind.title,
        kind.effect,
        f"cachesvc admin {kind.command.format(short)}",
        f"{session.HOME}/entries/{row.entry}" + ("" if row.head else f"?revision={revision}"),
        tuple((what, str(value)) for what, value in facts if value),
        kind.why,
        grave=kind.grave,
    )


def _state(row: RevisionRecord) -> str:
    words = {"head": row.head, "pinned": row.pinned is not None, "quarantined": row.quarantined is not None}
    return ", ".join(word for word, holds in words.items() if holds)


def change_revision(
    registry: Registry, by: Token, revision: Digest, action: RevisionAction, fields: dict[str, str]
) -> str:
    """Does an action on a revision, and returns the address of the page that shows its result. The use cases
    are those of the API's routes: they decide who may."""
    row = inventory.get_revision(registry, by, revision)
    why = _why(fields, REVISION[action].why)
    act: dict[str, Callable[[], object]] = {
        "quarantine": lambda: quarantine.withdraw(registry, by, revision, why),
        "release": lambda: quarantine.release(registry, by, revision),
        "pin": lambda: retention.pin(registry, by, revision, why),
        "unpin": lambda: retention.unpin(registry, by, revision),
        "delete": lambda: retention.delete_revision(registry, by, revision),
        # Only if the revision that the page showed still is the head.
        "delete-entry": lambda: retention.delete_entry(registry, by, row.entry, revision),
    }
    act[action]()
    if action == "delete-entry":
        return done(f"{session.HOME}/names/{row.namespace}/{row.name}", action)
    gone = action == "delete" or row.head
    return done(f"{session.HOME}/entries/{row.entry}", action, revision="" if gone else revision)


def token_change(registry: Registry, by: Token, token: str, action: TokenAction) -> Change:
    """Describes an action on a token. Raises ``NotFound``, ``Forbidden``."""
    rows = tokens.list_tokens(registry, by, revoked=True)
    row = next((one for one in rows if one.token == token), None)
    if row is None:
        raise NotFound(f"token {token[:40]} does not exist")
    if row.revoked is not None:
        raise InvalidRequest(f"token {token[:40]} was revoked", "create a new one")
    own = " This session ends with it." if token == by.token else ""
    facts = tuple(_token_facts(row))
    back = f"{session.HOME}/tokens"
    if action == "revoke":
        effect = f"It is refused everywhere within 5 s, and nothing brings it back.{own}"
        command = f"cachesvc admin tokens revoke {row.token} --apply"
        return Change("Revoke the token", effect, command, back, facts, grave=True)
    effect = f"It ends that many days from now, everywhere; 0 ends it at once.{own}"
    command = f"cachesvc admin tokens expire {row.token} --days N --apply"
    return Change("Set the token's end", effect, command, back, facts, days=True)


def _token_facts(row: TokenAnswer) -> list[tuple[str, str]]:
    facts = [
        ("label", row.label),
        ("person", row.person or ""),
        ("token", row.token),
        ("may", f"{row.role} in {'every namespace' if row.namespace == '*' else row.namespace}"),
        ("lane", row.lane or ""),
        ("created", text.utc_text(row.created)),
        ("expires", text.utc_text(row.expires) or "never"),
    ]
    return [(what, str(value)) for what, value in facts if value]


def change_token(
    registry: Registry, by: Token, token: str, action: TokenAction, fields: dict[str, str]
) -> str:
    """Does an action on a token, and returns the address of the page that shows its result."""
    if action == "revoke":
        tokens.revoke_token(registry, by, token)
    else:
        days = fields.get("days", "").strip()
        if not (days.isascii() and days.isdigit() and len(days) < 6):
            raise InvalidRequest(f"days: {days[:20]!r}", "a whole number of days; 0 ends the token at once")
        tokens.expire_token(registry, by, token, Expiry(days=int(days)))
    return done(f"{session.HOME}/tokens", action, revoked="true" if action == "revoke" else "")


def done(page: str, action: str, **more: str) -> str:
    """Returns the address of a page that says that a change was made."""
    return f"{page}?{urlencode({**{name: value for name, value in more.items() if value}, 'done': action})}"


def _why(fields: dict[str, str], needed: str) -> str:
    why = " ".join(fields.get("why", "").split())
    if needed == "required" and not why:
        raise InvalidRequest("why: missing", "those who do not get the revision read the reason")
    if len(why) > MAX_WHY or not why.isprintable():
        raise InvalidRequest(f"why: at most {MAX_WHY} printable characters")
    return why if needed else ""
