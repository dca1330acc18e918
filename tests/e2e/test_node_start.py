"""Test that the processes of a node that start at once download once and compile nothing, with torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.node.relay import CountingRelay

from .conftest import NAME, Built
from .long_lived import service
from .registries import client, prepare, serve

pytestmark = pytest.mark.compiles
PROCESSES = 8
MOST = 1.05
"""Bytes that all processes of a node download, at most, by those of one pack."""


def test_eight_processes_over_one_store_move_one_pack(tmp_path: Path, small: Built) -> None:
    """Each has a home, a TMPDIR and a working directory of its own, and no compiler."""
    prepare(tmp_path / "registry", small.key.text)
    with serve(tmp_path / "registry") as registry:
        assert client("push", str(small.bundle), **registry.publisher).returncode == 0
        with CountingRelay(registry.address).running() as relay:
            assert isinstance(relay, CountingRelay)
            common = {**registry.variables, "CACHESVC_URL": relay.url, "CACHESVC_REPORT": "0"}
            common["CACHESVC_DEADLINE"] = "60"

            def start(node: str, number: int) -> dict[str, Any]:
                place = tmp_path / f"{node}-{number}"
                store = str(tmp_path / node / "store")
                with service(place, NAME, compilers=False, **common, CACHESVC_STORE=store) as one:
                    answer = one.do("1")
                    assert one.compilers == []
                return answer

            alone = start("alone", 0)
            passed_alone, before = relay.passed, relay.passed
            with ThreadPoolExecutor(PROCESSES) as pool:
                answers = list(pool.map(start, ["node"] * PROCESSES, range(PROCESSES)))
            passed = relay.passed - before
    pack = small.manifest(small.bundle).pack.size
    assert alone["moved"] == pack
    assert [(one["compiled"], one["state"], one["right"]) for one in answers] == [
        (0, "hit", True)
    ] * PROCESSES, answers
    assert {len(one["observed"]["processes"]) for one in answers} == {0}
    assert sum(one["moved"] for one in answers) <= MOST * pack
    # On a busy machine the processes may start further apart than the seconds for which an answer is new.
    questions = PROCESSES * (passed_alone - pack)
    assert passed <= MOST * pack + questions, (passed, passed_alone, pack)
    print(f"{PROCESSES} processes: {passed} bytes; a process alone: {passed_alone}; the pack: {pack}")
