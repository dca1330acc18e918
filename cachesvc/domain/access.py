"""Decide who may do what.

A token has a role, a namespace (or ``*``) and perhaps a lane. A lane's token writes to its lane only and
reads its lane and the trunk: it can change neither the trunk's entries nor their reports, and cannot see
other lanes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cachesvc_client.wire.errors import Forbidden, Unauthenticated
from cachesvc_client.wire.manifest.provenance import BuilderIdentity
from cachesvc_client.wire.names import Lane

ANY = "*"
"""The namespace of a token or signer of all namespaces."""


class Role(enum.IntEnum):
    """Each role may do what the lower roles may. ``report``, for services: read, and report outcomes."""

    read = 1
    report = 2
    write = 3
    admin = 4


class Action(enum.IntEnum):
    """What a request does, and the lowest role that may do it."""

    read = Role.read
    report = Role.report
    write = Role.write
    admin = Role.admin


@dataclass(frozen=True, slots=True)
class Life:
    """When a token was made, ends or was ended, and was last used, to an hour: seconds of UTC."""

    created: int = 0
    expires: int | None = None
    revoked: int | None = None
    last_used: int | None = None

    def goes_on(self, now: float) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or self.expires > now)


@dataclass(frozen=True, slots=True)
class Token:
    """What the registry knows of a bearer token; never its secret. ``builder``: the CI job to which the
    registry gave it; ``None`` for a token that an administrator made. ``of_job``: it was given by a rule, and
    lives for minutes. ``person``: who logged in to the web page at an identity provider, as
    ``ISSUER SUBJECT``; such a token has no secret. ``via``: by what it acts now, for the audit log: ``web``
    in a session of the web page; ``None`` by itself."""

    token: str
    label: str
    role: Role
    namespace: str
    lane: Lane | None = None
    life: Life = Life()
    builder: BuilderIdentity | None = None
    of_job: bool = False
    person: str | None = None
    via: str | None = None


def alive(token: Token, now: float) -> None:
    """Raises ``Unauthenticated`` if the token is revoked or expired."""
    if token.life.revoked is not None:
        raise Unauthenticated(f"token {token.token} was revoked", "ask the operator for a new one")
    if not token.life.goes_on(now):
        raise Unauthenticated(f"token {token.token} has expired", "ask the operator for a new one")


def may(token: Token, action: Action, namespace: str, lane: Lane | None = None) -> bool:
    """Returns whether ``token`` may do ``action`` in ``lane`` of ``namespace``; ``None`` is the trunk."""
    if token.role < action.value or token.namespace not in (ANY, namespace):
        return False
    if token.lane is None:
        return True
    if action is Action.read:
        return lane in (None, token.lane)
    return action in (Action.report, Action.write) and lane == token.lane


def demand(token: Token, action: Action, namespace: str, lane: Lane | None = None) -> None:
    """Raises ``Forbidden``, with what the token may do, unless :func:`may` allows the action."""
    if may(token, action, namespace, lane):
        return
    where = f"namespace {namespace}" if namespace != ANY else "every namespace"
    if lane is not None:
        where += f", lane {lane}"
    raise Forbidden(
        f"token {token.token} ({describe(token)}) may not {action.name} in {where}",
        "use a token for it, or ask the operator",
    )


def describe(token: Token) -> str:
    """Returns what a token may do, for messages: ``write in team, lane pr-1``."""
    return f"{token.role.name} in {token.namespace}" + (f", lane {token.lane}" if token.lane else "")
