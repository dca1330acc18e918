"""Tries a node store whose trust metadata somebody else has put there."""

from __future__ import annotations

import os
from pathlib import Path

from cachesvc_client.trust_root.local import LocalMetadata


def test_a_store_from_elsewhere_has_a_pipe_in_the_place_of_trust_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    folder.mkdir()
    os.mkfifo(folder / "timestamp.json")
    local = LocalMetadata(folder)
    assert local.read("timestamp.json") is None
    local.write("timestamp.json", b"{}")
    assert local.read("timestamp.json") == b"{}"


def test_a_store_from_elsewhere_leads_trust_metadata_out_of_the_store(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "timestamp.json").write_bytes(b"precious")
    (tmp_path / "trust").symlink_to(elsewhere)
    local = LocalMetadata(tmp_path / "trust")
    local.write("timestamp.json", b"{}")
    assert (elsewhere / "timestamp.json").read_bytes() == b"precious"
    assert [path.name for path in elsewhere.iterdir()] == ["timestamp.json"]
