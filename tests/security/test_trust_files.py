"""Tries a node store whose trust metadata somebody else has put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachesvc_client.trust_root.local import LocalMetadata
from cachesvc_client.trust_root.registry_metadata import read_pinned
from cachesvc_client.wire.errors import InvalidRequest
from tests.e2e.registries import client


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


@pytest.mark.parametrize("how", ["all", "group", "another user", "pipe", "folder", "device", "link"])
def test_a_root_that_another_user_may_have_written_names_no_signers(tmp_path: Path, how: str) -> None:
    """Whoever writes it decides whose code a service runs."""
    root = tmp_path / "root.json"
    root.write_text("{}")
    if how == "link":
        (tmp_path / "theirs").write_text("{}")
        (tmp_path / "theirs").chmod(0o666)
        root.unlink()
        root.symlink_to(tmp_path / "theirs")
    elif how in ("all", "group"):
        root.chmod(0o646 if how == "all" else 0o664)
    elif how == "another user":
        if os.geteuid() != 0:
            pytest.skip("gives a file to another user")
        os.chown(root, 4242, 4242)
    else:
        root.unlink()
        make = {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}
        make[how](root)
    variables = {"CACHESVC_URL": "http://127.0.0.1:9", "CACHESVC_TRUST_ROOT": str(root)}
    with pytest.raises(InvalidRequest, match=f"trust root {root}: "):
        read_pinned(root)
    done = client("pull", "team/x", "--into", str(tmp_path / "out"), HOME=str(tmp_path), **variables)
    assert done.returncode == 2 and f"trust root {root}: " in done.stderr, done.stderr
