"""Judge a store of another distribution behind a whole registry."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachesvc.blobs.store import CHUNK_BYTES, BlobStore
from cachesvc_client.wire.errors import CacheSvcError, Unavailable
from tests.e2e.registries import Served, serve
from tests.services.clouds import Headers, Lies

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


WITHOUT_SENSE: dict[str, tuple[Headers, bytes | None]] = {
    "no headers": ({}, None),
    "a page": ({"Content-Type": "text/html"}, b"<html>Sign in</html>"),
    "a list": ({"Content-Type": "application/json"}, b"[]"),
    "numbers that are none": (
        dict.fromkeys(["Content-Range", "ETag", "Last-Modified", "Date", "X-Goog-Generation"], "none"),
        b'{"items": [{"size": "none"}], "size": "none", "metadata": 4}',
    ),
    "nothing": ({"Content-Type": "application/xml"}, b""),
}
"""Headers and body (``None``: the store's) of answers."""


def reads_any_answer(store: BlobStore, lies: Lies, headers: Headers, body: bytes | None) -> None:
    """Whatever the store answers, a call gives what it can, or says one line."""
    store.put("asked", [b"asked"])
    lies.answered = lambda _, __, whole: (headers, whole if body is None else body)
    for act in (
        lambda: store.put("new", [b"new"]),
        lambda: store.put("large", [bytes(26 << 20)]),
        lambda: list(store.open("asked")),
        lambda: list(store.open("asked", 1, 2)),
        lambda: store.size("asked"),
        lambda: list(store.list()),
        lambda: store.link("asked", 60),  # type: ignore[attr-defined]
        lambda: store.delete("absent"),
        store.check,
    ):
        try:
            act()
        except CacheSvcError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
    lies.answered = Lies.answered


def reads_what_is_cut(store: BlobStore, lies: Lies, whole: bytes) -> None:
    """A read whose connection breaks gives the bytes up to there, or none, and says one line."""
    store.put("cut", [whole])
    lies.cut = len(whole) // 2
    got: list[bytes] = []
    one_line(
        Unavailable,
        "(container|bucket) [^:]*: .*(roken|IncompleteRead)",
        lambda: got.extend(store.open("cut")),
    )
    assert whole.startswith(b"".join(got))
    lies.cut = None
    assert b"".join(store.open("cut")) == whole
    store.delete("cut")


def one_of_many_writers_wins(store: BlobStore, whole: bytes) -> None:
    def write(number: int) -> int:
        try:
            return number if store.put("raced", [bytes([number]), whole]) else 0
        except Unavailable as error:
            assert "object raced exists: another put wrote it, which is kept" in str(error)
            return 0

    with ThreadPoolExecutor(4) as pool:
        [winner] = [number for number in pool.map(write, range(1, 5)) if number]
    assert b"".join(store.open("raced")) == bytes([winner]) + whole
    store.delete("raced")


def holds_at_most(store: BlobStore, mebibytes: int, size: int) -> None:
    """A put of so many MiB, in chunks that nobody else holds, needs no more memory."""
    store.put("first", [b""])  # tries what the store promises
    tracemalloc.start()
    try:
        store.put("held", (bytes(bytearray(CHUNK_BYTES)) for _ in range((size << 20) // CHUNK_BYTES)))
        assert tracemalloc.get_traced_memory()[1] < (mebibytes << 20) + (1 << 20)
    finally:
        tracemalloc.stop()
    for key in ("first", "held"):
        store.delete(key)


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
