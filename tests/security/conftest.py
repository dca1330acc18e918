"""One function's bundle, built once per session by a real compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.harness import run

from .attacker import Made

NAME = "team-b/model"


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Team B's bundle of what `programs/service.py` compiles."""
    place = tmp_path_factory.mktemp("builder")
    key = SigningKey.generate()
    key.save(place / "signing.key")
    bundle = place / "honest.cachesvc"
    done = run("build.py", str(bundle), str(place / "signing.key"), NAME, "small", place=place, **QUICK)
    assert done.code == 0, done.err[-4000:]
    return Made(bundle, key)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Where hostile code leaves a line."""
    return tmp_path / "marker"
