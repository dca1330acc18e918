"""Test that a program which answers once and ends keeps and publishes what it recorded: the next start does
not trace. Real processes on fresh hosts, and a real registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .harness import SCALAR, run
from .registries import Served
from .test_as_you_go import LANE

pytestmark = pytest.mark.compiles

READWRITE = {"CACHESVC_MODE": "readwrite", "CACHESVC_LOG": "info"}


def answer(place: Path, name: str, *words: str, **variables: str) -> dict[str, Any]:
    """Return the answer of a program that ends as soon as it has answered."""
    result = run("answering_once.py", name, *words, place=place, **SCALAR, **variables)
    assert result.answer["difference"] < 1e-5, "the outputs are those of eager"
    return {**result.answer, "log": result.err}


def until_recorded(
    place: Path, name: str, is_done: Callable[[dict[str, Any]], bool], *words: str, **variables: str
) -> None:
    """Start until one start has written what it recorded: an exit waits for one second, and says if that was
    too short, as it may be on a busy machine."""
    for number in range(10):
        one = answer(place / str(number), name, *words, **variables)
        assert work(one)[1] is False, one
        if is_done(one) or not one["traces"]:  # the exit may end before its last line
            return
        assert "s into the work at its exit: the rest is lost" in one["log"], one["log"]
    raise AssertionError("no start of ten had the time to record")


def work(one: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether a start traced, and whether it compiled."""
    return one["traces"] > 0, one["compilations"] > 0


def test_programs_that_end_at_once_publish_and_record(tmp_path: Path, registry: Served) -> None:
    name, readwrite = "team/once", {**registry.publisher, **READWRITE}
    first = answer(tmp_path / "first", name, **readwrite)
    assert work(first) == (True, True) and "published into the lane unproven" in first["log"], first
    until_recorded(tmp_path / "second", name, lambda one: "recorded frame" in one["log"], **readwrite)
    third = answer(tmp_path / "third", name, **registry.variables, **LANE)
    assert work(third) == (False, False), third
    again = answer(tmp_path / "again", name, **readwrite)
    assert work(again) == (False, False) and "published" not in again["log"], again


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_reader_that_ends_at_once_records_for_its_node(tmp_path: Path, registry: Served, when: str) -> None:
    """The first trace may begin before the restore ends."""
    name, home = f"team/once-{when}", tmp_path / "node"
    answer(tmp_path / "publisher", name, **registry.publisher, **READWRITE)
    home.mkdir()
    reading = {**registry.variables, **LANE, "CACHESVC_LOG": "info", "HOME": str(home)}
    words = ("early",) if when == "early" else ()
    until_recorded(tmp_path, name, lambda _: any(home.rglob("v1/own/*")), *words, **reading)
    second = answer(tmp_path / "second", name, **reading)
    assert work(second) == (False, False), second
