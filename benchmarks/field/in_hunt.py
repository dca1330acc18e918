"""Has the hunt for false hits try a cache of PyTorch's: the functions that it asks of cachesvc's client."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.field import caches
from tests.differences.hunt.client import loads_and_compiles as loads_and_compiles

_cache = caches.named(os.environ["FIELD_CACHE"])
_place = caches.Place.read(os.environ["FIELD_PLACE"])


def open_builder() -> None:
    """Set the variables of a builder; torch is not imported yet."""
    os.environ.update(_cache.variables(replace(_place, folder=_place.folder.parent / "built"), building=True))


def attach(_: Path) -> None:
    """Bring what the host needs, and set the variables of a service."""
    _cache.bring(_place)
    os.environ.update(_cache.variables(_place))


def before_row(program: str) -> None:
    _cache.load(_place, program)


def after_row(program: str) -> None:
    _cache.save(_place, program)


def folders() -> list[Path]:
    return [_cache.kept(_place), _cache.used(_place)]


def report() -> tuple[str, list[str]]:
    return "", ["this cache gives no reason"]


def frames_given() -> int:
    return 0


def refused_frames() -> list[str]:
    return []


def nothing(*_: Any) -> None:
    """Do nothing: what only cachesvc has."""


publish = judge_torch = read_records = give_no_frames = nothing
