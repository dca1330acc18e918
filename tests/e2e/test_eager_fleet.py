"""Test fleets of real torch processes: one compiles, and the others wait or serve calls eagerly meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleet.torch_services import run_services
from benchmarks.hosts import QUICK
from tests.prepared import COMPILES, prepared_python

pytestmark = pytest.mark.compiles


def test_one_of_two_processes_compiles_and_the_other_serves_meanwhile(tmp_path: Path) -> None:
    row = run_services(2, "eager", tmp_path, variables=QUICK)
    assert (row["compiled"], row["hits"], row["wrong"]) == (1, 1, 0), row
    assert row["eager_calls"] > 5, "it served before the publication was there"
    # The holder publishes seconds after its compile; a call that had waited for it would have been as long.
    assert row["first_call_max_s"] < row["eager_s"] and row["longest_other_call_s"] < row["eager_s"] / 2, row
    assert row["switch_max_s"] < row["eager_s"], row


@pytest.mark.parametrize("policy", ["wait", "eager"])
def test_of_eight_processes_two_compile_if_the_first_is_killed_in_its_compile(
    tmp_path: Path, policy: str
) -> None:
    python = prepared_python(COMPILES, QUICK)
    row = run_services(8, policy, tmp_path, kill_holder=True, variables=QUICK, python=python)
    assert (row["began_to_compile"], row["compiled"], row["hits"], row["wrong"]) == (2, 2, 6, 0), row
