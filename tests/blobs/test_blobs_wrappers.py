"""Test what the wrappers add, over a store that fails by plan. Each test must use its plan up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.store import Unusable, prove
from cachesvc.blobs.wrappers import Metered, Retrying, Verifying
from cachesvc_client.wire.errors import NotFound, Unavailable


class Faulty(LocalBlobStore):
    """Fails as planned, in the order of the plan: ``(operation, bytes that still pass)``."""

    def __init__(self, root: Path, *plan: tuple[str, int]) -> None:
        super().__init__(root)
        self.plan = list(plan)

    def _planned(self, operation: str) -> int | None:
        if self.plan and self.plan[0][0] == operation:
            return self.plan.pop(0)[1]
        return None

    def size(self, key: str) -> int:
        if self._planned("size") is not None:
            raise Unavailable("planned")
        return super().size(key)

    def delete(self, key: str) -> None:
        if self._planned("delete") is not None:
            raise Unavailable("planned")
        super().delete(key)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        if self._planned("open") is not None:
            raise Unavailable("planned")
        return self._failing(super().open(key, start, length))

    def _failing(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        passed, cut = self._planned("read"), self._planned("short")
        for chunk in chunks:
            if passed is not None:
                yield chunk[:passed]
                raise Unavailable("planned")
            if cut is not None:
                yield chunk[:cut]
                return
            yield chunk

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        if self._planned("lose") is not None:
            return super().put(key, list(chunks)[:-1])
        return super().put(key, chunks)


def test_retrying_continues_where_a_read_broke_off(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    faulty = Faulty(tmp_path, ("open", 0), ("read", 1000), ("open", 0), ("read", 3), ("read", 0))
    slept: list[float] = []
    store = Retrying(faulty, sleep=slept.append)
    store.put("a", [data])
    assert b"".join(store.open("a", 5, len(data) - 10)) == data[5:-5]
    assert faulty.plan == []
    assert len(slept) == 5
    assert all(0 < pause < 5 for pause in slept)


def test_retrying_gives_up_after_its_attempts(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, *[("read", 0)] * 4)
    slept: list[float] = []
    store = Retrying(faulty, attempts=4, sleep=slept.append)
    store.put("a", [b"x"])
    with pytest.raises(Unavailable, match="planned"):
        list(store.open("a"))
    assert faulty.plan == []
    assert len(slept) == 3


def test_retrying_does_not_repeat_a_final_error(tmp_path: Path) -> None:
    slept: list[float] = []
    with pytest.raises(NotFound):
        Retrying(LocalBlobStore(tmp_path), sleep=slept.append).open("a")
    assert slept == []


def test_retrying_repeats_the_small_calls(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, ("size", 0), ("size", 0), ("delete", 0))
    store = Retrying(faulty, sleep=lambda _: None)
    store.put("a", [b"xyz"])
    assert store.size("a") == 3
    store.delete("a")
    assert faulty.plan == []
    with pytest.raises(NotFound):
        faulty.size("a")


def test_verifying_ends_an_incomplete_read_with_an_error(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, ("short", 4))
    store = Verifying(faulty)
    store.put("a", [b"x" * 10])
    with pytest.raises(Unavailable, match="4 of 10"):
        list(store.open("a"))
    assert faulty.plan == []


def test_verifying_removes_an_object_that_the_store_did_not_keep_whole(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, ("lose", 0))
    with pytest.raises(Unavailable, match="2 bytes were put, the store holds 1"):
        Verifying(faulty).put("a", [b"x", b"y"])
    assert list(faulty.list()) == []


def test_metered_counts_calls_bytes_and_errors(tmp_path: Path) -> None:
    store = Metered(Faulty(tmp_path, ("read", 2)))
    store.put("a", [b"12345"])
    with pytest.raises(Unavailable):
        list(store.open("a"))
    list(store.open("a"))
    with pytest.raises(NotFound):
        store.size("b")
    meter = store.meter
    assert (meter.bytes_in, meter.bytes_out) == (5, 7)
    assert meter.calls == {"put": 1, "open": 2, "size": 1}
    assert meter.errors["read"] == 1
    assert meter.errors["size"] == 1


def test_retrying_does_not_wait_for_an_error_that_waiting_does_not_fix(tmp_path: Path) -> None:
    class Closed(LocalBlobStore):
        calls = 0

        def size(self, _key: str) -> int:
            self.calls += 1
            raise Unusable("no rights")

    store = Closed(tmp_path)
    with pytest.raises(Unusable):
        Retrying(store, sleep=lambda _: pytest.fail("it waited")).size("packs/a")
    assert store.calls == 1


def test_the_proof_of_a_store_leaves_nothing_behind(tmp_path: Path) -> None:
    class Forgetful(LocalBlobStore):
        def open(self, *_: object) -> Iterator[bytes]:
            return iter([b"<html>"])

    prove(LocalBlobStore(tmp_path))
    with pytest.raises(Unusable, match="other bytes than it was given"):
        prove(Forgetful(tmp_path))
    assert list(LocalBlobStore(tmp_path).list()) == []
