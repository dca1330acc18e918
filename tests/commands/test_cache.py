"""Test ``cache``: where the node store is, what it holds, and how a user makes it smaller."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cachesvc_client.config.settings import Config
from cachesvc_client.node.parts.pack_store import DEFAULT_MAX_BYTES
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest


@pytest.fixture
def packs(tmp_path) -> list[Path]:
    """Fill the store of `command` with three packs of 1000 bytes; the first was used longest ago."""
    store, paths = NodeStore(tmp_path / "store"), []
    for number in range(3):
        data = os.urandom(1000)
        path, _ = store.fetch(Digest.of(data), 1000, lambda _offset, data=data: iter([data]))
        used = time.time() - 1000 + number
        os.utime(path, (used, used))
        paths.append(path)
    return paths


def test_the_size_and_the_place_of_the_store(command, packs, tmp_path):
    assert command("cache", "dir") == (0, f"{tmp_path / 'store'}\n", "")
    status, out, _ = command("cache", "size", CACHESVC_STORE_BYTES="5MiB")
    assert status == 0 and "2.9 KiB  3      packs of revisions" in out and "up to 5.0 MiB" in out
    facts = json.loads(command("cache", "size", "--json")[1])
    assert (facts["bytes"], facts["bound_bytes"]) == (3000, DEFAULT_MAX_BYTES)
    assert all(path.exists() for path in packs)
    status, out, _ = command("cache", "size", CACHESVC_STORE=str(tmp_path / "none"))
    assert status == 0 and not (tmp_path / "none").exists(), "to look makes no store"


def test_pruning_removes_what_was_used_longest_ago(command, packs):
    status, out, _ = command("cache", "prune", "--max-size", "2000")
    assert status == 0 and out.startswith("would remove packs of 1000 B of 2.9 KiB\n")
    assert all(path.exists() for path in packs)
    assert command("cache", "prune", "--max-size", "2000", "--apply")[1].startswith(
        "removed packs of 1000 B;"
    )
    assert [path.exists() for path in packs] == [False, True, True]
    assert command("cache", "prune", "--apply", CACHESVC_STORE_BYTES="1000")[0] == 0
    assert [path.exists() for path in packs] == [False, False, True]
    status, _, err = command("cache", "prune", "--max-size", "much")
    assert status == 2 and "such as 500MiB" in err


def test_cleaning_keeps_what_is_in_use_and_what_protects_the_node(command, packs, tmp_path):
    store = NodeStore(tmp_path / "store")
    entry, revision = Digest.of(b"entry"), Digest.of(b"revision")
    store.marks.record_sequence(entry, 7, "key")
    store.marks.distrust(entry, revision)
    os.utime(packs[2])  # just handed out
    assert command("cache", "clean")[1].startswith("would remove 3 entries, 2.9 KiB")
    assert all(path.exists() for path in packs)
    status, out, _ = command("cache", "clean", "--apply")
    assert status == 0 and "removed 2 entries, 2.0 KiB" in out and "1 entry stayed" in out
    assert [path.exists() for path in packs] == [False, False, True]
    assert store.marks.sequences(entry) == {"key": 7} and store.marks.distrusts(entry, revision)


def test_the_bound_is_a_setting_of_the_node(monkeypatch, tmp_path):
    monkeypatch.setenv("CACHESVC_STORE_BYTES", "1.5GiB")
    assert NodeStore(tmp_path).max_bytes == 3 << 29
    monkeypatch.setenv("CACHESVC_STORE_BYTES", "much")
    assert NodeStore(tmp_path).max_bytes == DEFAULT_MAX_BYTES, "a service goes on"
    with pytest.raises(InvalidRequest, match="CACHESVC_STORE_BYTES: 'much': allowed: bytes"):
        Config.read()
