"""Finds what a program put into the tables of AOTAutograd, of Inductor and of the dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def changed() -> Iterator[tuple[str, Any]]:
    yield from ()
