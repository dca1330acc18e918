"""Say what operators search entries by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import col

from cachesvc.domain.access import ANY

from ..tables import EntryRow, RevisionRow
from .entries import between_spaces


@dataclass(frozen=True, slots=True)
class Built:
    """For what an entry was built; ``None`` matches everything. ``model``: the beginning of its hash, with or
    without ``sha256:``. ``torch``: a version or the beginning of one. ``gpu``: a part of its name, or of the
    instruction set of a CPU. ``dtype`` and ``shape``: one of the inputs' tensors has it."""

    model: str | None = None
    gpu: str | None = None
    torch: str | None = None
    dtype: str | None = None
    shape: str | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Conditions of a search; ``None`` and empty match everything. ``lanes``: ``None`` is every lane, ``""``
    the trunk."""

    namespace: str = ANY
    lanes: tuple[str, ...] | None = None
    name: str | None = None
    tag: str | None = None
    target: str | None = None
    built: Built = Built()
    pinned: bool = False
    unused_since: int | None = None


def conditions(search: Search) -> list[Any]:
    """Return the conditions of a search, for a query of entries and their heads."""
    built = search.built
    fingerprint: Any = col(RevisionRow.fingerprint)
    found: list[Any] = []
    for column, value in ((EntryRow.name, search.name), (EntryRow.tag, search.tag)):
        if value:
            found.append(col(column) == value)
    if search.namespace != ANY:
        found.append(col(EntryRow.namespace) == search.namespace)
    if search.lanes is not None:
        found.append(col(EntryRow.lane).in_(search.lanes))
    if search.target:
        found.append(col(EntryRow.target).contains(search.target, autoescape=True))
    if built.model:
        beginning = "sha256:" + built.model.removeprefix("sha256:")
        found.append(col(EntryRow.model).startswith(beginning, autoescape=True))
    if built.gpu:
        devices = (fingerprint[name].as_string() for name in ("gpu", "cpu_isa"))
        found.append(sa.or_(*(one.icontains(built.gpu, autoescape=True) for one in devices)))
    if built.torch:
        version = fingerprint["torch"].as_string()
        parts = [version.startswith(built.torch + end, autoescape=True) for end in ".+"]
        found.append(sa.or_(version == built.torch, *parts))
    for facet, value in ((EntryRow.dtypes, built.dtype), (EntryRow.shapes, built.shape)):
        if value:
            found.append(col(facet).contains(between_spaces([value]), autoescape=True))
    if search.pinned:
        found.append(col(RevisionRow.pinned).is_not(None))
    if search.unused_since is not None:
        last = sa.func.coalesce(col(RevisionRow.last_used), 0)
        found += [last < search.unused_since, col(RevisionRow.published) < search.unused_since]
    return found
