"""Judge which revisions fit an environment, and why the others do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from cachesvc.domain.offers import withheld as withheld_from_all
from cachesvc.index.entries.heads import FEW, Candidate, Group, Heads, Place, Slot
from cachesvc_client.wire.compare import (
    Difference,
    inert_difference,
    nearness,
)
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES
from cachesvc_client.wire.names import Tag
from cachesvc_client.wire.partitions import Offered, environment, newest_first, of_older_models
from cachesvc_client.wire.requests.protocol import (
    MAX_RESOLVED,
    RESOLVED_OF_KEY,
    Rejected,
    ResolveAnswer,
    ResolvedRevision,
    ResolveRequest,
)

from .comparisons import Comparisons
from .context import Registry
from .download import pack_url

MAX_CANDIDATES = 4096
"""Heads under one name and tag that are compared; the newest come first."""
MAX_GROUPS = 256
"""Partitions under one name and tag that are compared, the largest first, where their heads are counted."""
MAX_REJECTED = 64
"""Rejected entries that one answer names."""
MAX_ANSWER_BYTES = MAX_ENVELOPE_BYTES
"""Bytes of the envelopes in one answer; the first envelope is always in it."""

USED_STEP_SECONDS = 6 * 3600
"""Seconds between two records that a revision was offered or used: not every start writes one."""


_T = TypeVar("_T")


class Large(NamedTuple):
    """Says that an answer has ``size`` bytes of envelopes, and is made when these have their place."""

    size: int


def resolve_each(
    registry: Registry, requests: Sequence[ResolveRequest]
) -> Iterator[ResolveAnswer | CacheSvcError]:
    """Yields what :func:`resolve_small` does, with answers of every size and for no one's use: no service
    asks."""
    for answer in resolve_small(registry, requests, None, to_starts=False):
        assert not isinstance(answer, Large)
        yield answer


def resolve_small(
    registry: Registry, requests: Sequence[ResolveRequest], most: int | None, *, to_starts: bool = True
) -> Iterator[ResolveAnswer | Large | CacheSvcError]:
    """Yields the answer to each request, or its error, and `Large` for an answer with more than ``most``
    bytes of envelopes. The database is read for all requests at once: its error is the error of all of them.

    An answer has the compatible heads: those of the request's model first, then the newest. The other
    heads are rejected, the nearest first; of a name with many, one of each partition. A lane's entry hides
    the trunk's of the same target, partition and workload. A request with ``most`` is not answered the heads
    of older models that its compiles find by their keys (`of_older_models`). The error is ``NotFound`` if the
    name has no entry under any of the tags; a request by entries or by keys never gives it. ``to_starts``:
    whether services ask, and so what is offered counts as used.
    """
    return _judge_each(
        registry, requests, lambda request, heads: _judge(registry, request, heads, to_starts, most)
    )


class Offers(NamedTuple):
    """The heads that an environment would be offered. ``left_out``: number of further heads that fit."""

    heads: list[Candidate]
    left_out: int = 0


def offers_each(registry: Registry, requests: Sequence[ResolveRequest]) -> Iterator[Offers | CacheSvcError]:
    """Yields for each request what its environment would be offered now, without envelopes and for no one's
    use. Errors are as of :func:`resolve_small`, but a name without entries offers nothing."""

    def judge(request: ResolveRequest, candidates: _Candidates) -> Offers:
        fitting, _ = _compare_all(_overlay(_live(registry, candidates.heads)), request)
        return Offers(_withhold(registry, fitting, request)[0], candidates.left_out)

    return _judge_each(registry, requests, judge)


def _judge_each(
    registry: Registry, requests: Sequence[ResolveRequest], judge: Callable[[ResolveRequest, _Candidates], _T]
) -> Iterator[_T | CacheSvcError]:
    """Yields what ``judge`` makes of each request and its candidates, or the error."""
    try:
        candidates = _candidates_of_each(registry, requests)
    except CacheSvcError as error:
        yield from [error] * len(requests)
        return
    for request, few in zip(requests, candidates, strict=True):
        try:
            heads = few if isinstance(few, _Candidates) else _of_many_heads(registry, request, few)
            yield judge(request, heads)
        except CacheSvcError as error:
            yield error


def _live(registry: Registry, heads: Iterable[Candidate]) -> list[Candidate]:
    """Returns the heads that have not expired."""
    return [row for row in heads if row.expires is None or row.expires > registry.clock()]


class _Candidates(NamedTuple):
    """The heads that a request is answered from. ``tag``: the request's first tag that has heads; ``None`` if
    no tag has any. ``left_out``: fitting heads that are not among them."""

    tag: Tag | None
    heads: list[Candidate]
    left_out: int = 0


def _judge(
    registry: Registry, request: ResolveRequest, candidates: _Candidates, to_start: bool, most: int | None
) -> ResolveAnswer | Large:
    tag, heads, left_out = candidates
    if tag is None and not request.entries and not request.keys:
        raise _unknown(registry, request)
    fitting, mismatched = _compare_all(_overlay(_live(registry, heads)), request)
    offered, withheld = _withhold(registry, fitting, request)
    rejected = (*withheld, *mismatched)[:MAX_REJECTED]
    offered.sort(key=lambda row: (not _is_of(row, request), *newest_first(row.at, row.entry)))
    older = _unasked_older(offered, request)
    omitted = _may_wait(registry, older) if request.most is not None else frozenset()
    chosen = _within([row for row in offered if row.entry not in omitted][:MAX_RESOLVED])
    size = sum(row.envelope.size for row in chosen)
    if most is not None and size > most:
        return Large(size)
    revisions = _with_envelopes(registry, chosen)
    if to_start:
        answered = {row.revision for row in revisions if row.entry not in older}
        _record_use(registry, (row for row in offered if row.revision in answered))
    return ResolveAnswer(revisions, rejected, tag, more=left_out or None, older=len(omitted) or None)


def _unasked_older(offered: Sequence[Candidate], request: ResolveRequest) -> frozenset[Digest]:
    """Return the offered entries of older models that the request does not ask for: neither by entry or key,
    nor by their model."""
    if request.entries or request.keys:
        return frozenset()
    older = of_older_models(
        Offered(row.entry, row.slot.target, row.model, row.at, row.lane) for row in offered
    )
    return older - {row.entry for row in offered if _is_of(row, request)}


def _is_of(row: Candidate, request: ResolveRequest) -> bool:
    """Return whether a head is of the request's model."""
    return row.model is not None and row.model == request.model


def _may_wait(registry: Registry, entries: frozenset[Digest]) -> frozenset[Digest]:
    """Return those of ``entries`` that a start may do without until a compile needs one of their keys."""
    if not entries:
        return entries
    with registry.index.look() as heads:
        return heads.may_wait(entries)


def _candidates_of_each(registry: Registry, requests: Sequence[ResolveRequest]) -> list[_Candidates | Tag]:
    """Returns the candidates of each request. Where they are many, returns the tag that has them: they are
    read one request after the other, since those of many would fill the memory."""
    by_tag = [_place(request, request.tags[0]) for request in requests if not request.entries]
    with registry.index.look() as heads:
        newest = iter(heads.few_under_each(by_tag))
        return [_candidates(heads, request, newest) for request in requests]


def _candidates(
    heads: Heads, request: ResolveRequest, newest: Iterator[list[Candidate]]
) -> _Candidates | Tag:
    if request.entries:
        rows = heads.by_key(request.namespace, request.name, request.entries, request.lane)
        return _Candidates(None, rows)
    rows, [tag, *others] = next(newest), request.tags
    while others and not rows:
        tag = others.pop(0)
        [rows] = heads.few_under_each([_place(request, tag)])
    if not rows:
        return _Candidates(None, [])
    if request.keys:
        return _Candidates(tag, heads.with_keys(_place(request, tag), request.keys, RESOLVED_OF_KEY))
    return _Candidates(tag, rows) if len(rows) < FEW else tag


def _of_many_heads(registry: Registry, request: ResolveRequest, tag: Tag) -> _Candidates:
    """Returns the candidates of a request under a name and tag with many heads."""
    place = _place(request, tag)
    bounded = request.most is not None and request.lane is None
    with registry.index.look() as heads:
        return (bounded and _of_many(heads, request, place)) or _Candidates(
            tag, heads.newest(place, MAX_CANDIDATES)
        )


def _of_many(heads: Heads, request: ResolveRequest, place: Place) -> _Candidates | None:
    """Returns the candidates of a request that says ``most``, under a name with many heads: compares one head
    of each partition and counts the others. Returns ``None`` if a start could not ask for all that is left
    out: heads that are not found by graphs."""
    most = request.most or 0
    groups = {group.partition: group for group in heads.groups(place, MAX_GROUPS)}
    if any(group.unkeyed for group in groups.values()):
        return None
    samples = {head.slot.partition: head for head in heads.samples(place, list(groups.values()))}
    fitting = _fitting_groups(groups, samples, request)
    others = [head for partition, head in samples.items() if partition not in fitting]
    count = sum(group.heads for group in fitting.values())
    if count <= most:
        rows = [head for partition in fitting for head in heads.of_partition(place, partition, most)]
        return _Candidates(place.tag, [*rows, *others])
    rows = heads.of_model(place, request.model, 4 * most) if request.model is not None else []
    rows = [head for head in rows if head.slot.partition in fitting]
    if len(rows) > most:
        rows = []
    return _Candidates(place.tag, [*rows, *others], count - len(rows))


def _fitting_groups(
    groups: Mapping[Digest, Group], samples: Mapping[Digest, Candidate], request: ResolveRequest
) -> dict[Digest, Group]:
    """Returns the partitions of which heads may fit. Heads of one partition have the same deciding factors,
    but not the same schema: each head that is answered is compared by itself."""
    comparisons = Comparisons(request)
    fitting = {}
    for partition, head in samples.items():
        differences = comparisons.with_head(head)
        if differences is not None and all(row.factor == "schema" for row in differences):
            fitting[partition] = groups[partition]
    return fitting


def _place(request: ResolveRequest, tag: Tag) -> Place:
    return Place(request.namespace, request.name, tag, request.lane)


def _unknown(registry: Registry, request: ResolveRequest) -> NotFound:
    namespace, name = request.namespace, request.name
    with registry.index.read() as unit:
        tags = unit.listing.tags(namespace, name, (None, request.lane) if request.lane else (None,))
    names = " or ".join(request.tags)
    if tags:
        return NotFound(f"{namespace}/{name} has no tag {names}", f"it has: {', '.join(tags[:10])}")
    return NotFound(
        f"nothing is published as {namespace}/{name}:{names}",
        "check the name, or publish it with cachesvc warm",
    )


def _overlay(heads: Iterable[Candidate]) -> list[Candidate]:
    """Omits the trunk's heads that a lane's hide."""
    chosen: dict[Slot, Candidate] = {}
    for row in heads:
        other = chosen.get(row.slot)
        if other is None or (row.lane and not other.lane):
            chosen[row.slot] = row
    return list(chosen.values())


def _compare_all(
    heads: Iterable[Candidate], request: ResolveRequest
) -> tuple[list[Candidate], tuple[Rejected, ...]]:
    """Returns the heads that fit the request's fingerprint, and the others, the nearest first."""
    fitting: list[Candidate] = []
    refused: list[tuple[tuple[Any, ...], Rejected]] = []
    comparisons = Comparisons(request)
    for row in heads:
        differences = comparisons.with_head(row)
        if differences is None:
            break
        if differences:
            rejected = _rejected(row, differences)
            refused.append(((*nearness(differences), *newest_first(row.at, row.entry)), rejected))
        else:
            fitting.append(row)
    refused.sort(key=lambda pair: pair[0])
    return fitting, tuple(rejected for _, rejected in refused[:MAX_REJECTED])


def _rejected(row: Candidate, differences: tuple[Difference, ...]) -> Rejected:
    return Rejected(row.entry, row.slot.target, row.slot.tag, differences)


def _withhold(
    registry: Registry, fitting: list[Candidate], request: ResolveRequest
) -> tuple[list[Candidate], tuple[Rejected, ...]]:
    """Omits the heads that an operator withholds, those whose signer was removed or revoked, those that
    were not built as the namespace requires, and those that are known to do nothing in this environment
    (``domain.usefulness``)."""
    withdrawn = {row.revision: cause for row in fitting if (cause := withheld_from_all(row)) is not None}
    if not withdrawn and not any(row.withheld for row in fitting):
        return fitting, ()
    with registry.index.read() as unit:
        withheld = unit.usefulness.quarantined([row.revision for row in fitting if row.withheld])
    offered: list[Candidate] = []
    refused: list[Rejected] = []
    for row in fitting:
        if (difference := withdrawn.get(row.revision)) is not None:
            refused.append(_rejected(row, (difference,)))
            continue
        here = environment(request.fingerprint, *map(json.loads, row.built_for))
        why = withheld.get((row.revision, here))
        if why is None:
            offered.append(row)
        else:
            refused.append(_rejected(row, (inert_difference(row.revision, why),)))
    return offered, tuple(refused)


def unrecorded_uses(registry: Registry, used: Iterable[tuple[Digest, int | None]]) -> list[Digest]:
    """Return which of the revisions that are used now retention does not know as used lately. ``used``: each
    with when its last use was recorded."""
    before = registry.now - USED_STEP_SECONDS
    return sorted({revision for revision, last in used if (last or 0) < before})


def _record_use(registry: Registry, rows: Iterable[Candidate]) -> None:
    """Records for retention that revisions were offered. A failure of this does not fail the resolve. What an
    older model has is not used by an offer that no one asked for: the report of a start says whether it
    is."""
    stale = unrecorded_uses(registry, ((row.revision, row.last_used) for row in rows))
    if stale and not registry.packs.reserve.tend():
        with suppress(CacheSvcError), registry.index.write() as unit:
            unit.entries.used(stale, registry.now)


def _within(rows: Iterable[Candidate]) -> list[Candidate]:
    """Return the first rows, as many as an answer may have the envelopes of."""
    chosen: list[Candidate] = []
    total = 0
    for row in rows:
        total += row.envelope.size
        if chosen and total > MAX_ANSWER_BYTES:
            break
        chosen.append(row)
    return chosen


def _with_envelopes(registry: Registry, chosen: list[Candidate]) -> tuple[ResolvedRevision, ...]:
    envelopes = {row.revision: row.envelope.data for row in chosen if row.envelope.data is not None}
    if len(envelopes) < len(chosen):
        with registry.index.look() as heads:
            envelopes |= heads.envelopes([row.revision for row in chosen if row.envelope.data is None])
    return tuple(
        ResolvedRevision(
            row.entry,
            row.revision,
            envelopes[row.revision].decode(),
            row.pack.digest,
            row.pack.size,
            pack_url(registry, row.revision, row.pack.key),
        )
        for row in chosen
        if row.revision in envelopes
    )
