"""Count the outcomes of starts by revision and environment, and withhold what is inert."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc.domain.usefulness import UNKNOWN_NAMESPACES, InertHost
from cachesvc.index.entries.ages import compile_seconds
from cachesvc.index.starts.cold_starts import ColdRecord
from cachesvc.index.starts.days import ColdStartOfDay
from cachesvc.index.starts.nodes import NodeReport
from cachesvc.index.starts.usefulness import Earlier, InertPlace, Reported, Start
from cachesvc.index.unit import Unit
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.compare import Mismatch, compare
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, NotFound, TooMany
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Name, Namespace
from cachesvc_client.wire.partitions import environment, known_partition
from cachesvc_client.wire.requests.reports import (
    ColdName,
    ColdStart,
    KindWork,
    ReportAnswer,
    ReportRequest,
    RevisionReport,
)

from .answers import forget_answers
from .context import Registry
from .resolve import unrecorded_uses
from .withholding import USED, apply_outcome

RATE_SECONDS = 5
"""Seconds over which the reports of a token are counted."""
RATE = 2000
"""Reports that a token may send to one replica in ``RATE_SECONDS``: enough for a fleet of 1,000 that starts
at once."""
MAX_REPORTS = 256
"""Reports that one transaction counts, at most: a writer that waits for it waits for about 0.1 s."""
MAX_SPENT_SECONDS = 86_400.0
"""Seconds that one start spends on compiling, at most: of a report that states more, this is counted."""
FACTS = ("gpu", "torch", "triton", "platform", "cpu_isa", "python_abi")
"""Factors by which people recognise an environment."""

_MAX_KEPT_BYTES = 8 << 10
"""Bytes of the facts of an environment that are kept, at most."""


@dataclass(frozen=True, slots=True)
class SentReport:
    """A report, and the token that sent it."""

    token: Token
    request: ReportRequest


def report(registry: Registry, token: Token, request: ReportRequest) -> ReportAnswer:
    """Counts one start, whole or not at all; in the place of its earlier report, if it names one.

    Raises ``NotFound`` for a revision that does not exist or that the token may not see, ``Forbidden``
    without the role *report*, ``InvalidRequest`` for an environment that the revision does not fit (it cannot
    have been installed there), ``TooMany``.
    """
    [answer] = report_each(registry, [SentReport(token, request)])
    if isinstance(answer, Exception):
        raise answer
    return answer


def report_each(registry: Registry, sent: Sequence[SentReport]) -> list[ReportAnswer | Exception]:
    """Counts the starts of several reports in one transaction; returns for each what :func:`report` returns
    or raises.

    A transaction is written through to the disk, which needs longer than to count. Reports that fail together
    are counted one by one, so that none fails for another one's sake.
    """
    errors = [_rate_error(registry, each.token) for each in sent]
    answers = iter(
        _count_together(registry, [each for each, error in zip(sent, errors, strict=True) if not error])
    )
    return [error or next(answers) for error in errors]


def _count_together(registry: Registry, sent: Sequence[SentReport]) -> list[ReportAnswer | Exception]:
    answers: list[ReportAnswer | Exception] = [ReportAnswer(_counted(each.request)) for each in sent]
    moved: set[Namespace] = set()
    try:
        registry.packs.reserve.demand()
        with registry.index.write() as unit:
            _count_each(registry, unit, sent, answers, moved)
    except Exception as error:  # noqa: BLE001 - the callers get it
        if len(sent) == 1:
            return [error]
        return [answer for each in sent for answer in _count_together(registry, [each])]
    for namespace in moved:
        forget_answers(registry, namespace)
    return answers


def _counted(request: ReportRequest) -> int:
    return len(request.revisions if request.cold is None else request.cold.names)


def _count_each(
    registry: Registry,
    unit: Unit,
    sent: Sequence[SentReport],
    answers: list[ReportAnswer | Exception],
    moved: set[Namespace],
) -> None:
    """Counts within a transaction; sets the answers of those that are refused and of those whose revision is
    withheld, and adds to ``moved`` the namespaces whose offers change."""
    named = {row.revision for each in sent for row in each.request.revisions}
    subjects = unit.usefulness.subjects(sorted(named))
    rows: list[tuple[int, RevisionReport]] = []
    cold: list[tuple[int, ColdName]] = []
    for number, each in enumerate(sent):
        try:
            if each.request.cold is not None:
                cold += [(number, name) for name in _checked_names(unit, each.token, each.request.cold)]
            for row in each.request.revisions:
                _check(each.token, each.request, row, subjects.get(row.revision))
        except CacheSvcError as error:
            answers[number] = error
        else:
            rows += [(number, row) for row in each.request.revisions]
    earlier = [_earlier(each.request) for each in sent]
    outcomes = []
    for number, row in rows:
        request, subject = sent[number].request, subjects[row.revision]
        where = environment(request.fingerprint, subject.fingerprint, subject.scopes)
        start = _start(request, row, subject, where, earlier[number].get(row.revision), registry.now)
        outcomes.append(_Outcome(number, row, subject, start))
    # In one order, so that two transactions with the same revisions do not wait for each other in a circle.
    outcomes.sort(key=lambda one: (one.start.revision, one.start.environment))
    for _, group in groupby(outcomes, key=lambda one: (one.start.revision, one.start.environment)):
        of_one_place = list(group)
        for start in _merge([one.start for one in of_one_place]):
            unit.usefulness.add(start)
        _apply_outcomes(registry, unit, sent, of_one_place, answers, moved)
    unit.nodes.add(
        [
            NodeReport(
                one.row.revision, report.request.node, report.token.token, one.row.state, one.start.now
            )
            for one in sorted(outcomes, key=lambda one: one.number)
            for report in [sent[one.number]]
        ]
    )
    starts: list[tuple[Namespace, int, Start | ColdStartOfDay]] = [
        (one.subject.namespace, one.number, one.start) for one in outcomes
    ]
    for number, name in sorted(cold, key=lambda one: dataclasses.astuple(one[1])[:3]):
        starts.append((name.namespace, number, _count_cold(unit, sent[number].request, name, registry.now)))
    _count_by_day(unit, sent, starts)
    used = [(one.row.revision, one.subject.last_used) for one in outcomes if one.row.state in USED]
    if unrecorded := unrecorded_uses(registry, used):
        unit.entries.used(unrecorded, registry.now)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A row of the report with a ``number``, about the revision ``subject``."""

    number: int
    row: RevisionReport
    subject: Reported
    start: Start


def _merge(starts: Iterable[Start]) -> Iterator[Start]:
    """Yields starts of one revision and environment, those with equal outcomes as one. A start that was
    reported before stays single, and comes in its order after the new ones."""
    again = []
    equal: dict[tuple[str, str], Start] = {}
    for start in starts:
        if start.earlier is not None:
            again.append(start)
            continue
        before = equal.get((start.state, start.why))
        if before is not None:
            start = replace(
                start,
                times=before.times + start.times,
                saved=before.saved + start.saved,
                spent=before.spent + start.spent,
            )
        equal[start.state, start.why] = start
    yield from equal.values()
    yield from again


def _apply_outcomes(
    registry: Registry,
    unit: Unit,
    sent: Sequence[SentReport],
    outcomes: Sequence[_Outcome],
    answers: list[ReportAnswer | Exception],
    moved: set[Namespace],
) -> None:
    """Lifts or sets the quarantine of one revision in one environment, report by report."""
    used = False
    for one in outcomes:
        if used and one.row.state in USED:
            continue  # the start before it has lifted whatever there was
        used = one.row.state in USED
        token, request = sent[one.number].token, sent[one.number].request
        host, where = InertHost(token.token, request.node), one.start.environment
        now_withheld, changed = apply_outcome(
            registry, unit, token, one.subject, host, one.row, where, request.why
        )
        if changed:
            moved.add(one.subject.namespace)
        answer = answers[one.number]
        if now_withheld and isinstance(answer, ReportAnswer):
            answers[one.number] = replace(answer, quarantined=(*answer.quarantined, one.row.revision))


def _checked_names(unit: Unit, token: Token, cold: ColdStart) -> tuple[ColdName, ...]:
    """Return the names of a cold start. Raise ``Forbidden``, and ``NotFound`` for a namespace without entries
    once ``UNKNOWN_NAMESPACES`` of them are counted, so that no token fills the index with namespaces."""
    for one in cold.names:
        demand(token, Action.report, one.namespace, one.lane)
        if unit.namespaces.exists(one.namespace):
            continue
        counted = unit.cold_starts.unknown_namespaces()
        if one.namespace not in counted and len(counted) >= UNKNOWN_NAMESPACES:
            raise NotFound(f"namespace {one.namespace} does not exist", "check the name, or publish it")
    return cold.names


def _count_cold(unit: Unit, request: ReportRequest, name: ColdName, now: int) -> ColdStartOfDay:
    """Counts a start that was offered nothing under a name; returns it as its day counts it."""
    assert request.cold is not None
    share = len(request.cold.names)
    spent = _bounded_spent(request.kinds) / share
    before = None if request.replaces is None else _bounded_spent(request.replaces.kinds) / share
    start = ColdRecord(
        environment=known_partition(request.fingerprint),
        fingerprint=request.fingerprint,
        models=request.cold.models,
        starts=1,
        spent=spent,
        last_seen=now,
        lane=name.lane,
    )
    if _is_small(request.fingerprint):
        unit.cold_starts.add(Name(name.namespace, name.name, name.tag), start, before)
    return ColdStartOfDay(spent, now, None if before is None else Earlier("miss", 0.0, before))


def _start(
    request: ReportRequest,
    row: RevisionReport,
    subject: Reported,
    where: Digest,
    earlier: Earlier | None,
    now: int,
) -> Start:
    return Start(
        revision=row.revision,
        environment=where,
        facts=recognised(request.fingerprint),
        state=row.state,
        saved=_bounded_saved(row.saved, subject),
        spent=_bounded_spent(request.kinds) / len(request.revisions),
        earlier=_bounded_earlier(earlier, subject),
        why="; ".join(request.why)[:500] if row.state in ("inert", "partial") else "",
        now=now,
    )


def _count_by_day(
    unit: Unit, sent: Sequence[SentReport], starts: Sequence[tuple[Namespace, int, Start | ColdStartOfDay]]
) -> None:
    """Counts the starts on their day, and writes down the facts of their environments. Comes last: many
    reports of a namespace change the same row, and wait for each other until the transaction ends."""
    places = {
        (namespace, start.environment): (number, start.now)
        for namespace, number, start in starts
        if isinstance(start, Start)
    }
    for (namespace, where), (number, now) in sorted(places.items()):
        if _is_small(sent[number].request.fingerprint):
            unit.environments.add(namespace, where, sent[number].request.fingerprint, now)
    by_namespace: dict[Namespace, list[tuple[int, Start | ColdStartOfDay]]] = {}
    for namespace, number, start in sorted(starts, key=lambda one: one[1]):
        by_namespace.setdefault(namespace, []).append((number, start))
    for namespace, of_namespace in sorted(by_namespace.items()):
        new = [start for _, start in of_namespace if start.earlier is None]
        if new:
            unit.days.add(namespace, new)
        # After the new ones, from which an earlier report of this batch is subtracted.
        again = (one for one in of_namespace if one[1].earlier is not None)
        for _, of_request in groupby(again, key=lambda one: one[0]):
            unit.days.add(namespace, [start for _, start in of_request])


def _is_small(fingerprint: Fingerprint) -> bool:
    """Return whether the facts of an environment are kept, so that lists of hundreds stay small. Those of
    services have 1 to 2 KB, and anyone who reports decides how many these are."""
    return len(canonical(fingerprint)) <= _MAX_KEPT_BYTES


def _bounded_spent(kinds: Mapping[str, KindWork]) -> float:
    return min(sum(work.seconds for work in kinds.values()), MAX_SPENT_SECONDS)


def _bounded_saved(saved: float | None, subject: Reported) -> float:
    """Returns the seconds that a start saved, and no more than the builder spent: a token that reports would
    otherwise make any entry the one that saves most."""
    return min(saved or 0.0, compile_seconds(subject.measured))


def _bounded_earlier(earlier: Earlier | None, subject: Reported) -> Earlier | None:
    return None if earlier is None else replace(earlier, saved=_bounded_saved(earlier.saved, subject))


def _earlier(request: ReportRequest) -> dict[Digest, Earlier]:
    """Returns what the earlier report of the same start counted, by revision."""
    if request.replaces is None or not request.replaces.revisions:
        return {}
    spent = _bounded_spent(request.replaces.kinds) / len(request.replaces.revisions)
    return {row.revision: Earlier(row.state, row.saved or 0.0, spent) for row in request.replaces.revisions}


def inert_since(registry: Registry, by: Token, since: int, limit: int) -> list[InertPlace]:
    """Returns where revisions of the admin's namespace became inert at ``since`` (seconds of UTC) or later,
    the newest first: starts compiled there although the revision was installed, and none has used it
    since."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.usefulness.inert_since(by.namespace, since, limit)


def _rate_error(registry: Registry, token: Token) -> TooMany | None:
    """Counts a report of a token; returns the error if there are too many."""
    span = int(registry.clock()) // RATE_SECONDS
    key = f"reports/{token.token}/{span}"
    if registry.memory.count(key, RATE_SECONDS) <= RATE:
        return None
    return TooMany(
        f"token {token.token}: more than {RATE} reports in {RATE_SECONDS} s", "they are counted best effort"
    )


def _check(token: Token, request: ReportRequest, row: RevisionReport, subject: Reported | None) -> None:
    if subject is None or not may(token, Action.read, subject.namespace, subject.lane):
        raise NotFound(f"revision {row.revision} does not exist", "it may be gone, which is no harm")
    demand(token, Action.report, subject.namespace, subject.lane)
    verdict = compare(request.fingerprint, subject.fingerprint, subject.scopes)
    if isinstance(verdict, Mismatch):
        raise InvalidRequest(
            f"fingerprint: revision {row.revision[:19]} does not fit it, so it was not installed there: "
            f"{verdict.reason}",
            "report the environment that was resolved with",
        )


def recognised(fingerprint: Mapping[str, object]) -> dict[str, str]:
    """Returns the facts by which people recognise an environment."""
    return {name: str(fingerprint[name])[:100] for name in FACTS if name in fingerprint}
