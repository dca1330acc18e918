"""Test the store by cachesvc's kit, over this machine's file system and by its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc.blobs import testing
from cachesvc.blobs.schemes import open_by_url


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(check: testing.Check, tmp_path: Path) -> None:
    testing.run(open_by_url(f"fsspec+local://{tmp_path}/packs"), check)
    assert list((tmp_path / "packs" / "tmp").iterdir()) == []
