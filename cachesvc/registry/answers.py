"""The cache of answers to resolves: what was answered is answered again from memory for at most 5 s.

The 5 s begin before the index is read, and each answer says how much of them is over: a node that remembers
the answer uses it for the rest. So no start that begins 5 s after a revocation uses an answer from before it.

Each namespace has a mark in the hot store, and a cached answer has the mark under which it was made. A
publication, a policy or an operator changes the mark (:func:`forget_answers`), and the cached answers of the
namespace count no more. This replica has a mark of its own beside it, which counts while the hot store cannot
be reached.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachesvc.domain.access import Action, Token, demand
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.names import Lane, Namespace
from cachesvc_client.wire.requests.protocol import ANSWER_SECONDS, ResolveRequest

from .context import Registry
from .resolve import Large, resolve_small

LARGE_BYTES = 256 << 10
"""Bytes of envelopes above which an answer is made by itself, and only once it has its place in memory."""
_COPIED_BYTES = 64 << 10
"""Bytes of a cached answer up to which each request gets a copy."""


@dataclass(frozen=True, slots=True)
class Question:
    """A token's request to resolve, and the bytes that it was sent as; without these it is encoded anew.

    Raises ``Forbidden`` for a request that the token may not make.
    """

    token: Token
    request: ResolveRequest
    body: bytes = b""

    def __post_init__(self) -> None:
        demand(self.token, Action.read, self.request.namespace, self.request.lane)


class AgedAnswer(NamedTuple):
    """A ``ResolveAnswer`` as canonical JSON. ``age``: whole seconds for which it has been in the cache,
    rounded up; 0 if the index was read for this very request."""

    body: bytes | memoryview
    age: int = 0


def answer_each(
    registry: Registry, questions: Sequence[Question], *, most: int | None = LARGE_BYTES
) -> list[AgedAnswer | Large | CacheSvcError]:
    """Answers each question, or gives its error. ``most``: bytes of envelopes above which the answer is that
    it is `Large`.

    A cached answer is at most ``ANSWER_SECONDS`` old. The other questions are resolved together
    (:func:`resolve_small`), and an error of the database is the answer to all of them. A publication through
    this replica counts at once, and one through a replica that shares the hot store almost at once.
    """
    keys = [_key(registry, question) for question in questions]
    answers: dict[str, AgedAnswer | Large | CacheSvcError] = {}
    new: dict[str, Question] = {}
    for key, question in zip(keys, questions, strict=True):
        cached = registry.memory.get(key)
        if cached is None:
            new[key] = question
        else:
            answers[key] = _aged(registry, cached)
    if new:
        requests = [question.request for question in new.values()]
        began = registry.clock()
        for key, resolved in zip(new, resolve_small(registry, requests, most), strict=True):
            if isinstance(resolved, CacheSvcError | Large):
                answers[key] = resolved
                continue
            kept = _BEGAN.pack(began) + codec.canonical(resolved)
            answers[key] = AgedAnswer(_body(kept))
            left = ANSWER_SECONDS - (registry.clock() - began)
            if left > 0:
                registry.memory.put(key, kept, left)
    return [answers[key] for key in keys]


def cached_answer(registry: Registry, token: Token, body: bytes) -> AgedAnswer | None:
    """Returns the cached answer to ``body``, or ``None`` where a look-up would wait.

    Does not check the body: only a valid one has an answer. Raises ``Forbidden``.
    """
    try:
        request = json.loads(body)
        namespace, lane = request["namespace"], request.get("lane")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    mark = registry.hot.peek(_ANY_MARK)
    if mark:
        mark = registry.hot.peek(_mark_key(namespace)) if isinstance(namespace, str) else None
    if mark is None:
        return None
    own_mark = _own_mark(registry, namespace) if isinstance(namespace, str) else b""
    cached = registry.memory.peek(_answer_key(body, mark + own_mark))
    if not cached:
        return None
    demand(token, Action.read, Namespace(namespace), Lane(lane) if lane else None)
    return _aged(registry, cached)


def offers_revision(answer: bytes | memoryview) -> bool:
    """Says whether an answer has a revision, without parsing it.

    The last fields of its canonical JSON are ``revisions`` and a tag.
    """
    return b'"revisions":[]' not in bytes(answer[-400:])


def forget_answers(registry: Registry, namespace: Namespace) -> None:
    """Ends the cached answers of a namespace. The new mark outlives every answer under the old one."""
    if registry.own is not None:
        registry.own.put(_mark_key(namespace), secrets.token_bytes(8))
    for key in (_mark_key(namespace), _ANY_MARK):  # in this order: who sees the second reads the first
        registry.hot.put(key, secrets.token_bytes(8))


_BEGAN = struct.Struct("d")
"""The form of the time in seconds of UTC that stands before each cached answer: the moment before the index
was read."""


def _aged(registry: Registry, cached: bytes) -> AgedAnswer:
    """Returns a cached answer with its age. A clock that was set back or ahead makes it the oldest."""
    age = registry.clock() - _BEGAN.unpack_from(cached)[0]
    whole = math.ceil(age) if 0 <= age <= ANSWER_SECONDS else math.ceil(ANSWER_SECONDS)
    return AgedAnswer(_body(cached), whole)


def _body(cached: bytes) -> bytes | memoryview:
    return (cached if len(cached) <= _COPIED_BYTES else memoryview(cached))[_BEGAN.size :]


_ANY_MARK = "eras"
"""Key that is present while any namespace has a mark; without it no one asks for a namespace's mark. When a
resolve always asked for its namespace's own mark, nearly every resolve asked Redis."""


def _mark_key(namespace: str) -> str:
    return f"era/{namespace}"


def _key(registry: Registry, question: Question) -> str:
    mark = registry.hot.get(_ANY_MARK) and registry.hot.get(_mark_key(question.request.namespace))
    mark = (mark or b"") + _own_mark(registry, question.request.namespace)
    return _answer_key(question.body or codec.canonical(question.request), mark)


def _own_mark(registry: Registry, namespace: str) -> bytes:
    """Returns the mark of this replica; empty where the hot store is this replica's own."""
    return (registry.own.get(_mark_key(namespace)) or b"") if registry.own is not None else b""


def _answer_key(body: bytes, mark: bytes) -> str:
    return f"resolve/{hashlib.sha256(body + mark).hexdigest()}"
