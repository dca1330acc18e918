"""Gets the answers of a registry to what a start asks.

They come from the registry, from another process of this node that asked the same just now, or from the lists
of the node's agent; while the registry cannot be reached, the last one counts.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.durations import duration_text
from ..wire.errors import CacheSvcError, Unavailable
from ..wire.partitions import known_partition
from ..wire.protocol import FEW_RESOLVED, ResolveAnswer, ResolvedRevision, ResolveRequest
from .plan import NameRequest, RestoreContext

if TYPE_CHECKING:
    from ..http.registry import Remote
    from ..node.installed import RestoreResult


def resolve(
    name_request: NameRequest,
    request: ResolveRequest,
    remote: Remote,
    context: RestoreContext,
    result: RestoreResult,
) -> ResolveAnswer:
    """Returns the registry's answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is used, as long as CACHESVC_OFFLINE allows.
    Its revisions pass the same checks, and an image without a compiler could not start otherwise.
    """
    from ..http.registry import parse_resolved

    key = Digest.of(canonical([remote.identity, request]))
    if (recent := _recent_answer(key, context)) is not None:
        return recent
    if (listed := _listed_answer(request, context)) is not None:
        return listed
    # A process that waits for another one's answer has the rest of the same time for its own question.
    deadline = time.monotonic() + remote.timeout
    with context.store.one_question(key, remote.timeout / 2) as waited:
        if waited and (recent := _recent_answer(key, context)) is not None:
            return recent
        try:
            raw, age = remote.resolve_bytes(request, deadline)
        except CacheSvcError as error:
            if not error.retry:
                raise
            last, problem = _last_answer(key, request, context, error)
            result.warn(f"{name_request.name}: {problem}")
            return last
        answer = parse_resolved(raw)
        context.store.remember_answer(key, raw, age)
        return answer


def _recent_answer(key: Digest, context: RestoreContext) -> ResolveAnswer | None:
    """Returns the answer that another process of this node got in the last seconds."""
    from ..http.registry import parse_resolved

    recent = None if context.fresh else context.store.recent_answer(key)
    if recent is None:
        return None
    try:
        return parse_resolved(recent)
    except CacheSvcError:
        return None


def _listed_answer(request: ResolveRequest, context: RestoreContext) -> ResolveAnswer | None:
    """Returns what the lists of this node's agent offer; ``None`` if the registry is to be asked: they are
    too old, or offer nothing that fits."""
    if context.offers is None or context.fresh:
        return None
    found = context.offers.answer(request, context.offers.max_age)
    if found is None or not (found[0].revisions or found[0].more):
        return None
    return found[0]


def _last_answer(
    key: Digest, request: ResolveRequest, context: RestoreContext, error: CacheSvcError
) -> tuple[ResolveAnswer, str]:
    """Returns the last answer that this node has while the registry cannot be reached, of this user's store
    or of the agent's lists, whichever is younger; and the line that says so.

    What a registry withholds since then is not known: CACHESVC_OFFLINE bounds for how long. Raises ``error``
    if the node has no answer, ``Unavailable`` if the answer is older than that.
    """
    from ..http.registry import parse_resolved

    age = context.store.answer_age(key)
    last = context.store.recent_answer(key, context.offline)
    listed = context.offers.answer(request, context.offline) if context.offers is not None else None
    allowed = duration_text(context.offline)
    if listed is not None and (last is None or age is None or listed[1] < age):
        return listed[0], _last_problem(listed[1], context, error)
    if age is None or (last is None and age <= context.offline):
        raise error
    if last is None:
        raise Unavailable(
            f"{error.message}; this node's last answer is {duration_text(age)} old, more than the {allowed} "
            "of CACHESVC_OFFLINE",
            error.hint,
        ) from None
    return parse_resolved(last), _last_problem(age, context, error)


def _last_problem(age: float, context: RestoreContext, error: CacheSvcError) -> str:
    end = time.strftime("%Y-%m-%d %H:%M", time.gmtime(time.time() - age + context.offline))
    return (
        f"restored from this node's last answer, which is {duration_text(age)} old (CACHESVC_OFFLINE allows "
        f"{duration_text(context.offline)}), and refuses it from {end} UTC on: {error}"
    )


def leave_out(
    name_request: NameRequest,
    answer: ResolveAnswer,
    remote: Remote,
    context: RestoreContext,
    result: RestoreResult,
) -> tuple[ResolvedRevision, ...]:
    """Notes that an answer is not all that fits, and returns what this program used of the rest the last
    time.

    Never raises because of the registry: what is not restored now is asked for later.
    """
    result.more += answer.more or 0
    context.partial.append(name_request.of_tag(answer.tag))
    present = {revision.entry for revision in answer.revisions}
    last_time = [entry for entry in context.store.used_entries(use_key(context)) if entry not in present]
    if not last_time:
        return ()
    request = name_request.request(context.fingerprint, entries=tuple(last_time[:FEW_RESOLVED]))
    try:
        with result.timed("resolve"):
            return resolve(name_request, request, remote, context, result).revisions
    except CacheSvcError as error:
        result.problems.append(f"{name_request.name}: not asked for what was used the last time: {error}")
        return ()


def use_key(context: RestoreContext) -> Digest:
    """Names this program, in this environment and with its trusted keys, for the node's memory of what it
    used."""
    trusted = sorted(str(key) for key in context.acceptance.trusted)
    program = [*sys.argv[:1], str(known_partition(context.fingerprint)), str(context.lane or "")]
    return Digest.of(canonical(["cachesvc.uses/1", program, trusted]))
