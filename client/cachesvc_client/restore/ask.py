"""Asks a registry what it offers under a name.

Answers come from the registry, from another process of this node that asked the same just now, or from the
lists of the node's agent; while the registry cannot be reached, the last one counts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.durations import duration_text
from ..wire.errors import CacheSvcError, NotFound, Unavailable
from ..wire.partitions import known_partition
from ..wire.protocol import FEW_RESOLVED, ResolveAnswer, ResolvedRevision, ResolveRequest
from .request import Coverage, NameRequest
from .settings import RestoreSettings, RestoreTarget

if TYPE_CHECKING:
    from ..http.registry import Remote
    from ..node.installed import RestoreResult


def ask(
    name_request: NameRequest,
    remote: Remote,
    settings: RestoreSettings,
    target: RestoreTarget,
    result: RestoreResult,
    coverage: Coverage,
) -> ResolveAnswer:
    """Return the registry's answer to a start, with what this program used the last time of what the answer
    leaves out; note in ``coverage`` whether it leaves something out. Raise as `resolve` does."""
    request = name_request.request(settings.fingerprint, limit=settings.limit)
    try:
        with result.timed("resolve"):
            answer = resolve(name_request, request, remote, settings, target, result)
    except NotFound:
        coverage.note_complete(name_request, None)
        raise
    if not answer.more:
        coverage.note_complete(name_request, answer.tag)
        return answer
    coverage.note_truncated(name_request, answer.tag)
    used = _used_last_time(name_request, answer, remote, settings, target, result)
    return replace(answer, revisions=(*answer.revisions, *used))


def resolve(
    name_request: NameRequest,
    request: ResolveRequest,
    remote: Remote,
    settings: RestoreSettings,
    target: RestoreTarget,
    result: RestoreResult,
) -> ResolveAnswer:
    """Return the registry's answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is used, as long as CACHESVC_OFFLINE allows.
    Its revisions pass the same checks, and an image without a compiler could not start otherwise.
    """
    from ..http.registry import parse_resolved

    key = Digest.of(canonical([remote.identity, request]))
    if (recent := _recent_answer(key, settings, target)) is not None:
        return recent
    if (listed := _listed_answer(request, settings, target)) is not None:
        return listed
    # A process that waits for another one's answer has the rest of the same time for its own question.
    deadline = time.monotonic() + remote.timeout
    with target.store.one_question(key, remote.timeout / 2) as waited:
        if waited and (recent := _recent_answer(key, settings, target)) is not None:
            return recent
        try:
            raw, age = remote.resolve_bytes(request, deadline)
        except CacheSvcError as error:
            if not error.retry:
                raise
            last, problem = _last_answer(key, request, settings, target, error)
            result.warn(f"{name_request.name}: {problem}")
            return last
        answer = parse_resolved(raw)
        target.store.remember_answer(key, raw, age)
        return answer


def _recent_answer(key: Digest, settings: RestoreSettings, target: RestoreTarget) -> ResolveAnswer | None:
    """Return the answer that another process of this node got in the last seconds."""
    from ..http.registry import parse_resolved

    recent = None if settings.bypass_cache else target.store.recent_answer(key)
    if recent is None:
        return None
    try:
        return parse_resolved(recent)
    except CacheSvcError:
        return None


def _listed_answer(
    request: ResolveRequest, settings: RestoreSettings, target: RestoreTarget
) -> ResolveAnswer | None:
    """Return what the lists of this node's agent offer; ``None`` if the registry is to be asked: they are
    too old, or offer nothing that fits."""
    if target.offers is None or settings.bypass_cache:
        return None
    found = target.offers.answer(request, target.offers.max_age)
    if found is None or not (found[0].revisions or found[0].more):
        return None
    return found[0]


def _last_answer(
    key: Digest,
    request: ResolveRequest,
    settings: RestoreSettings,
    target: RestoreTarget,
    error: CacheSvcError,
) -> tuple[ResolveAnswer, str]:
    """Return the last answer that this node has while the registry cannot be reached, of this user's store
    or of the agent's lists, whichever is younger; and the line that says so.

    What a registry withholds since then is not known: CACHESVC_OFFLINE bounds for how long. Raises ``error``
    if the node has no answer, ``Unavailable`` if the answer is older than that.
    """
    from ..http.registry import parse_resolved

    age = target.store.answer_age(key)
    last = target.store.recent_answer(key, settings.offline)
    listed = target.offers.answer(request, settings.offline) if target.offers is not None else None
    allowed = duration_text(settings.offline)
    if listed is not None and (last is None or age is None or listed[1] < age):
        return listed[0], _last_problem(listed[1], settings.offline, error)
    if age is None or (last is None and age <= settings.offline):
        raise error
    if last is None:
        raise Unavailable(
            f"{error.message}; this node's last answer is {duration_text(age)} old, more than the {allowed} "
            "of CACHESVC_OFFLINE",
            error.hint,
        ) from None
    return parse_resolved(last), _last_problem(age, settings.offline, error)


def _last_problem(age: float, allowed: float, error: CacheSvcError) -> str:
    end = time.strftime("%Y-%m-%d %H:%M", time.gmtime(time.time() - age + allowed))
    return (
        f"restored from this node's last answer, which is {duration_text(age)} old (CACHESVC_OFFLINE allows "
        f"{duration_text(allowed)}), and refuses it from {end} UTC on: {error}"
    )


def _used_last_time(
    name_request: NameRequest,
    answer: ResolveAnswer,
    remote: Remote,
    settings: RestoreSettings,
    target: RestoreTarget,
    result: RestoreResult,
) -> tuple[ResolvedRevision, ...]:
    """Return what this program used the last time of what an answer left out.

    Never raise because of the registry: what is not restored now is asked for later.
    """
    present = {revision.entry for revision in answer.revisions}
    used = target.store.used_entries(use_key(settings))
    last_time = [entry for entry in used if entry not in present]
    if not last_time:
        return ()
    request = name_request.request(settings.fingerprint, entries=tuple(last_time[:FEW_RESOLVED]))
    try:
        with result.timed("resolve"):
            return resolve(name_request, request, remote, settings, target, result).revisions
    except CacheSvcError as error:
        result.problems.append(f"{name_request.name}: not asked for what was used the last time: {error}")
        return ()


def use_key(settings: RestoreSettings) -> Digest:
    """Name this program, in this environment and with its trusted keys, for the node's memory of what it
    used."""
    trusted = sorted(str(key) for key in settings.acceptance.trusted)
    program = [*sys.argv[:1], str(known_partition(settings.fingerprint)), str(settings.lane or "")]
    return Digest.of(canonical(["cachesvc.uses/1", program, trusted]))
