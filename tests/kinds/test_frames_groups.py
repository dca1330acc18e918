"""Test what recorded frames say of the process groups of a job."""

from __future__ import annotations

from cachesvc_client.kinds.frames.describe.groups import (
    changed_group,
    groups_of_job,
    is_of_another_rank,
)

GROUPS = {"": "rank 0 of 2", "0": "cpu:gloo, ranks [0, 1], default_pg", "1": "cpu:gloo, ranks [0], tensor"}


def test_equal_groups_have_no_difference() -> None:
    assert changed_group(GROUPS, dict(reversed(GROUPS.items()))) == ""


def test_the_first_difference_names_the_group() -> None:
    turned = GROUPS | {"1": "cpu:gloo, ranks [1], tensor"}
    assert changed_group(GROUPS, turned) == (
        "process group '1' is cpu:gloo, ranks [1], tensor, and was cpu:gloo, ranks [0], tensor"
    )
    assert changed_group(GROUPS, {}) == "the job is none, and was rank 0 of 2"
    more = GROUPS | {"2": "cpu:gloo, ranks [0, 1], other"}
    assert changed_group(GROUPS, more) == "process group '2' is cpu:gloo, ranks [0, 1], other, and was none"


def test_only_a_job_of_the_same_size_has_other_ranks() -> None:
    assert is_of_another_rank(GROUPS, GROUPS | {"": "rank 1 of 2"})
    for rank in ("rank 0 of 2", "rank 0 of 1", "rank 1 of 12"):
        assert not is_of_another_rank(GROUPS, GROUPS | {"": rank}), rank
    assert not is_of_another_rank(GROUPS, {})


def test_a_process_without_groups_has_none() -> None:
    assert groups_of_job() == {}
