"""Every parser with a few hundred hostile inputs; and the faults that the fuzzer must find.

`make fuzz` searches further.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .choices import ByteRandom, mutate
from .parsers import all_parsers, opened
from .planted import BUDGET, FAULTS, search

EXAMPLES = 250
"""Inputs of each parser in a run of the tests."""


@pytest.mark.parametrize("name", sorted(all_parsers()))
def test_hostile_input_ends_in_a_documented_error(name: str) -> None:
    outcomes: set[str] = set()
    with opened(all_parsers()[name]) as check:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,  # the same inputs in each run; `make fuzz` takes others
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.randoms(use_true_random=False))
        def every(choose: random.Random) -> None:
            outcomes.add(check(choose))

        every()
    assert len(outcomes) > 3, "the inputs do not reach the parser"


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, Any]]:
    return {finding["fault"]: finding for finding in search()}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_found(findings: dict[str, dict[str, Any]], name: str) -> None:
    """The same search finds nothing in the code as it is: the test above."""
    assert findings[name]["inputs"] is not None, f"not found in {BUDGET} inputs"
    assert findings[name]["control"] == "", "the code without the fault fails too"


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 5, bytes(range(256))])
def test_choices_come_from_bytes_and_end_with_them(data: bytes) -> None:
    value = {"a": [1, {"b": "text"}], "c": None}
    assert mutate(ByteRandom(data), value) == mutate(ByteRandom(data), value)
    assert value == {"a": [1, {"b": "text"}], "c": None}
