"""Tokens and signers: who may come in, and whose signatures count."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import replace

from cachesvc.domain.access import ANY, Action, Role, Token, alive, demand
from cachesvc.domain.retention import DAY
from cachesvc.index.unit import Unit
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.admin import Expiry
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unauthenticated
from cachesvc_client.wire.names import Lane, Namespace
from cachesvc_client.wire.protocol import (
    DEFAULT_TOKEN_DAYS,
    SignerRecord,
    TokenAnswer,
    TokenRequest,
    WhoAmI,
)

from .answers import forget_answers
from .audit import note
from .context import Registry

SECRET_PREFIX = "csv_"
"""So that secret scanners can tell what they found."""
MAX_DAYS = 3660
MAX_LABEL = 200
_ID = re.compile(r"[A-Za-z0-9-]{1,40}")


def authenticate(registry: Registry, secret: str, *, remembered: bool = True) -> Token:
    """Answers the token of a secret. Raises ``Unauthenticated``. A revocation holds within 5 s on every
    replica; with ``remembered=False``, which always reads the index, at once."""
    secret_hash = _hash(secret)
    known = registry.memory.get(_memory_key(secret_hash)) if remembered else None
    token = _from_memory(known) if known is not None else _look_up(registry, secret_hash)
    if token is None:
        raise Unauthenticated("the token is not known here", "check CACHESVC_TOKEN, or: cachesvc login")
    alive(token, registry.clock())
    return token


def recognise(registry: Registry, secret: str) -> Token | None:
    """:func:`authenticate` for whom it is known without waiting; ``None``: it has to be looked up."""
    known = registry.memory.peek(_memory_key(_hash(secret)))
    if not known:
        return None
    token = _from_memory(known)
    alive(token, registry.clock())
    return token


def whoami(token: Token) -> WhoAmI:
    """The token in use."""
    return WhoAmI(token.token, token.role.name, token.namespace, token.expires)


def create_token(registry: Registry, by: Token | None, request: TokenRequest) -> TokenAnswer:
    """A new token; only this answer holds its secret. ``by=None``: the operator at the console."""
    with registry.index.write() as unit:
        return issue(registry, unit, by, request)


def issue(
    registry: Registry, unit: Unit, by: Token | None, request: TokenRequest, secret: str | None = None
) -> TokenAnswer:
    """:func:`create_token` within a transaction; its ``secret`` may be one that was agreed on before."""
    token = _new_token(request, registry.now)
    if by is not None:
        demand(by, Action.admin, token.namespace)
    secret = secret or SECRET_PREFIX + secrets.token_urlsafe(32)
    unit.tokens.add(token, _hash(secret))
    told = {"role": token.role.name, "label": token.label, "expires": token.expires}
    note(registry, unit, by, "token.create", token.namespace, token.token, **told)
    return replace(_answer(token), secret=secret)


def list_tokens(registry: Registry, by: Token, *, revoked: bool = False) -> list[TokenAnswer]:
    """All tokens of the admin's namespace; those that were revoked too, if asked for."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return [_answer(token) for token in unit.tokens.all(by.namespace) if revoked or token.revoked is None]


def revoke_token(registry: Registry, by: Token, token_id: str) -> None:
    """Ends a token. Raises ``NotFound``, also for one that the admin may not see."""
    with registry.index.write() as unit:
        token = _known(unit, by, token_id)
        unit.tokens.revoke(token_id, registry.now)
        note(registry, unit, by, "token.revoke", token.namespace, token_id, label=token.label)
        secret_hash = unit.tokens.hash_of(token_id)
    registry.memory.drop(_memory_key(secret_hash or ""))


def expire_token(registry: Registry, by: Token, token_id: str, expiry: Expiry) -> TokenAnswer:
    """Set when a token ends. Raises ``NotFound`` as ``revoke_token`` does, ``InvalidRequest`` for a token
    that was revoked and for an ``expiry`` that does not say when."""
    if expiry.days is None and not expiry.never:
        raise InvalidRequest("days: missing", "days from now (0: at once), or never = true")
    expires = _expires(expiry, registry.now, least=0)
    with registry.index.write() as unit:
        token = _known(unit, by, token_id)
        if token.revoked is not None:
            raise InvalidRequest(f"token {token_id} was revoked", "create a new one")
        unit.tokens.expire(token_id, expires)
        note(registry, unit, by, "token.expire", token.namespace, token_id, expires=expires)
        secret_hash = unit.tokens.hash_of(token_id)
    registry.memory.drop(_memory_key(secret_hash or ""))
    return _answer(replace(token, expires=expires))


def _known(unit: Unit, by: Token, token_id: str) -> Token:
    token = unit.tokens.get(token_id) if _ID.fullmatch(token_id) else None
    if token is None or by.namespace not in (ANY, token.namespace):
        raise NotFound(f"token {token_id[:40]} does not exist", "see: cachesvc admin tokens list")
    demand(by, Action.admin, token.namespace)
    return token


def add_signer(registry: Registry, by: Token | None, signer: SignerRecord) -> SignerRecord:
    """Accepts a key's signatures in a namespace; adding it again is a success."""
    with registry.index.write() as unit:
        added = accept(registry, unit, by, signer)
    _forget_answers_of(registry, added.namespace)
    return added


def _forget_answers_of(registry: Registry, namespace: str) -> None:
    """Remembered answers go by the signers that there were."""
    with registry.index.read() as unit:
        named = [row.namespace for row in unit.namespaces.all(ANY)] if namespace == ANY else [namespace]
    for one in named:
        forget_answers(registry, Namespace(one))


def accept(registry: Registry, unit: Unit, by: Token | None, signer: SignerRecord) -> SignerRecord:
    """:func:`add_signer` within a transaction."""
    try:
        key = PublicKey(signer.key)
        namespace = signer.namespace if signer.namespace == ANY else Namespace(signer.namespace)
    except ValueError as error:
        raise InvalidRequest(f"signer: {error}") from None
    if len(signer.label) > MAX_LABEL or not signer.label.isprintable():
        raise InvalidRequest(f"label: at most {MAX_LABEL} printable characters")
    if by is not None:
        demand(by, Action.admin, namespace)
    made = SignerRecord(namespace, key, signer.label)
    unit.signers.add(made, registry.now)
    note(registry, unit, by, "signer.add", namespace, key, label=signer.label)
    return made


def remove_signer(registry: Registry, by: Token, namespace: str, key: str) -> None:
    """Accepts a key's signatures there no more, and offers nothing that it signed: on this replica at once,
    on the others within 5 s. The revisions stay until they are deleted. Raises ``NotFound``."""
    demand(by, Action.admin, namespace)
    known = namespace == ANY or Namespace.pattern.fullmatch(namespace)
    with registry.index.write() as unit:
        if not (known and key.isprintable() and unit.signers.remove(namespace, key)):
            where = "every namespace" if namespace == ANY else f"namespace {namespace[:128]!r}"
            raise NotFound(f"{key[:60]} is no signer of {where}", "see: cachesvc admin signers list")
        note(registry, unit, by, "signer.remove", namespace, key)
    _forget_answers_of(registry, namespace)


def list_signers(registry: Registry, by: Token) -> list[SignerRecord]:
    """The keys that the token's namespace accepts; of ``*``: all."""
    demand(by, Action.read, by.namespace, by.lane)
    with registry.index.read() as unit:
        rows = unit.signers.all(ANY)
    return [row for row in rows if by.namespace == ANY or row.namespace in (ANY, by.namespace)]


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
        token="t-" + secrets.token_hex(8),
        label=request.label,
        role=role,
        namespace=namespace,
        lane=request.lane,
        created=now,
        expires=expires,
    )


def _expires(wanted: TokenRequest | Expiry, now: int, least: int = 1) -> int | None:
    if wanted.never:
        if wanted.days is not None:
            raise InvalidRequest("days: not together with never", "say one of them")
        return None
    days = DEFAULT_TOKEN_DAYS if wanted.days is None else wanted.days
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
        created=token.created,
        expires=token.expires,
        revoked=token.revoked,
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _memory_key(secret_hash: str) -> str:
    return f"token/{secret_hash}"


def _look_up(registry: Registry, secret_hash: str) -> Token | None:
    with registry.index.read() as unit:
        token = unit.tokens.by_hash(secret_hash)
    if token is not None:
        registry.memory.put(_memory_key(secret_hash), codec.canonical(token))
    return token


def _from_memory(known: bytes) -> Token:
    held = json.loads(known)
    lane = Lane(held.pop("lane")) if "lane" in held else None
    return Token(**{**held, "role": Role(held["role"])}, lane=lane)
