"""Test fleets of real torch processes: one compiles, and the others wait or serve calls eagerly meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleet.__main__ import missed_with_torch
from benchmarks.fleet.torch_services import Rollout, run_services
from tests.prepared import COMPILES, prepared_python

from .harness import SCALAR

pytestmark = pytest.mark.compiles


def test_one_of_two_processes_compiles_and_the_other_serves_meanwhile(tmp_path: Path) -> None:
    row = run_services(2, Rollout("eager"), tmp_path, variables=SCALAR)
    assert (row["compiled"], row["hits"], row["wrong"]) == (1, 1, 0), row
    assert row["eager_calls"] > 5, "it served before the publication was there"
    # The holder publishes seconds after its compile; a call that had waited for it would have been as long.
    assert row["first_call_max_s"] < row["eager_s"] and row["longest_other_call_s"] < row["eager_s"] / 2, row
    assert row["switch_max_s"] < row["eager_s"], row


@pytest.mark.parametrize("policy", ["wait", "eager"])
def test_of_eight_processes_two_compile_if_the_first_is_killed_in_its_compile(
    tmp_path: Path, policy: str
) -> None:
    python = prepared_python(COMPILES, SCALAR)
    row = run_services(8, Rollout(policy, kill_holder=True), tmp_path, variables=SCALAR, python=python)
    assert (row["began_to_compile"], row["compiled"], row["hits"], row["wrong"]) == (2, 2, 6, 0), row


@pytest.mark.parametrize(
    "rollout",
    [
        Rollout("wait", fault="partition", deadline=6.0),
        Rollout("wait", fault="registry slow", deadline=40.0),
    ],
    ids=["partition", "slow"],
)
def test_no_process_waits_longer_than_its_deadline_for_a_registry_that_fails(
    tmp_path: Path, rollout: Rollout
) -> None:
    python = prepared_python(COMPILES, SCALAR)
    row = run_services(3, rollout, tmp_path, variables=SCALAR, python=python)
    assert missed_with_torch(row) == [], row
