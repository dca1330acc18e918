"""What fits an environment, and why the rest does not."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachesvc.domain.access import Action, Token, demand
from cachesvc.index.heads import Candidate, Heads, Place
from cachesvc_client.wire import codec
from cachesvc_client.wire.compare import (
    Difference,
    Mismatch,
    compare,
    inert_difference,
    nearness,
    withdrawn_difference,
)
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from cachesvc_client.wire.names import Lane, Namespace, Tag
from cachesvc_client.wire.partitions import environment
from cachesvc_client.wire.protocol import (
    MAX_RESOLVED,
    Rejected,
    ResolveAnswer,
    ResolvedRevision,
    ResolveRequest,
)
from cachesvc_client.wire.records import MAX_ENVELOPE_BYTES

from .context import Registry
from .download import pack_url

CANDIDATES = 4096
"""Heads under one name and tag that are looked at, the newest first."""
MAX_REJECTED = 64
MAX_ANSWER_BYTES = MAX_ENVELOPE_BYTES
"""Envelopes in one answer; the first is always there."""

KEPT_VERDICTS = 512
KEPT_CHARACTERS = 32_000
"""Of the two fingerprints of one that is kept."""

USED_STEP_SECONDS = 6 * 3600
"""That a revision was offered is written down this often, not at each start."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and the body that it came as. There is none that the token may not ask: ``Forbidden``."""

    token: Token
    request: ResolveRequest
    body: bytes = b""

    def __post_init__(self) -> None:
        _demand(self.token, self.request.namespace, self.request.lane)


def answer_each(registry: Registry, questions: Sequence[Question]) -> list[bytes | CacheSvcError]:
    """Answers each question with a ``ResolveAnswer`` as canonical JSON, remembered for at most 5 s, or with
    its error. The database is asked for all at once: its error is the error of all that had to be looked up.

    An answer holds the compatible heads, those of the asked model first, then the newest; the rest is
    rejected, nearest first. A lane's entry hides the trunk's of the same target, partition and workload. The
    error is ``NotFound`` if the name has no entry under any of the tags; asking by entry keys never gives it.

    A publish through this replica is seen at once, and one through another that shares its hot store almost.
    """
    keys = [_key(registry, question) for question in questions]
    known: dict[str, bytes | CacheSvcError] = {}
    new: dict[str, Question] = {}
    for key, question in zip(keys, questions, strict=True):
        found = registry.memory.get(key)
        if found is None:
            new[key] = question
        else:
            known[key] = found
    if new:
        known |= _answered(registry, new)
    return [known[key] for key in keys]


def answer(registry: Registry, token: Token, request: ResolveRequest, body: bytes = b"") -> bytes:
    """:func:`answer_each` of one."""
    [made] = answer_each(registry, [Question(token, request, body)])
    if isinstance(made, CacheSvcError):
        raise made
    return made


def remembered(registry: Registry, token: Token, body: bytes) -> bytes | None:
    """The :func:`answer` to a body that was answered before, where that is known without waiting.

    The body is not checked: none but a good one has an answer.
    """
    try:
        asked = json.loads(body)
        namespace, lane = asked["namespace"], asked.get("lane")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    era = registry.hot.near(_ANY_ERA)
    if era:
        era = registry.hot.near(_era(namespace)) if isinstance(namespace, str) else None
    found = None if era is None else registry.memory.near(_answer_key(body, era))
    if found:
        _demand(token, Namespace(namespace), Lane(lane) if lane else None)
    return found or None


def offers(answer: bytes) -> bool:
    """Whether an :func:`answer` holds a revision, without parsing it: its last fields are canonical JSON's
    ``revisions`` and a tag."""
    return b'"revisions":[]' not in answer[-400:]


def forget(registry: Registry, namespace: Namespace) -> None:
    """Remembered answers of a namespace count no more. The mark outlives every answer it replaces."""
    for key in (_era(namespace), _ANY_ERA):  # in this order: who sees the second one looks at the first
        registry.hot.put(key, secrets.token_bytes(8))


def _key(registry: Registry, question: Question) -> str:
    era = registry.hot.get(_ANY_ERA) and registry.hot.get(_era(question.request.namespace))
    return _answer_key(question.body or codec.canonical(question.request), era or b"")


def _answered(registry: Registry, questions: dict[str, Question]) -> dict[str, bytes | CacheSvcError]:
    made: dict[str, bytes | CacheSvcError] = {}
    try:
        found = _candidates_of_each(registry, list(questions.values()))
    except CacheSvcError as error:
        return dict.fromkeys(questions, error)
    for (key, question), (tag, heads) in zip(questions.items(), found, strict=True):
        try:
            made[key] = told = codec.canonical(_judged(registry, question.request, tag, heads))
            registry.memory.put(key, told)
        except CacheSvcError as error:
            made[key] = error
    return made


def _judged(
    registry: Registry, request: ResolveRequest, tag: Tag | None, found: list[Candidate]
) -> ResolveAnswer:
    if tag is None and not request.entries:
        raise _unknown(registry, request)
    live = [row for row in found if row.expires is None or row.expires > registry.clock()]
    fitting, refused = _judge(_overlaid(live), request)
    fitting, withheld = _offered(registry, fitting, request)
    rejected = (*withheld, *refused)[:MAX_REJECTED]
    fitting.sort(key=lambda row: (row.model is None or row.model != request.model, -row.published))
    revisions = _with_envelopes(registry, fitting[:MAX_RESOLVED])
    _used(registry, fitting, {row.revision for row in revisions})
    return ResolveAnswer(revisions, rejected, tag)


def _demand(token: Token, namespace: Namespace, lane: Lane | None) -> None:
    demand(token, Action.read, namespace, lane)


_ANY_ERA = "eras"
"""Stands as long as any namespace's mark does: without it, none is asked for. Where each of many namespaces
was asked for by itself, ten times a second at most, nearly every resolve asked Redis."""


def _era(namespace: str) -> str:
    return f"era/{namespace}"


def _answer_key(body: bytes, era: bytes) -> str:
    return f"resolve/{hashlib.sha256(body + era).hexdigest()}"


def _candidates_of_each(
    registry: Registry, questions: Sequence[Question]
) -> list[tuple[Tag | None, list[Candidate]]]:
    """For each the tag that has heads, with these; none, if none has."""
    requests = [question.request for question in questions]
    by_tag = [_place(request, request.tags[0]) for request in requests if not request.entries]
    with registry.index.look() as heads:
        newest = iter(heads.under_each(by_tag, CANDIDATES))
        return [_candidates(heads, request, newest) for request in requests]


def _candidates(
    heads: Heads, request: ResolveRequest, newest: Iterator[list[Candidate]]
) -> tuple[Tag | None, list[Candidate]]:
    if request.entries:
        return None, heads.by_key(request.namespace, request.name, request.entries, request.lane)
    found, [tag, *others] = next(newest), request.tags
    while others and not found:
        tag = others.pop(0)
        [found] = heads.under_each([_place(request, tag)], CANDIDATES)
    return (tag, found) if found else (None, [])


def _place(request: ResolveRequest, tag: Tag) -> Place:
    return Place(request.namespace, request.name, tag, request.lane)


def _unknown(registry: Registry, request: ResolveRequest) -> NotFound:
    namespace, name = request.namespace, request.name
    with registry.index.read() as unit:
        tags = unit.entries.tags(namespace, name, (None, request.lane) if request.lane else (None,))
    asked = " or ".join(request.tags)
    if tags:
        return NotFound(f"{namespace}/{name} has no tag {asked}", f"it has: {', '.join(tags[:10])}")
    return NotFound(
        f"nothing is published as {namespace}/{name}:{asked}",
        "check the name, or publish it with cachesvc warm",
    )


def _overlaid(found: Iterable[Candidate]) -> list[Candidate]:
    chosen: dict[tuple[str, str, str, str], Candidate] = {}
    for row in found:
        key = (row.tag, row.target, row.partition, row.workload)
        held = chosen.get(key)
        if held is None or (row.lane and not held.lane):
            chosen[key] = row
    return list(chosen.values())


def _judge(
    found: Iterable[Candidate], request: ResolveRequest
) -> tuple[list[Candidate], tuple[Rejected, ...]]:
    fitting: list[Candidate] = []
    refused: list[tuple[tuple[int, ...], Rejected]] = []
    mine = codec.canonical(request.fingerprint).decode()
    for row in found:
        differences = _differences(mine, row.fingerprint, row.scopes)
        if differences:
            rejected = Rejected(row.entry, row.target, row.tag, differences)
            refused.append(((*nearness(differences), -row.published), rejected))
        else:
            fitting.append(row)
    refused.sort(key=lambda pair: pair[0])
    return fitting, tuple(rejected for _, rejected in refused[:MAX_REJECTED])


def _differences(mine: str, theirs: str, scopes: str) -> tuple[Difference, ...]:
    """Of two fingerprints as JSON, those that decide. Many ask from few environments for what was built in
    few: what was found is kept, unless the texts are long, which nothing honest is."""
    if len(mine) + len(theirs) + len(scopes) > KEPT_CHARACTERS:
        return _differences_kept.__wrapped__(mine, theirs, scopes)
    return _differences_kept(mine, theirs, scopes)


@functools.lru_cache(KEPT_VERDICTS)
def _differences_kept(mine: str, theirs: str, scopes: str) -> tuple[Difference, ...]:
    verdict = compare(json.loads(mine), json.loads(theirs), json.loads(scopes))
    return verdict.differences if isinstance(verdict, Mismatch) else ()


def _offered(
    registry: Registry, fitting: list[Candidate], request: ResolveRequest
) -> tuple[list[Candidate], tuple[Rejected, ...]]:
    """Leaves out those that an operator withholds, those whose signer was removed, and those that are known
    to do nothing in this environment (``domain.usefulness``)."""
    if not any(row.withheld or row.signer_removed or row.quarantined is not None for row in fitting):
        return fitting, ()
    with registry.index.read() as unit:
        withheld = unit.usefulness.quarantined([row.revision for row in fitting if row.withheld])
    offered: list[Candidate] = []
    refused: list[Rejected] = []
    for row in fitting:
        if row.quarantined is not None or row.signer_removed:
            why = row.quarantine_why if row.quarantined is not None else "its signer was removed"
            said = withdrawn_difference(row.revision, why or "")
            refused.append(Rejected(row.entry, row.target, row.tag, (said,)))
            continue
        here = environment(request.fingerprint, json.loads(row.fingerprint), json.loads(row.scopes))
        why = withheld.get((row.revision, here))
        if why is None:
            offered.append(row)
        else:
            refused.append(Rejected(row.entry, row.target, row.tag, (inert_difference(row.revision, why),)))
    return offered, tuple(refused)


def _used(registry: Registry, fitting: list[Candidate], offered: set[Digest]) -> None:
    """Retention goes by it. It must not be the reason that a resolve fails."""
    before = registry.now - USED_STEP_SECONDS
    stale = [row.revision for row in fitting if row.revision in offered and (row.last_used or 0) < before]
    if stale:
        with suppress(CacheSvcError), registry.index.write() as unit:
            unit.entries.used(stale, registry.now)


def _with_envelopes(registry: Registry, rows: list[Candidate]) -> tuple[ResolvedRevision, ...]:
    chosen: list[Candidate] = []
    total = 0
    for row in rows:
        total += row.envelope_bytes
        if chosen and total > MAX_ANSWER_BYTES:
            break
        chosen.append(row)
    envelopes = {row.revision: row.envelope for row in chosen if row.envelope is not None}
    if len(envelopes) < len(chosen):
        with registry.index.look() as heads:
            envelopes |= heads.envelopes([row.revision for row in chosen if row.envelope is None])
    return tuple(
        ResolvedRevision(
            row.entry,
            row.revision,
            envelopes[row.revision].decode(),
            row.pack,
            row.pack_size,
            pack_url(registry, row.revision, row.pack_key),
        )
        for row in chosen
        if row.revision in envelopes
    )
