"""Another user of the node, who may write above the node store or was there first: the service says so in one
line and uses a store of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_making import make

from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect

from .attacker import start

STRANGER = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def attach(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Starts a service that restores a bundle, on a store at this path."""
    key, bundle = SigningKey.generate(), tmp_path / "a.cachesvc"
    made = make(key, path="aa/c" + 24 * "a" + ".picked_kernel", fingerprint=dict(detect()))
    bundle.write_bytes(bundle_head(made.envelope) + made.pack)
    place = tmp_path / "node"
    place.mkdir()

    def run(store: Path, **variables: str) -> dict[str, Any]:
        return start(
            "attached.py",
            json.dumps({"bundle": str(bundle)}),
            place=place,
            CACHESVC_TRUSTED_KEYS=f"*={key.public}",
            CACHESVC_STORE=str(store),
            **variables,
        )

    return run


def refused(answer: dict[str, Any], folder: Path) -> bool:
    """Whether a start said in one line that it does not trust this folder, and used another store."""
    said = answer["problems"][0]
    used = all(not path.startswith(f"{folder}/") for path in answer["folders"].values())
    return used and said.startswith("CACHESVC_STORE is not used: node store") and str(folder) in said


def test_a_user_who_may_write_above_the_store_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    assert attach(above / "store")["installed"], "it works before"
    above.chmod(0o777)
    for store in (above / "store", above / "store/deeper", above):
        answer = attach(store)
        assert refused(answer, above), answer
        assert "chmod go-w" in answer["problems"][0], answer
    above.chmod(0o1777)
    assert attach(above / "store")["installed"], "in a sticky folder nobody renames what is not theirs"


@needs_root
def test_a_user_who_made_the_folder_or_the_link_first_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, STRANGER, STRANGER)
    for store in (theirs, theirs / "store"):
        answer = attach(store)
        assert refused(answer, theirs) and f"user {STRANGER}" in answer["problems"][0], answer
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)
    assert attach(link / "store")["installed"], "a link of this user is this user's decision"
    os.lchown(link, STRANGER, STRANGER)
    assert refused(attach(link / "store"), link)


def test_a_link_leads_where_another_user_may_write_and_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to("shared/store")
    assert refused(attach(link), shared)
    assert refused(attach(link, KUBERNETES_SERVICE_HOST="10.0.0.1"), shared), "no volume of a pod"
