"""Open, check and close sessions of the web page.

A session is a row of the index that names a token; a login at an identity provider makes a token for its
session alone (``logins``). Each request reads the session and its token from there,
so every replica knows a session, and a token that is revoked or has expired ends its sessions at once.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace

from cachesvc.domain.access import Token, alive
from cachesvc.index.unit import Unit
from cachesvc_client.wire.errors import Unauthenticated

from ..context import Registry
from .tokens import authenticate

SESSION_SECONDS = 8 * 3600
"""Seconds that a session lasts: a working day. Nothing prolongs it."""
VIA = "web"
"""What the audit log says of an action in a session, beside the token."""
MOST_SESSIONS = 20
"""Sessions of one token at once; a further login ends the oldest."""


def open_session(registry: Registry, token_secret: str) -> str:
    """Opens a session for the token of a secret, and returns the session's own secret, which is new and
    random. Raises ``Unauthenticated``."""
    token = authenticate(registry, token_secret, use_cache=False)
    secret = new_secret()
    with registry.index.write() as unit:
        add_session(unit, secret, token, registry.now + SESSION_SECONDS)
    return secret


def token_of_session(registry: Registry, secret: str) -> Token:
    """Returns the token of a session, as the index has it now. Raises ``Unauthenticated`` for a session that
    does not exist or is over, and for a token that is revoked or has expired."""
    with registry.index.read() as unit:
        name = unit.sessions.token(_hash(secret), registry.now)
        token = unit.tokens.get(name) if name is not None else None
    if token is None:
        raise Unauthenticated("the session is over", "log in again")
    alive(token, registry.clock())
    return replace(token, via=VIA)


def close_session(registry: Registry, secret: str) -> None:
    """Ends a session, on every replica at once; one that does not exist is a success."""
    with registry.index.write() as unit:
        name = unit.sessions.token(_hash(secret), registry.now)
        token = unit.tokens.get(name) if name is not None else None
        unit.sessions.remove(_hash(secret))
        if token is not None and token.person is not None:
            unit.tokens.revoke(token.token, registry.now)  # it is of this session alone


def new_secret() -> str:
    """Returns the secret of a new session."""
    return secrets.token_urlsafe(32)


def add_session(unit: Unit, secret: str, token: Token, expires: int) -> None:
    """Stores a session for a token within a transaction."""
    unit.sessions.add(_hash(secret), token.token, expires, MOST_SESSIONS)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
