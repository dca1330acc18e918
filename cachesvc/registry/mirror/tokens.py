"""Let the upstream decide about the tokens that a mirror does not know.

A mirror keeps digests of secrets, never a secret. What the upstream says counts for 5 s, as what an index
says does; while the upstream does not answer, what it said last counts for a bounded time.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, TimeoutError

from cachesvc.domain.access import Life, Role, Token
from cachesvc.upstream.upstream import TOKEN_SECONDS, is_silence
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, Unauthenticated, Unavailable
from cachesvc_client.wire.manifest.provenance import BuilderIdentity
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.requests.protocol import WhoAmI

from ..context import Registry
from .state import Mirror

STEP_SECONDS = 60
"""Seconds after which another confirmation of a token is written down."""
UNKNOWN_SECONDS = 5.0
"""Seconds for which the upstream is not asked again about a secret that it does not know."""
_SECRET = re.compile(r"csv_[A-Za-z0-9_-]{16,200}")
"""Matches a secret of a registry's token. For another text the upstream is not asked."""


def confirm_token(registry: Registry, mirror: Mirror, secret: str, secret_hash: str) -> Token | None:
    """Returns what the upstream says of a secret; ``None`` if the token counts nowhere.

    A token that may administer there may publish here: a mirror is administered with its own tokens. Requests
    that come together with the same token ask once. While the upstream does not answer, the last answer
    counts for ``offline_seconds``. Raises ``Unavailable`` if there is none, and ``TooMany`` for one of many
    tokens that the upstream has not confirmed yet.
    """
    unknown = f"unknown-token/{secret_hash}"
    if not _SECRET.fullmatch(secret) or registry.memory.get(unknown) is not None:
        return None
    with registry.index.read() as unit:
        before = unit.mirrors.token(secret_hash)
    flights = mirror.strangers if before is None else mirror.questions
    question = flights.start(secret_hash, lambda: mirror.upstream.whoami(secret))
    try:
        token = _token(_result(question))
    except Unauthenticated:
        registry.memory.put(unknown, b"1", UNKNOWN_SECONDS)
        with registry.index.write_once() as unit:
            unit.mirrors.forget_token(secret_hash)
        return None
    except CacheSvcError as error:
        if not is_silence(error):
            raise
        return _last_answer(registry, mirror, before, error)
    _keep(registry, secret_hash, token, before)
    return token


def _result(question: Future[WhoAmI]) -> WhoAmI:
    try:
        return question.result(2 * TOKEN_SECONDS)
    except TimeoutError:
        raise Unavailable("too many tokens are being asked about", "try again") from None


def _token(who: WhoAmI) -> Token:
    role = Role.__members__.get(who.role)
    if role is None:
        raise Unavailable(
            f"the upstream says role {who.role[:20]!r}, which this version does not know",
            "upgrade the mirror",
        )
    return Token(
        token=who.token[:40],
        label=who.label[:200],
        role=min(role, Role.write),
        namespace=who.namespace,
        lane=who.lane,
        life=Life(expires=who.expires),
        builder=who.builder,
    )


def _keep(registry: Registry, secret_hash: str, token: Token, before: tuple[str, int] | None) -> None:
    """Writes a confirmation down, unless the same was written within ``STEP_SECONDS``."""
    text = codec.canonical(token).decode()
    if before is not None and before[0] == text and 0 <= registry.now - before[1] < STEP_SECONDS:
        return
    with registry.index.write_once() as unit:
        unit.mirrors.keep_token(secret_hash, text, registry.now)


def _last_answer(
    registry: Registry, mirror: Mirror, before: tuple[str, int] | None, error: CacheSvcError
) -> Token:
    """Returns what the upstream said last, if that was not too long ago."""
    if before is None or before[1] + mirror.offline_seconds <= registry.now:
        raise Unavailable(f"the token cannot be checked: {error.message}", error.hint)
    try:
        return parse_token(before[0])
    except (KeyError, TypeError, ValueError):  # another version of this program wrote it
        raise Unavailable(f"the token cannot be checked: {error.message}", error.hint) from None


def parse_token(text: bytes | str) -> Token:
    """Returns the token that ``codec.canonical`` has written."""
    fields = json.loads(text)
    lane = Lane(str(fields.pop("lane"))) if "lane" in fields else None
    builder = codec.build(BuilderIdentity, fields.pop("builder")) if "builder" in fields else None
    role, life = Role(int(str(fields.pop("role")))), codec.build(Life, fields.pop("life"))
    return Token(**fields, role=role, lane=lane, life=life, builder=builder)
