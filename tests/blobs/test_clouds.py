"""Test what stores of clouds share: the reader of a put's chunks, and what refuses a store that lies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc.blobs.cloud import Exists, Stream, host_and_path, prove_condition
from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.store import Unusable


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(0, 20), min_size=1), st.integers(0, 40))
def test_a_stream_reads_what_its_chunks_hold(chunks: list[bytes], sizes: list[int], ahead: int) -> None:
    stream, whole = Stream(chunks), b"".join(chunks)
    assert min(ahead, len(whole)) <= stream.ahead(ahead) <= len(whole)
    read = b""
    for size in itertools.chain(sizes, itertools.repeat(7)):
        part = stream.read(size)
        assert part == whole[len(read) : len(read) + size]
        read += part
        assert stream.tell() == len(read)
        if read == whole:
            break
    assert stream.read(1) == b"" and stream.ahead(1) == 0


def test_a_stream_keeps_what_its_chunks_raise() -> None:
    broken = OSError("the publisher is gone")

    def chunks() -> Iterable[bytes]:
        yield b"half"
        raise broken

    stream = Stream(chunks())
    assert stream.read(4) == b"half" and stream.broken is None
    with pytest.raises(OSError, match="the publisher is gone"):
        stream.read(1)
    assert stream.broken is broken


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([True, True], "writes over what exists, though If-None-Match forbids it"),
        ([True, False], "refuses to write over what exists, and does"),
    ],
)
def test_a_store_whose_condition_lies_is_refused(tmp_path: Path, answers: list[bool], says: str) -> None:
    """It stores whatever it is given, and says that it does, or that it does not."""
    store = LocalBlobStore(tmp_path)
    said = iter(answers)

    def write(key: str, chunks: Iterable[bytes]) -> int:
        store.delete(key)
        size = store.put(key, chunks)
        if not next(said):
            raise Exists(f"object {key} exists")
        return size

    with pytest.raises(Unusable, match=says):
        prove_condition(store, write, "bucket b", "If-None-Match")
    assert list(store.list()) == []


def test_a_store_that_refuses_every_write_is_not_taken_for_one_that_keeps_its_promise(tmp_path: Path) -> None:
    def write(key: str, _: Iterable[bytes]) -> int:
        raise Exists(f"object {key} exists")

    with pytest.raises(Exists):
        prove_condition(LocalBlobStore(tmp_path), write, "bucket b", "If-None-Match")


@pytest.mark.parametrize(
    "url",
    [
        "gs://u:p@b/c",
        "gs://b/c?x=1",
        "gs://b#c",
        "gs://b/../c",
        "gs://b/c/.",
        "gs://b/%2E%2E",
        "gs://b/c%5Cd",
    ],
)
def test_a_url_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(Unusable, match="has a user, a query or a path that leads elsewhere"):
        host_and_path(url)


def test_a_url_is_a_host_and_a_path() -> None:
    assert host_and_path("gs://b/a%20b/c..d%3F/") == ("b", "a b/c..d?")
    assert host_and_path("gs://b") == ("b", "")
