"""Authenticate tokens, and manage them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from cachesvc.domain.access import ANY, Action, Life, Role, Token, alive, demand
from cachesvc.domain.retention import DAY
from cachesvc.hot.store import MAX_SECONDS
from cachesvc.index.unit import Unit
from cachesvc.schema.access import DEFAULT_TOKEN_DAYS, Expiry, Rotation, TokenAnswer, TokenRequest
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, NotFound, Unauthenticated
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.protocol import WhoAmI

from ..audit import note
from ..context import Registry
from ..mirror.tokens import confirm_token, parse_token

SECRET_PREFIX = "csv_"
"""Beginning of every secret, by which secret scanners recognise it."""
MAX_DAYS = 3660
"""Days that a token lives, at most, unless it never expires."""
MAX_OVERLAP_DAYS = 30
"""Days for which the secret before a rotation stays valid, at most."""
USE_SECONDS = 3600
"""Seconds after which another use of a token is written down."""
MAX_LABEL = 200
"""Characters of a label, at most."""
_ID = re.compile(r"[A-Za-z0-9-]{1,40}")


def authenticate(registry: Registry, secret: str, *, use_cache: bool = True) -> Token:
    """Returns the token of a secret. Raises ``Unauthenticated``.

    ``use_cache``: the token may have been read up to 5 s ago, so that a revocation counts within 5 s. Without
    it the index is read, and a revocation counts at once.
    """
    secret_hash = _hash(secret)
    cached = registry.memory.get(_memory_key(secret_hash)) if use_cache else None
    token = parse_token(cached) if cached is not None else _look_up(registry, secret, secret_hash)
    if token is None:
        raise Unauthenticated("the token is not known here", "check CACHESVC_TOKEN, or: cachesvc login")
    alive(token, registry.clock())
    return token


def cached_token(registry: Registry, secret: str) -> Token | None:
    """Authenticates from memory without waiting; ``None``: call :func:`authenticate`."""
    cached = registry.memory.peek(_memory_key(_hash(secret)))
    if not cached:
        return None
    token = parse_token(cached)
    alive(token, registry.clock())
    return token


def whoami(token: Token) -> WhoAmI:
    """Returns what a token may do."""
    return WhoAmI(
        token=token.token,
        role=token.role.name,
        namespace=token.namespace,
        expires=token.life.expires,
        builder=token.builder,
        label=token.label,
        lane=token.lane,
    )


def create_token(registry: Registry, by: Token | None, request: TokenRequest) -> TokenAnswer:
    """Creates a token; only this answer has its secret. ``by=None``: the operator at the console."""
    with registry.index.write() as unit:
        return issue(registry, unit, by, request)


def issue(
    registry: Registry, unit: Unit, by: Token | None, request: TokenRequest, secret: str | None = None
) -> TokenAnswer:
    """Creates a token within a transaction, with a new secret or the one that is passed."""
    token = _new_token(request, registry.now)
    if by is not None:
        demand(by, Action.admin, token.namespace)
    answer = store(unit, token, secret)
    details = {"role": token.role.name, "label": token.label, "expires": token.life.expires}
    note(registry, unit, by, "token.create", token.namespace, token.token, **details)
    return answer


def store(unit: Unit, token: Token, secret: str | None = None, publisher: str | None = None) -> TokenAnswer:
    """Stores a token under a new secret, or the one that is passed; only the result has the secret.
    ``publisher``: the rule that gives the token to a CI job."""
    secret = secret or SECRET_PREFIX + secrets.token_urlsafe(32)
    unit.tokens.add(token, _hash(secret), publisher)
    return replace(_answer(token), secret=secret)


def end_tokens_of(registry: Registry, unit: Unit, publisher: str) -> list[str]:
    """Revokes the tokens that a rule gave. Returns their keys, for :func:`forget_tokens` after the commit."""
    return [_memory_key(secret_hash) for secret_hash in unit.tokens.revoke_of(publisher, registry.now)]


def forget_tokens(registry: Registry, keys: Iterable[str]) -> None:
    """Forgets tokens that were revoked, so that this replica refuses them at once."""
    for key in keys:
        registry.memory.drop(key)


def new_token_id() -> str:
    """Returns the public id of a new token."""
    return "t-" + secrets.token_hex(8)


def list_tokens(registry: Registry, by: Token, *, revoked: bool = False) -> list[TokenAnswer]:
    """Returns the tokens of the admin's namespace; with ``revoked`` the revoked ones too."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return [
            _answer(token) for token in unit.tokens.all(by.namespace) if revoked or token.life.revoked is None
        ]


def revoke_token(registry: Registry, by: Token, token_id: str) -> None:
    """Ends a token. Raises ``NotFound``, also for one that the admin may not see."""
    with registry.index.write() as unit:
        token = _token_of(unit, by, token_id)
        unit.tokens.revoke(token_id, registry.now)
        note(registry, unit, by, "token.revoke", token.namespace, token_id, label=token.label)
        hashes = unit.tokens.hashes_of(token_id)
    forget_tokens(registry, map(_memory_key, hashes))


def rotate_token(registry: Registry, by: Token, token_id: str, rotation: Rotation) -> TokenAnswer:
    """Gives a token a new secret, which only this answer has. The secret that it had stays valid for the
    overlap, and one from before an earlier rotation ends. Raises ``NotFound`` as ``revoke_token`` does, and
    ``InvalidRequest`` for a token that was revoked, that a rule gave to a CI job, or that is of a login: it
    has no secret, and whoever got one would act under the name of the person."""
    if not 0 <= rotation.overlap_seconds <= MAX_OVERLAP_DAYS * DAY:
        raise InvalidRequest(f"overlap_seconds: 0 to {MAX_OVERLAP_DAYS * DAY}", "a day is 86400")
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    until = registry.now + rotation.overlap_seconds
    with registry.index.write() as unit:
        token = _token_of(unit, by, token_id)
        if token.life.revoked is not None:
            raise InvalidRequest(f"token {token_id} was revoked", "create a new one")
        _refuse_login(token)
        if token.of_job:
            raise InvalidRequest(
                f"token {token_id} is of a CI job", "it ends in minutes; the job gets another"
            )
        hashes = unit.tokens.hashes_of(token_id)
        unit.tokens.rotate(token_id, _hash(secret), until)
        note(registry, unit, by, "token.rotate", token.namespace, token_id, label=token.label, until=until)
    forget_tokens(registry, map(_memory_key, hashes))
    return replace(_answer(token), secret=secret, previous_until=until)


def expire_token(registry: Registry, by: Token, token_id: str, expiry: Expiry) -> TokenAnswer:
    """Sets when a token ends. Raises ``NotFound`` as ``revoke_token`` does, ``InvalidRequest`` for a token
    that was revoked or is of a login, and for an ``expiry`` that does not say when."""
    if expiry.days is None and not expiry.never:
        raise InvalidRequest("days: missing", "days from now (0: at once), or never = true")
    expires = _expires(expiry, registry.now, least=0)
    with registry.index.write() as unit:
        token = _token_of(unit, by, token_id)
        _refuse_login(token)
        if token.life.revoked is not None:
            raise InvalidRequest(f"token {token_id} was revoked", "create a new one")
        unit.tokens.expire(token_id, expires)
        note(registry, unit, by, "token.expire", token.namespace, token_id, expires=expires)
        hashes = unit.tokens.hashes_of(token_id)
    forget_tokens(registry, map(_memory_key, hashes))
    return _answer(replace(token, life=replace(token.life, expires=expires)))


def _token_of(unit: Unit, by: Token, token_id: str) -> Token:
    token = unit.tokens.get(token_id) if _ID.fullmatch(token_id) else None
    if token is None or by.namespace not in (ANY, token.namespace):
        raise NotFound(f"token {token_id[:40]} does not exist", "see: cachesvc admin tokens list")
    demand(by, Action.admin, token.namespace)
    return token


def _refuse_login(token: Token) -> None:
    if token.person is not None:
        raise InvalidRequest(
            f"token {token.token} is of a login to the web page: it ends by itself", "revoke ends it now"
        )


def _new_token(request: TokenRequest, now: int) -> Token:
    try:
        namespace = request.namespace if request.namespace == ANY else Namespace(request.namespace)
    except ValueError as error:
        raise InvalidRequest(f"namespace: {error}, nor *") from None
    if request.role not in Role.__members__:
        raise InvalidRequest(f"role: {request.role[:40]!r}", f"one of: {', '.join(Role.__members__)}")
    if not 0 < len(request.label) <= MAX_LABEL or not request.label.isprintable():
        raise InvalidRequest(f"label: 1 to {MAX_LABEL} printable characters")
    expires = _expires(request, now)
    role = Role[request.role]
    if request.lane is not None and (role is Role.admin or namespace == ANY):
        raise InvalidRequest("lane: only for read, report and write tokens of one namespace")
    return Token(
        token=new_token_id(),
        label=request.label,
        role=role,
        namespace=namespace,
        lane=request.lane,
        life=Life(now, expires),
    )


def _expires(expiry: TokenRequest | Expiry, now: int, least: int = 1) -> int | None:
    if expiry.never:
        if expiry.days is not None:
            raise InvalidRequest("days: not together with never", "say one of them")
        return None
    days = DEFAULT_TOKEN_DAYS if expiry.days is None else expiry.days
    if not least <= days <= MAX_DAYS:
        raise InvalidRequest(f"days: {least} to {MAX_DAYS}", "never = true for a token that does not expire")
    return now + days * DAY


def _answer(token: Token) -> TokenAnswer:
    return TokenAnswer(
        token=token.token,
        label=token.label,
        role=token.role.name,
        namespace=token.namespace,
        lane=token.lane,
        created=token.life.created,
        expires=token.life.expires,
        revoked=token.life.revoked,
        last_used=token.life.last_used,
        person=token.person,
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _memory_key(secret_hash: str) -> str:
    return f"token/{secret_hash}"


def _look_up(registry: Registry, secret: str, secret_hash: str) -> Token | None:
    began = registry.clock()
    with registry.index.read() as unit:
        token = unit.tokens.by_hash(secret_hash, began)
    if token is not None:
        _record_use(registry, token)
    elif registry.mirror is not None:
        token = confirm_token(registry, registry.mirror, secret, secret_hash)
    if token is not None:
        left = MAX_SECONDS - (registry.clock() - began)  # of the 5 s after a revocation that was not read
        registry.memory.put(_memory_key(secret_hash), codec.canonical(token), left)
    return token


def _record_use(registry: Registry, token: Token) -> None:
    """Writes down that a valid token is used, unless that was done in the last hour."""
    used_lately = registry.now - (token.life.last_used or 0) < USE_SECONDS
    if not token.life.goes_on(registry.now) or token.of_job or used_lately:
        return
    # An index that takes no writes now costs the time of this use, not the request.
    with suppress(CacheSvcError), registry.index.write_once() as unit:
        unit.tokens.use(token.token, registry.now)
