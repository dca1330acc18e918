"""Owns ``coverage``: which targets of a name are warm in which environments."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ..config import Config
from ..http.registry import Remote
from ..wire.admin import EntryPage, EntryRecord
from ..wire.compare import Difference
from ..wire.digest import Digest
from ..wire.factors import Facts, Fingerprint
from ..wire.names import Lane, Name, Tag
from ..wire.partitions import known_partition
from ..wire.protocol import EntrySummary, ResolveAnswer, ResolveRequest
from .explain import environment_facts, is_use_here
from .tables import aligned
from .transfer import registry_of

CellState = Literal["warm", "stale", "cold", "failed"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Holds what a service of one environment finds for one target.

    ``state``: *warm* (the registry offers an entry of the newest model), *stale* (it offers an entry of an
    older model), *failed* (it withholds the entry there, or the last starts there compiled all the same), or
    *cold* (no entry fits). ``entry``: the entry that fits, or the nearest that does not. ``why``: why the
    cell is not warm.
    """

    target: str
    state: CellState
    entry: Digest | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentCells:
    """Holds the row of one environment. ``facts``: its fingerprint. ``cells``: one for each target."""

    environment: Digest
    facts: Fingerprint
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Holds the grid of a name: ``targets`` are its columns, and ``environments`` its rows, by torch."""

    name: str
    targets: tuple[str, ...]
    environments: tuple[EnvironmentCells, ...]

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

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns of the grid."""
        return tuple(sorted({row.target for row in self.summaries}))

    def environments(self, others: Iterable[Facts] = ()) -> list[tuple[Digest, Fingerprint]]:
        """Return the rows of the grid by torch: each environment that an entry is for, and ``others``."""
        facts = [*(row.fingerprint for row in self.summaries), *map(environment_facts, others)]
        return sorted(
            _environments(facts).items(),
            key=lambda row: [_version(row[1].get("torch")), *environment_label(row[1])],
        )

    def request(self, here: Fingerprint) -> ResolveRequest:
        """Return the request that a service of the environment ``here`` sends."""
        return ResolveRequest(
            self.name.namespace, self.name.name, here, tags=(self.name.tag,), lane=self.lane
        )

    def rows(
        self, answers: Iterable[tuple[Digest, Fingerprint, ResolveAnswer]]
    ) -> tuple[EnvironmentCells, ...]:
        """Return the row of each environment from the answer to its request."""
        models = _newest_models(self.records)
        return tuple(
            EnvironmentCells(digest, here, _cells(here, self.summaries, answer, models))
            for digest, here, answer in answers
        )


def cover(
    config: Config, name: Name, *, fallback: tuple[Tag, ...] = (), others: Iterable[Facts] = ()
) -> Coverage:
    """Ask the registry what it offers under ``name`` to each environment that an entry of the name is for.

    ``others``: environments to be asked for too, such as one that no pod runs yet. One request for each
    environment. Raises ``NotFound`` if nothing is published under the name, and what `Remote` raises.
    """
    with registry_of(config) as remote:
        tags = name.tags(fallback)
        first = remote.resolve(ResolveRequest(name.namespace, name.name, {}, tags=tags, lane=config.lane))
        chosen = Name(name.namespace, name.name, first.tag or name.tag)
        visible = [row for row in remote.entries(chosen) if row.lane is None or row.lane == config.lane]
        entries = CoveredEntries(chosen, config.lane, tuple(visible), tuple(_records(remote, chosen)))
        rows = entries.rows(
            (digest, here, remote.resolve(entries.request(here)))
            for digest, here in entries.environments(others)
        )
    return Coverage(str(chosen), entries.targets, rows)


def _environments(fingerprints: Iterable[Fingerprint]) -> dict[Digest, Fingerprint]:
    """Return the environments, each once."""
    environments: dict[Digest, Fingerprint] = {}
    for one in fingerprints:
        with suppress(ValueError):  # halves of characters have no digest, and no environment has them
            environments[known_partition(one)] = one
    return environments


def _records(remote: Remote, name: Name) -> list[EntryRecord]:
    query = {"namespace": name.namespace, "name": name.name, "tag": name.tag}
    rows: list[EntryRecord] = []
    cursor: str | None = ""
    while cursor is not None:
        path = "/v1/entries?" + urllib.parse.urlencode({**query, **({"cursor": cursor} if cursor else {})})
        page = remote.call("GET", path, None, EntryPage)
        rows += page.rows
        cursor = page.next
    return rows


def _newest_models(records: Sequence[EntryRecord]) -> dict[Digest, tuple[Digest, Digest]]:
    """Return by entry the model that it is for and the newest model of its target; nothing where either is
    not known."""
    newest: dict[str, EntryRecord] = {}
    for row in records:
        if row.model is not None and row.sequence >= newest.get(row.target, row).sequence:
            newest[row.target] = row
    return {
        row.entry: (row.model, model)
        for row in records
        if row.model is not None and (model := newest[row.target].model) is not None
    }


def _cells(
    here: Fingerprint,
    summaries: Sequence[EntrySummary],
    answer: ResolveAnswer,
    models: dict[Digest, tuple[Digest, Digest]],
) -> tuple[Cell, ...]:
    offered = {revision.entry for revision in answer.revisions}
    rejected = {row.entry: row for row in answer.rejected}
    cells = []
    for target in sorted({row.target for row in summaries}):
        rows = [row for row in summaries if row.target == target]
        found = [_offered_cell(here, row, models.get(row.entry)) for row in rows if row.entry in offered]
        # A target may have entries of several models or input sets: the worst that is offered counts.
        found.sort(key=lambda cell: ("failed", "stale", "warm").index(cell.state))
        kept_out = [rejected[row.entry] for row in rows if row.entry in rejected]
        withheld = next((row for row in kept_out if row.withheld), None)
        if found:
            cells.append(found[0])
        elif withheld is not None:
            cells.append(Cell(target, "failed", withheld.entry, _text(withheld.differences)))
        elif kept_out:
            cells.append(Cell(target, "cold", kept_out[0].entry, _text(kept_out[0].differences)))
        else:
            cells.append(Cell(target, "cold", None, "no entry is offered"))
    return tuple(cells)


def _offered_cell(here: Fingerprint, row: EntrySummary, models: tuple[Digest, Digest] | None) -> Cell:
    used = next((use for use in row.usefulness if is_use_here(here, row, use)), None)
    if used is not None and used.inert_hosts:
        return Cell(
            row.target, "failed", row.entry, f"services compiled all the same: {used.why}".rstrip(": ")
        )
    if models is not None and models[0] != models[1]:
        return Cell(
            row.target, "stale", row.entry, f"for model {models[0][:19]}, the newest is {models[1][:19]}"
        )
    return Cell(row.target, "warm", row.entry)


def _text(found: Sequence[Difference]) -> str:
    first = found[0] if found else None
    return "" if first is None else f"{first.factor}: {first.mine} here, {first.theirs} in the entry"


def render(coverage: Coverage) -> str:
    """Return the text for a terminal: the grid, and a line for each cell that is not warm."""
    cells = coverage.cells
    warm = sum(cell.state == "warm" for cell in cells)
    head = ("torch", "device", "python", *coverage.targets)
    grid = [
        (*environment_label(row.facts), *(cell.state for cell in row.cells)) for row in coverage.environments
    ]
    parts = [f"{coverage.name}: {warm} of {len(cells)} are warm", aligned([head, *grid], "  ")]
    reasons = [
        (f"{cell.target} is {cell.state} on {', '.join(environment_label(row.facts)[:2])}", cell.why)
        for row in coverage.environments
        for cell in row.cells
        if cell.state != "warm"
    ]
    if reasons:
        parts.append("\nnot warm:\n" + aligned(reasons, "  "))
    return "\n".join(parts)


def environment_label(facts: Fingerprint) -> tuple[str, str, str]:
    """Return torch, device and interpreter of an environment, as tables show them."""
    device = facts.get("gpu") or f"cpu {facts.get('cpu_isa', '')}".rstrip()
    return str(facts.get("torch", "-")), str(device), str(facts.get("python_abi", "-"))


def _version(torch: object) -> list[int]:
    numbers = str(torch).partition("+")[0].split(".")
    return [int(number) if number.isascii() and number.isdigit() else 0 for number in numbers]
