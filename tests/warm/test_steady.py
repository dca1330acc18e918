"""Test the measurement of steady calls: in turn, with quartiles, and what a difference is worth."""

from __future__ import annotations

import pytest

from cachesvc.warm.worker import steady
from cachesvc.warm.worker.steady import Steady, alternate, faster


def test_the_two_take_turns_in_short_blocks_whose_first_call_does_not_count():
    calls: list[str] = []

    def recorded(letter: str, seconds: float):
        def call() -> float:
            first_of_block = calls[-1:] != [letter]
            calls.append(letter)
            return 99.0 if first_of_block else seconds

        return call

    compiled, eager = alternate(4, compiled=recorded("c", 1.0), eager=recorded("e", 2.0))
    assert "".join(calls) == "ccceee" * 2
    assert (compiled, eager) == (Steady(1.0, 1.0, 1.0), Steady(2.0, 2.0, 2.0))


def test_a_disturbance_of_the_machine_meets_both_sides():
    count = 0

    def on_a_machine_that_slows_down() -> float:
        nonlocal count
        count += 1
        return 1.0 if count <= 12 else 5.0

    compiled, eager = alternate(8, compiled=on_a_machine_that_slows_down, eager=on_a_machine_that_slows_down)
    assert compiled.median == eager.median
    assert compiled.noisy and eager.noisy
    assert faster(compiled, eager) == "unclear"


def test_a_measurement_ends_after_its_seconds(monkeypatch):
    monkeypatch.setattr(steady, "BUDGET_SECONDS", -1.0)
    count = 0

    def call() -> float:
        nonlocal count
        count += 1
        return 1.0

    alternate(1000, compiled=call, eager=call)
    assert count == 2 * (1 + steady.BLOCK_CALLS)


@pytest.mark.parametrize(
    ("compiled", "eager", "expected"),
    [
        (Steady(1.0, 0.9, 1.1), Steady(2.0, 1.2, 2.1), "compiled"),
        (Steady(2.0, 1.2, 2.1), Steady(1.0, 0.9, 1.1), "eager"),
        (Steady(1.0, 0.9, 1.3), Steady(2.0, 1.2, 2.1), "unclear"),
        (None, Steady(1.0, 1.0, 1.0), ""),
    ],
)
def test_a_difference_counts_if_the_quartiles_do_not_overlap(compiled, eager, expected):
    assert faster(compiled, eager) == expected


def test_quartiles_are_those_of_the_calls_and_sums_keep_them():
    one = Steady.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert one == Steady(3.0, 2.0, 4.0)
    assert Steady.total([one, one]) == Steady(6.0, 4.0, 8.0)
    assert one.noisy and not Steady(3.0, 2.9, 3.1).noisy
