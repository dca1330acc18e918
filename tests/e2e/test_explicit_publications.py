"""Publish by a call from several builds of one name: each publication keeps what the others compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import SCALAR, run
from .registries import Served

pytestmark = pytest.mark.compiles


def test_builds_of_one_name_that_publish_by_a_call_are_all_hit(tmp_path: Path, registry: Served) -> None:
    name = "name=team/builds"
    for batch in (8, 12, 20):
        words = (name, "small=1", f"batch={batch}", "publish=1")
        variables = {**SCALAR, **registry.publisher, "CACHESVC_MODE": "readwrite", "CACHESVC_WAIT": "compile"}
        run("serve.py", *words, place=tmp_path / f"{batch}", prepared=True, **variables).answer  # noqa: B018
    words = (name, "small=1", "batch=8", "more=12 20")
    variables = {**SCALAR, **registry.variables}
    result = run("serve.py", *words, place=tmp_path / "reader", compilers=False, prepared=True, **variables)
    assert (result.answer["state"], result.answer["observed"]["compilations"]) == ("hit", 0), result.answer
