"""Test a build and a restore with other versions of Python than that of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.harness import SCALAR, run

from .environments import python_of

PYTHONS = ("3.10", "3.12", "3.13")
TORCH = "2.13.0"


@pytest.mark.parametrize("version", PYTHONS)
def test_what_one_process_built_another_restores(tmp_path: Path, version: str) -> None:
    """Python 3.10 has the client alone, so the bundle is what a service captured."""
    python = str(python_of(f"{TORCH}-{version}"))
    key_file, bundle = tmp_path / "signing.key", tmp_path / "small.cachesvc"
    key = SigningKey.generate()
    key.save(key_file)
    arguments = (str(bundle), str(key_file), "team/small")
    built = run("build.py", *arguments, place=tmp_path / "builder", python=python, **SCALAR)
    assert built.code == 0, built.err[-4000:]
    restored = run(
        "serve.py",
        f"bundle={bundle}",
        f"expect={bundle.with_suffix('.pt')}",
        place=tmp_path / "service",
        python=python,
        compilers=False,
        CACHESVC_TRUSTED_KEYS=str(key.public),
        **SCALAR,
    )
    answer = restored.answer
    assert answer["state"] == "hit" and answer["same_as_builder"], (answer, restored.err)
    assert f"python{version}" in answer["torch"]
    observed = answer["observed"]
    assert (observed["compilations"], observed["processes"], restored.compilers) == (0, [], [])
