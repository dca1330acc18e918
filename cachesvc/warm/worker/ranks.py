"""Name where each rank of a script or an engine puts what it made, and combine the results of all ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.ranks.join_files import join_captures
from cachesvc_client.wire import codec
from cachesvc_client.wire.facts import union

from .. import kinds_used
from .phase import CapturedFile, PhaseRequest, PhaseResult, Times


def result_file(result: Path, rank: int) -> Path:
    """Return where a rank writes its result: beside ``result``, the file of a phase of one process."""
    return result.with_stem(f"{result.stem}-{rank}")


def rank_folder(stage: Path, rank: int) -> Path:
    """Return the folder to which a rank copies its captured files, until those of all ranks are joined."""
    return stage / f"rank-{rank}"


def combine_files(request: PhaseRequest, result: Path) -> PhaseResult | None:
    """Return one result of the ranks of a script, which left their results beside the file ``result``.

    ``None`` if a rank left no result and no rank says why.
    """
    files = {rank: result_file(result, rank) for rank in range(request.ranks)}
    results = {
        rank: codec.build(PhaseResult, json.loads(path.read_text()))
        for rank, path in files.items()
        if path.is_file()
    }
    if len(results) < request.ranks and not any(one.error for one in results.values()):
        return None
    return combine_results(results, request.stage)


def combine_results(results: Mapping[int, PhaseResult], stage: str) -> PhaseResult:
    """Return one result of all ranks: counts are sums, times those of the slowest rank, files those of all.

    An error is that of the first rank that has one. ``stage``: where the files that each rank captured are
    put together; if it is empty, none were captured.
    """
    for rank, one in sorted(results.items()):
        if one.error:
            return replace(one, error=f"rank {rank}: {one.error}")
    every = [one for _, one in sorted(results.items())]
    return replace(
        every[0],
        times=_slowest([one.times for one in every]),
        observation=_sum([one.observation for one in every if one.observation is not None]),
        files_read=_union([one.files_read for one in every]),
        files_required=_union([one.files_required for one in every]),
        files_added=_union([one.files_added for one in every]),
        files_emitted=_union([one.files_emitted for one in every]),
        files_of_libraries=_union([one.files_of_libraries for one in every]),
        capture=_join_captures(results, Path(stage)) if stage else (),
        scopes=_union([one.scopes for one in every]),
        graph_requests=union(one.graph_requests for one in every),  # each rank has a device of its own
    )


def _slowest(times: Sequence[Mapping[str, Times]]) -> dict[str, Times]:
    return {name: Times(max(one[name].first for one in times)) for name in times[0]}


def _sum(observations: Sequence[Observation]) -> Observation:
    return codec.build(Observation, codec.plain(_summed(observations)))


def _summed(values: Sequence[Any], name: str = "") -> Any:
    """Return the sum of equal fields, part by part; of texts each once, but of ``processes`` all."""
    first = values[0]
    if is_dataclass(first):
        return {
            one.name: _summed([getattr(of, one.name) for of in values], one.name) for one in fields(first)
        }
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _summed([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, tuple):
        items = [item for value in values for item in value]
        return items if name == "processes" else list(dict.fromkeys(items))
    return sum(values)


def _union(names: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for listed in names for name in listed}))


def _join_captures(results: Mapping[int, PhaseResult], stage: Path) -> tuple[CapturedFile, ...]:
    """Move the files that the ranks captured into the stage, each path once."""
    sources = {
        rank: [
            SourceFile(file.kind, file.path, rank_folder(stage, rank) / file.kind / file.path, file.mode)
            for file in result.capture
        ]
        for rank, result in results.items()
    }
    capture = []
    for file in join_captures(sources, kinds_used.rule_of):
        path = stage / file.kind / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file.data, bytes):
            path.write_bytes(file.data)
        else:
            file.data.rename(path)
        capture.append(CapturedFile(file.kind, file.path, path.stat().st_size, file.mode, file.ranks))
    for rank in results:
        shutil.rmtree(rank_folder(stage, rank), ignore_errors=True)
    return tuple(capture)
