"""The ranks of a script target: where each puts its result, and one result of all of them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.ranks.join_files import join_captures
from cachesvc_client.wire import codec
from cachesvc_client.wire.facts import union

from .results import Captured, PhaseResult, Times

if TYPE_CHECKING:
    from .worker import Order


def result_file(answer: Path, rank: int) -> Path:
    """Beside the result of a phase of one process."""
    return answer.with_stem(f"{answer.stem}-{rank}")


def folder(stage: Path, rank: int) -> Path:
    """What a rank captured, until all are one."""
    return stage / f"rank-{rank}"


def combined(order: Order, answer: Path) -> PhaseResult | None:
    """One result of the phase: counts are sums, times those of the slowest, files those of all ranks.

    An error is the first rank's that has one. ``None`` if a rank left no result and none says why.
    """
    files = {rank: result_file(answer, rank) for rank in range(order.ranks)}
    results = {
        rank: codec.build(PhaseResult, json.loads(path.read_text()))
        for rank, path in files.items()
        if path.is_file()
    }
    for rank, result in results.items():
        if result.error:
            return replace(result, error=f"rank {rank}: {result.error}")
    if len(results) < order.ranks:
        return None
    every = [results[rank] for rank in range(order.ranks)]
    return replace(
        every[0],
        times=_slowest([result.times for result in every]),
        observed=_summed([result.observed for result in every if result.observed is not None]),
        read=_union([result.read for result in every]),
        added=_union([result.added for result in every]),
        beside=_union([result.beside for result in every]),
        captured=_captured(results, Path(order.stage)) if order.stage else (),
        scopes=_union([result.scopes for result in every]),
        asked=union(result.asked for result in every),  # each has a device of its own
        restore_seconds=max(result.restore_seconds for result in every),
        seconds=max(result.seconds for result in every),
    )


def _slowest(times: Sequence[Mapping[str, Times]]) -> dict[str, Times]:
    return {name: Times(max(one[name].first for one in times)) for name in times[0]}


def _summed(observed: Sequence[Observation]) -> Observation:
    made: dict[str, object] = {}
    for field in fields(Observation):
        values = [getattr(one, field.name) for one in observed]
        if isinstance(values[0], dict):
            made[field.name] = dict(sum((Counter(value) for value in values), Counter()))
        elif isinstance(values[0], tuple):
            items = [item for value in values for item in value]
            made[field.name] = items if field.name == "processes" else list(dict.fromkeys(items))
        else:
            made[field.name] = sum(values)
    return codec.build(Observation, codec.plain(made))


def _union(names: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for listed in names for name in listed}))


def _captured(results: Mapping[int, PhaseResult], stage: Path) -> tuple[Captured, ...]:
    """Moves what the ranks captured into the stage, each path once."""
    sources = {
        rank: [
            SourceFile(file.kind, file.path, folder(stage, rank) / file.kind / file.path, file.mode)
            for file in result.captured
        ]
        for rank, result in results.items()
    }
    made = []
    for file in join_captures(sources):
        place = stage / file.kind / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file.data, bytes):
            place.write_bytes(file.data)
        else:
            file.data.rename(place)
        made.append(Captured(file.kind, file.path, place.stat().st_size, file.mode, file.ranks))
    for rank in results:
        shutil.rmtree(folder(stage, rank), ignore_errors=True)
    return tuple(made)
