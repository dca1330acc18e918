"""Judge a store of another distribution behind a whole registry."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from cachesvc.blobs.store import BlobStore
from tests.e2e.registries import Served, serve

from .test_distributions import start


def serves_by_links(
    tmp_path: Path, site: str, variables: dict[str, str], client: dict[str, str], store: BlobStore
) -> None:
    """A fresh host hits by a signed link, and what is deleted is collected. ``variables``: the registry's;
    ``client``: those by which a host reaches the store."""
    variables = {**variables, "CACHESVC_SERVER_LINK_SECONDS": "10", "CACHESVC_SERVER_GRACE_SECONDS": "11"}
    kinds = {"CACHESVC_KINDS": "cffi", **client}
    (tmp_path / "registry").mkdir()
    with serve(tmp_path / "registry", variables=variables, prepared=False) as served:
        publisher = {**served.publisher, "CACHESVC_MODE": "readwrite", **kinds}
        assert start(tmp_path / "builder", site, "", "publish", **publisher).answer["published"]
        before = moved_out(served)
        answer = start(tmp_path / "host", site, compilers=False, **kinds, **served.variables).answer
        assert (answer["state"], answer["compilations"], answer["answer"]) == ("hit", 0, 8.0), answer
        assert moved_out(served) == before, "the pack came by a link, and not through the registry"
        [pack] = store.list()
        operate(served, "entries", "delete", "team", "--apply")
        time.sleep(12)
        operate(served, "gc", "--apply")
        assert pack.size and list(store.list()) == []
    assert not list((tmp_path / "registry" / "data").glob("blobs/objects/*")), "the store had the pack"


def one_line(kind: type[Exception], says: str, act: Callable[[], object]) -> None:
    with pytest.raises(kind, match=says) as error:
        act()
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def moved_out(served: Served) -> float:
    """Return the bytes that the registry has read from the store."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=10) as answer:
        [line] = [line for line in answer.read().decode().splitlines() if 'bytes_total{way="out"}' in line]
    return float(line.rpartition(" ")[2])


def operate(served: Served, *words: str) -> None:
    variables = {**os.environ, "CACHESVC_URL": served.url, "CACHESVC_TOKEN": served.token}
    command = [sys.executable, "-m", "cachesvc", "admin", *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
