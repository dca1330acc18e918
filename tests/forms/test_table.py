"""Test that the table of forms runs on this source: one form that is recorded, one that is refused with its
reason, and one that needs its state made as a trace makes it. ``make forms`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hosts import use_this_tree
from cachesvc_client.kinds.frames.versions import is_known
from tests.versions.environments import python_of

from .__main__ import run

pytestmark = pytest.mark.compiles


def test_three_forms_come_out_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if not is_known(torch.__version__):
        pytest.skip(f"no frames on torch {torch.__version__}")
    monkeypatch.setenv("PYTHONPATH", "")
    use_this_tree()
    forms = ("loss_inside", "recurrent", "method_of_optimizer")
    rows = run("training", tmp_path / "training", only=forms)
    assert {name: row["outcome"] for name, row in rows.items() if name != "recurrent"} == {
        "loss_inside": "recorded",
        "method_of_optimizer": "recorded",
    }, rows
    lstm = rows["recurrent"]
    assert lstm["outcome"] == "recorded" or "Dynamo does not compile it" in lstm["why"], lstm


def test_recording_breaks_no_trace_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the source of an object that the trace made has no name."""
    monkeypatch.setenv("PYTHONPATH", "")
    use_this_tree()
    rows = run("objects", tmp_path / "objects", str(python_of("2.15.0")), ["made_dictionary"])
    assert rows["made_dictionary"]["outcome"] == "recorded", rows
