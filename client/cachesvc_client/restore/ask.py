"""Asks a registry what it offers under a name.

Answers come from the registry, from another process of this node that asked the same just now, or from the
lists of the node's agent; while the registry cannot be reached, the last one counts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.durations import duration_text
from ..wire.errors import CacheSvcError, NotFound, Unavailable
from ..wire.partitions import known_partition
from ..wire.requests.protocol import FEW_RESOLVED, ResolveAnswer, ResolvedRevision, ResolveRequest
from .request import NameRequest
from .settings import Inquiry, RestoreSettings


def ask(
    name_request: NameRequest,
    inquiry: Inquiry,
) -> ResolveAnswer:
    """Return the registry's answer to a start, with what this program used the last time of what the answer
    leaves out; note in `Inquiry.coverage` whether it leaves something out. Raise as `resolve` does."""
    request = name_request.request(inquiry.settings.fingerprint, limit=inquiry.settings.limit)
    try:
        with inquiry.result.timed("resolve"):
            answer = resolve(name_request, request, inquiry)
    except NotFound:
        inquiry.coverage.note_complete(name_request, None)
        raise
    if not (answer.more or answer.older):
        inquiry.coverage.note_complete(name_request, answer.tag)
        return answer
    if answer.more:
        inquiry.coverage.note_truncated(name_request, answer.tag)
    else:
        inquiry.coverage.note_complete(name_request, answer.tag, older=True)
    used = _used_last_time(name_request, answer, inquiry)
    return replace(answer, revisions=(*answer.revisions, *used))


def resolve(
    name_request: NameRequest,
    request: ResolveRequest,
    inquiry: Inquiry,
) -> ResolveAnswer:
    """Return the registry's answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is used, as long as CACHESVC_OFFLINE allows.
    Its revisions pass the same checks, and an image without a compiler could not start otherwise.
    """
    from ..http.registry import parse_resolved

    key = Digest.of(canonical([inquiry.remote.identity, request]))
    if (recent := _recent_answer(key, inquiry)) is not None:
        return recent
    if (listed := _listed_answer(request, inquiry)) is not None:
        return listed
    # A process that waits for another one's answer has the rest of the same time for its own question.
    deadline = time.monotonic() + inquiry.remote.timeout
    with inquiry.target.store.answers.one_question(key, inquiry.remote.timeout / 2) as waited:
        if waited and (recent := _recent_answer(key, inquiry)) is not None:
            return recent
        try:
            raw, age = inquiry.remote.resolve_bytes(request, deadline)
        except CacheSvcError as error:
            if not error.retry:
                raise
            last, problem = _last_answer(key, request, inquiry, error)
            inquiry.result.warn(f"{name_request.name}: {problem}")
            return last
        answer = parse_resolved(raw)
        inquiry.target.store.answers.remember_answer(key, raw, age)
        return answer


def _recent_answer(key: Digest, inquiry: Inquiry) -> ResolveAnswer | None:
    """Return the answer that another process of this node got in the last seconds."""
    from ..http.registry import parse_resolved

    recent = None if inquiry.settings.bypass_cache else inquiry.target.store.answers.recent_answer(key)
    if recent is None:
        return None
    try:
        return parse_resolved(recent)
    except CacheSvcError:
        return None


def _listed_answer(request: ResolveRequest, inquiry: Inquiry) -> ResolveAnswer | None:
    """Return what the lists of this node's agent offer; ``None`` if the registry is to be asked: they are
    too old, or offer nothing that fits."""
    if inquiry.target.offers is None or inquiry.settings.bypass_cache:
        return None
    found = inquiry.target.offers.answer(request, inquiry.target.offers.max_age)
    if found is None or not (found[0].revisions or found[0].more):
        return None
    return found[0]


def _last_answer(
    key: Digest,
    request: ResolveRequest,
    inquiry: Inquiry,
    error: CacheSvcError,
) -> tuple[ResolveAnswer, str]:
    """Return the last answer that this node has while the registry cannot be reached, of this user's store
    or of the agent's lists, whichever is younger; and the line that says so.

    What a registry withholds since then is not known: CACHESVC_OFFLINE bounds for how long. Raises ``error``
    if the node has no answer, ``Unavailable`` if the answer is older than that.
    """
    from ..http.registry import parse_resolved

    store, offers, offline = inquiry.target.store, inquiry.target.offers, inquiry.settings.offline
    age = store.answers.answer_age(key)
    last = store.answers.recent_answer(key, offline)
    listed = offers.answer(request, offline) if offers is not None else None
    allowed = duration_text(offline)
    if listed is not None and (last is None or age is None or listed[1] < age):
        return listed[0], _last_problem(listed[1], offline, error)
    if age is None or (last is None and age <= offline):
        raise error
    if last is None:
        raise Unavailable(
            f"{error.message}; this node's last answer is {duration_text(age)} old, more than the {allowed} "
            "of CACHESVC_OFFLINE",
            error.hint,
        ) from None
    return parse_resolved(last), _last_problem(age, offline, error)


def _last_problem(age: float, allowed: float, error: CacheSvcError) -> str:
    end = time.strftime("%Y-%m-%d %H:%M", time.gmtime(time.time() - age + allowed))
    return (
        f"restored from this node's last answer, which is {duration_text(age)} old (CACHESVC_OFFLINE allows "
        f"{duration_text(allowed)}), and refuses it from {end} UTC on: {error}"
    )


def _used_last_time(
    name_request: NameRequest,
    answer: ResolveAnswer,
    inquiry: Inquiry,
) -> tuple[ResolvedRevision, ...]:
    """Return what this program used the last time of what an answer left out.

    Never raise because of the registry: what is not restored now is asked for later.
    """
    present = {revision.entry for revision in answer.revisions}
    used = inquiry.target.store.used_entries(use_key(inquiry.settings))
    last_time = [entry for entry in used if entry not in present]
    if not last_time:
        return ()
    request = name_request.request(inquiry.settings.fingerprint, entries=tuple(last_time[:FEW_RESOLVED]))
    try:
        with inquiry.result.timed("resolve"):
            return resolve(name_request, request, inquiry).revisions
    except CacheSvcError as error:
        inquiry.result.problems.append(
            f"{name_request.name}: not asked for what was used the last time: {error}"
        )
        return ()


def use_key(settings: RestoreSettings) -> Digest:
    """Name this program, in this environment and with its trusted keys, for the node's memory of what it
    used."""
    trusted = sorted(str(key) for key in settings.acceptance.trusted)
    program = [*sys.argv[:1], str(known_partition(settings.fingerprint)), str(settings.lane or "")]
    return Digest.of(canonical(["cachesvc.uses/1", program, trusted]))
