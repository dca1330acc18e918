"""Test that `benchmarks.field` sees a cache that serves wrong artifacts, and one that has none."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.field import caches
from benchmarks.hosts import ROOT
from tools.field_page import COLD, row

FEW = "^(control: a function|objects: global, in function|reads: os.environ.get, absent, in the function)$"


class AlwaysFirst(caches.Local):
    """Serves the graph that was compiled first to every program."""

    name = "the first one to everybody"

    def load(self, place: caches.Place, program: str) -> None:  # noqa: ARG002
        from torch._functorch._aot_autograd import autograd_cache

        first = min((place.store / "aotautograd").iterdir(), key=lambda path: path.stat().st_mtime_ns).name
        autograd_cache.autograd_cache_key = lambda *_, **__: (first, [])


def test_an_adapter_is_short() -> None:
    """The contract's default is `Cache` itself; what each of the others adds is small."""
    for name in caches.ALL[1:]:
        assert len(inspect.getsource(getattr(caches, name)).splitlines()) <= 50


@pytest.mark.compiles
@pytest.mark.long
def test_a_wrong_cache_is_seen_and_one_that_keeps_nothing_hits_nothing(tmp_path: Path) -> None:
    out = tmp_path / "field.json"
    words = ["--caches", "Cache", f"{__name__}:AlwaysFirst", "--part", "differences"]
    words += ["--groups", "control,objects,reads", "--only", FEW]
    command = [sys.executable, "-m", "benchmarks.field", *words, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(out.read_text())["caches"]
    nothing, wrong = (verdicts(told[one.name]) for one in (caches.Cache, AlwaysFirst))
    assert set(nothing) == {"missed"}
    assert "false hit" in wrong
    assert row("", told[AlwaysFirst.name], 0.0)[-2] != row("", told[COLD], 0.0)[-2]


def verdicts(told: dict[str, Any]) -> list[str]:
    return [verdict for one in told["differences"] for verdict in one["verdicts"].values()]
