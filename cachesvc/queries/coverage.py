"""Owns ``coverage``: which targets of a name are warm in which environments, and would be in planned ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from cachesvc.schema.entries import EntryRecord
from cachesvc.schema.wanted import SeenEnvironment
from cachesvc_client.bundle.check import ExpectedStatement
from cachesvc_client.config.settings import Config
from cachesvc_client.console.tables import environment_label
from cachesvc_client.queries.explain import environment_facts, is_use_here
from cachesvc_client.queries.names import suggesting
from cachesvc_client.queries.offer import will_trace
from cachesvc_client.queries.pull import registry_of
from cachesvc_client.queries.trust import registry_policy, trusts_anybody
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.compare import INERT, WITHDRAWN, Difference, differences
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.factors import BY_NAME, Fingerprint
from cachesvc_client.wire.names import Lane, Name, Tag, Target
from cachesvc_client.wire.partitions import Offered, PublishedAt, known_partition, newest_of_targets
from cachesvc_client.wire.requests.protocol import EntrySummary, Rejected, ResolveAnswer, ResolveRequest

from .covered_rows import entry_records, seen_environments
from .planned import Plan, PlannedEnvironment, assumed

COLD_SECONDS = 30 * 86_400
"""Seconds for which an environment is a row because a start there compiled for want of an entry."""
_Accepted = tuple[ResolveAnswer, frozenset[Digest]]
CellState = Literal["warm", "stale", "cold", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Holds what a service of one environment finds for one target.

    ``state``, of the newest entry that the registry offers there: *warm* (it is of the newest model), *stale*
    (it is of an older model than an entry of another environment), *failed* (it withholds the entry there, or
    the last starts there compiled all the same), *cold* (no entry fits), or *unknown* (an entry may fit: of a
    planned environment some facts that decide are not known, or it is not of the model that starts).
    ``entry``: the entry that fits, or the nearest that does not. ``why``: why the cell is not warm.
    ``assumed``: factors of a planned environment that are not known, and are taken to be the entry's.
    ``traced``: whether it is known that a hit traces, because nothing was recorded.
    """

    target: str
    state: CellState
    entry: Digest | None = None
    why: str = ""
    assumed: tuple[str, ...] = ()
    traced: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentCells:
    """Holds the row of one environment. ``facts``: its fingerprint. ``cells``: one for each target.
    ``label``: what its file calls it. ``planned``: whether it is of a plan. ``starts``: starts that services
    of the environment from which it was made reported, as far as the registry was asked."""

    environment: Digest
    facts: Fingerprint
    cells: tuple[Cell, ...]
    label: str = ""
    planned: bool = False
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Holds the grid of a name: ``targets`` are its columns, and ``environments`` its rows, by torch.
    ``gate``: whether only planned environments are in it. ``allowed``: states that may be beside *warm*."""

    name: str
    targets: tuple[str, ...]
    environments: tuple[EnvironmentCells, ...]
    gate: bool = False
    allowed: tuple[CellState, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every cell is warm or in a state that is allowed; never for a grid without cells
        that is a gate, since it has judged nothing."""
        good = all(cell.state in ("warm", *self.allowed) for cell in self.cells)
        return good and bool(self.cells or not self.gate)

    @property
    def cells(self) -> list[Cell]:
        """Return all cells."""
        return [cell for row in self.environments for cell in row.cells]


@dataclass(frozen=True, slots=True)
class CoveredEntries:
    """Holds what a registry has under one name and tag, as far as services of ``lane`` see it: from this, and
    from what is offered to each environment, the grid is judged without any I/O."""

    name: Name
    lane: Lane | None
    summaries: tuple[EntrySummary, ...]
    records: tuple[EntryRecord, ...]
    wanted: tuple[str, ...] = ()
    model: Digest | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns of the grid: the name's targets; with ``wanted``, those of them and what of
        ``wanted`` the name does not have."""
        there = sorted({str(row.target) for row in self.summaries})
        if not self.wanted:
            return tuple(there)
        matches = {
            text: [one for one in there if one == text or _is_below(one, text)] for text in self.wanted
        }
        return tuple(dict.fromkeys(one for text, found in matches.items() for one in found or [text]))

    def environments(
        self, reported: Iterable[SeenEnvironment] = (), since: float = 0
    ) -> list[PlannedEnvironment]:
        """Return the rows of the grid by torch: each environment that an entry is for, and of those that
        ``reported`` starts the ones where a start compiled for want of an entry, at ``since`` (seconds of
        UTC) or later."""
        facts = _environments(row.fingerprint for row in self.summaries)
        rows = {where: PlannedEnvironment(one, planned=False) for where, one in facts.items()}
        for one in reported:
            if one.cold and one.last_seen >= since and one.environment not in rows:
                here = environment_facts(one.fingerprint)
                rows[one.environment] = PlannedEnvironment(here, planned=False, starts=one.starts)
        return by_torch(rows.values())

    def seen(self, reported: Iterable[SeenEnvironment]) -> list[PlannedEnvironment]:
        """Return the environments that the registry has seen: those of entries, and those that ``reported``
        starts, with the number of these."""
        rows = {known_partition(one.facts): one for one in self.environments()}
        for one in reported:
            facts = environment_facts(one.fingerprint)
            rows[one.environment] = PlannedEnvironment(facts, planned=False, starts=one.starts)
        return by_torch(rows.values())

    def request(self, here: Fingerprint) -> ResolveRequest:
        """Return the request that a service of the environment ``here`` sends."""
        return ResolveRequest(
            self.name.namespace,
            self.name.name,
            here,
            tags=(self.name.tag,),
            lane=self.lane,
            model=self.model,
        )

    def accepted(self, answer: ResolveAnswer, acceptance: Acceptance | None) -> _Accepted:
        """Return the answer, with each entry that ``acceptance`` refuses among the rejected ones, and the
        entries whose hits trace; ``None`` judges no signer, and knows none of these."""
        if acceptance is None:
            return answer, frozenset()
        traced: set[Digest] = set()
        expected = ExpectedStatement(self.name.namespace, self.name.name, (self.name.tag,), self.lane)
        targets = {row.entry: row.target for row in self.summaries}
        refused: dict[Digest, Rejected] = {}
        for row in answer.revisions:
            try:
                if will_trace(acceptance.accept(row.envelope_bytes, expected).manifest):
                    traced.add(row.entry)
            except CacheSvcError as error:
                why = Difference("trust", error.message, "as published", True, error.hint)
                target = targets.get(row.entry, Target("unknown"))
                refused[row.entry] = Rejected(row.entry, target, self.name.tag, (why,))
        kept = tuple(row for row in answer.revisions if row.entry not in refused)
        rejected = (*answer.rejected, *refused.values())
        return replace(answer, revisions=kept, rejected=rejected), frozenset(traced)

    def rows(
        self, answers: Iterable[tuple[PlannedEnvironment, ResolveAnswer]]
    ) -> tuple[EnvironmentCells, ...]:
        """Return the row of each environment from the answer to its request."""
        models = self._models()
        return tuple(
            EnvironmentCells(
                known_partition(one.facts),
                one.facts,
                _cells(one, self.summaries, self.targets, answer, models),
                one.label,
                one.planned,
                one.starts,
            )
            for one, answer in answers
        )

    def _models(self) -> dict[Digest, _Models]:
        """Return the models of the entries that are not of the model that starts."""
        records = [row for row in self.records if row.lane in (None, self.lane)]
        if self.model is None:
            return _newer_models(records)
        other = {row.entry: row.model for row in records if row.model != self.model}
        return {entry: _Models(model, self.model, True) for entry, model in other.items()}


class _Models(NamedTuple):
    """The models by which a cell is not warm: that of the entry, and the ``other`` one, which is the newest
    or, if it is ``asked`` for, the one that starts."""

    own: Digest | None
    other: Digest
    asked: bool = False


def cover(
    config: Config,
    name: Name,
    *,
    fallback: tuple[Tag, ...] = (),
    plan: Plan | None = None,
    gate: bool = False,
    allowed: tuple[CellState, ...] = (),
) -> Coverage:
    """Ask the registry what it offers under ``name`` to each environment that an entry of the name is for, or
    where a start compiled lately because none was.

    ``plan``: environments to be asked for too, such as one that no pod runs yet; with ``gate`` only these.
    One request for each environment. Raises ``NotFound`` if nothing is published under the name, and what
    `Remote` raises.
    """
    with registry_of(config) as remote:
        tags = name.tags(fallback)
        with suggesting(remote, name):
            first = remote.resolve(ResolveRequest(name.namespace, name.name, {}, tags=tags, lane=config.lane))
        chosen = Name(name.namespace, name.name, first.tag or name.tag)
        visible = [row for row in remote.entries(chosen) if row.lane is None or row.lane == config.lane]
        entries = CoveredEntries(
            chosen,
            config.lane,
            tuple(visible),
            tuple(entry_records(remote, chosen)),
            () if plan is None else plan.targets,
            None if plan is None else plan.model,
        )
        needed = not gate or (plan is not None and plan.needs_seen)
        reported = seen_environments(remote, chosen, config.lane) if needed else ()
        rows = [] if gate else entries.environments(reported, time.time() - COLD_SECONDS)
        if plan is not None:
            planned = plan.environments(entries.seen(reported))
            there = {known_partition(one.facts) for one in rows}
            rows += [one for one in planned if one.label or known_partition(one.facts) not in there]
        acceptance = config.acceptance(registry_policy(config, remote)) if trusts_anybody(config) else None
        answers = ((one, remote.resolve(entries.request(one.facts))) for one in rows)
        judged = [(one, *entries.accepted(answer, acceptance)) for one, answer in answers]
        cells = entries.rows((one, answer) for one, answer, _ in judged)
        cells = with_traces(cells, frozenset().union(*(row[2] for row in judged)))
    return Coverage(str(chosen), entries.targets, cells, gate, allowed)


def with_traces(rows: Iterable[EnvironmentCells], traced: frozenset[Digest]) -> tuple[EnvironmentCells, ...]:
    """Return the rows with each cell marked whose entry is one of ``traced``: its hits trace."""
    return tuple(
        replace(row, cells=tuple(replace(cell, traced=cell.entry in traced) for cell in row.cells))
        for row in rows
    )


def by_torch(rows: Iterable[PlannedEnvironment]) -> list[PlannedEnvironment]:
    """Return environments in the order in which people look for them: by torch, device and interpreter."""
    return sorted(rows, key=lambda one: [_version(one.facts.get("torch")), *environment_label(one.facts)])


def _is_below(target: str, text: str) -> bool:
    return target.startswith(text.rstrip("/") + "/")


def _environments(fingerprints: Iterable[Fingerprint]) -> dict[Digest, Fingerprint]:
    """Return the environments, each once."""
    environments: dict[Digest, Fingerprint] = {}
    for one in fingerprints:
        with suppress(ValueError):  # halves of characters have no digest, and no environment has them
            environments[known_partition(one)] = one
    return environments


def _newer_models(records: Iterable[EntryRecord]) -> dict[Digest, _Models]:
    """Return by entry its model and the newest model of its target, where that is another one."""
    rows = [
        Offered(row.entry, row.target, row.model, PublishedAt(row.published, row.sequence), row.lane)
        for row in records
        if row.model
    ]
    newest = newest_of_targets(rows)
    return {
        row.entry: _Models(row.model, model)
        for row in rows
        if row.model is not None and (model := newest[row.target].model) is not None and row.model != model
    }


def _cells(
    one: PlannedEnvironment,
    summaries: Sequence[EntrySummary],
    targets: Sequence[str],
    answer: ResolveAnswer,
    models: Mapping[Digest, _Models],
) -> tuple[Cell, ...]:
    offered = {revision.entry for revision in answer.revisions}
    rejected = {row.entry: row for row in answer.rejected}
    # Of the entries of a target, such as those of its former models, the newest that is offered decides; if
    # the model that starts is known, the newest of that one.
    rows_offered = [
        Offered(row.entry, row.target, None, PublishedAt(row.published, row.sequence), row.lane)
        for row in summaries
        if row.entry in offered
    ]
    of_other = {entry for entry, row in models.items() if row.asked}
    newest = newest_of_targets(rows_offered)
    newest |= newest_of_targets(row for row in rows_offered if row.entry not in of_other)
    by_target: dict[str, list[EntrySummary]] = {target: [] for target in targets}
    for row in summaries:
        if row.target in by_target:
            by_target[row.target].append(row)
    cells = []
    for target, rows in by_target.items():
        deciding = newest.get(target)
        kept_out = [rejected[row.entry] for row in rows if row.entry in rejected]
        withheld = next((row for row in kept_out if row.withheld), None)
        doubtful = next((row for row in kept_out if _is_doubtful(one, row)), None)
        if deciding is not None:
            row = next(row for row in rows if row.entry == deciding.entry)
            cells.append(_offered_cell(one, row, models.get(row.entry)))
        elif withheld is not None:
            cells.append(Cell(target, "failed", withheld.entry, _text(withheld.differences)))
        elif doubtful is not None:
            cells.append(Cell(target, "unknown", doubtful.entry, _unknown_text(doubtful.differences)))
        elif kept_out:
            cells.append(Cell(target, "cold", kept_out[0].entry, _text(kept_out[0].differences)))
        elif not rows:
            cells.append(Cell(target, "cold", None, "the name has no such target"))
        else:
            cells.append(Cell(target, "cold", None, "no entry is offered"))
    return tuple(cells)


def _is_doubtful(one: PlannedEnvironment, row: Rejected) -> bool:
    """Return whether an entry does not fit only for facts of a planned environment that are not known."""
    unknown = [
        difference.factor in BY_NAME and difference.factor not in one.facts for difference in row.differences
    ]
    return one.planned and all(unknown)


def _unknown_text(found: Sequence[Difference]) -> str:
    names = [one.factor for one in found]
    values = f"{names[0]}={found[0].theirs}"
    return f"{', '.join(names)}: not known of this plan; say --set {values} if it will be so"


def _offered_cell(one: PlannedEnvironment, row: EntrySummary, models: _Models | None) -> Cell:
    used = next((use for use in row.usefulness if is_use_here(one.facts, row, use)), None)
    if used is not None and used.inert_hosts:
        return Cell(
            row.target, "failed", row.entry, f"services compiled all the same: {used.why}".rstrip(": ")
        )
    if models is not None and models.asked:
        # A comment changes a hash as an operator does: only a start knows.
        has = f"of model {models.own[:19]}" if models.own else "of no known model"
        why = (
            f"no entry here is of model {models.other[:19]}, the newest is {has}; warm --check tries a start"
        )
        return Cell(row.target, "unknown", row.entry, why)
    if models is not None and models.own is not None:
        why = f"for model {models.own[:19]}, the newest is {models.other[:19]}"
        return Cell(row.target, "stale", row.entry, why)
    if not one.planned:
        return Cell(row.target, "warm", row.entry)
    unknown = assumed(one.facts, row.fingerprint, row.scopes)
    # The compiler decides by these, with its own keys: the entry fits, and is probably not used.
    differing = [
        row
        for row in differences(one.facts, row.fingerprint, row.scopes)
        if BY_NAME[row.factor].decider == "compiler"
    ]
    if differing:
        return Cell(
            row.target, "unknown", row.entry, f"{_text(differing)}: PyTorch's own keys decide", unknown
        )
    return Cell(row.target, "warm", row.entry, assumed=unknown)


def _text(found: Sequence[Difference]) -> str:
    first = found[0] if found else None
    if first is None:
        return ""
    if first.factor in (INERT, WITHDRAWN):  # a decision of people or of reports, and no fact of two sides
        return f"{first.factor}: {first.mine}; {first.theirs}"
    return f"{first.factor}: {first.mine} here, {first.theirs} in the entry"


def _version(torch: object) -> list[int]:
    numbers = str(torch).partition("+")[0].split(".")
    return [int(number) if number.isascii() and number.isdigit() else 0 for number in numbers]
