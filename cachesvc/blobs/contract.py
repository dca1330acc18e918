"""The contract of :mod:`.store` as code: run by the tests over every backend, and on an operator's bucket.

Each check raises ``AssertionError`` that says what the store does wrong. Checks write below
``contract/<random>/`` and remove what they wrote.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from cachesvc_client.wire.errors import CacheSvcError, NotFound, RangeInvalid

from .store import CHUNK_BYTES, BlobStore, Links

LARGE = (17 << 20) + 11
"""More than two parts of a multipart upload, and odd."""


class Bench:
    """A store and a place in it that nobody else uses."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.prefix = f"contract/{secrets.token_hex(8)}/"
        self._count = 0

    def key(self) -> str:
        """A new key."""
        self._count += 1
        return f"{self.prefix}object-{self._count}.bin"

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes, joined."""
        return b"".join(self.store.open(key, start, length))

    def clean(self) -> None:
        """Removes all that the bench wrote."""
        for facts in list(self.store.list(self.prefix)):
            self.store.delete(facts.key)


def gives_back_what_was_put(bench: Bench) -> None:
    """Bytes and sizes; empty objects and chunks are fine."""
    for chunks in ([b"abc", b"", b"defg"], [], [b""], [b"x"]):
        key, whole = bench.key(), b"".join(chunks)
        _equal(bench.store.put(key, iter(chunks)), len(whole), "put answers the size")
        _equal(bench.store.size(key), len(whole), "size")
        _equal(bench.read(key), whole, "the bytes")


def streams_large_objects(bench: Bench) -> None:
    """More than one part; chunks of odd sizes in, bounded chunks out."""
    key = bench.key()
    put, got = hashlib.sha256(), hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        left = LARGE
        while left:
            chunk = secrets.token_bytes(min(left, 1_234_567))
            left -= len(chunk)
            put.update(chunk)
            yield chunk

    _equal(bench.store.put(key, chunks()), LARGE, "put answers the size")
    for chunk in bench.store.open(key):
        _true(0 < len(chunk) <= CHUNK_BYTES, f"a chunk of {len(chunk)} bytes")
        got.update(chunk)
    _equal(got.hexdigest(), put.hexdigest(), "the bytes of a large object")


def answers_ranges(bench: Bench) -> None:
    """From anywhere, of any length, clipped at the end; behind the end is an error at once."""
    key, whole = bench.key(), bytes(range(256)) * 5000
    bench.store.put(key, [whole])
    for start, length in ((0, 1), (0, None), (7, 100), (len(whole) - 1, None), (500_000, 900_000), (3, 0)):
        end = len(whole) if length is None else start + length
        _equal(bench.read(key, start, length), whole[start:end], f"range {start} {length}")
    for start, length in ((len(whole), None), (len(whole) + 1, 5), (-1, 5), (0, -1)):
        _raises(RangeInvalid, lambda s=start, n=length: bench.store.open(key, s, n))  # type: ignore[misc]
    empty = bench.key()
    bench.store.put(empty, [])
    _equal(bench.read(empty), b"", "an empty object from 0")


def tells_what_is_missing(bench: Bench) -> None:
    """``NotFound`` at once; deleting it is a success."""
    key = bench.key()
    _raises(NotFound, lambda: bench.store.open(key))
    _raises(NotFound, lambda: bench.store.size(key))
    bench.store.delete(key)


def deletes(bench: Bench) -> None:
    """What is deleted is gone, and nothing else is."""
    gone, kept = bench.key(), bench.key()
    for key in (gone, kept):
        bench.store.put(key, [b"x"])
    bench.store.delete(gone)
    bench.store.delete(gone)
    _raises(NotFound, lambda: bench.store.open(gone))
    _equal(bench.read(kept), b"x", "the other object")
    _equal([facts.key for facts in bench.store.list(bench.prefix)], [kept], "the listing")


def lists(bench: Bench) -> None:
    """All keys with a prefix that need not end at a slash, with sizes."""
    sizes = {f"{bench.prefix}{name}": size for size, name in enumerate(("a", "ab", "b/c/d", "b/c/e"))}
    for key, size in sizes.items():
        bench.store.put(key, [b"x" * size])
    for prefix in ("", "a", "ab", "b/", "b/c/d", "z"):
        found = {facts.key: facts.size for facts in bench.store.list(bench.prefix + prefix)}
        wanted = {key: size for key, size in sizes.items() if key.startswith(bench.prefix + prefix)}
        _equal(found, wanted, f"the listing of {prefix!r}")


def shows_nothing_before_it_is_whole(bench: Bench) -> None:
    """While a large put is under way there is no object; afterwards there is."""
    key = bench.key()

    def chunks() -> Iterator[bytes]:
        for _ in range(18):
            yield b"x" * (1 << 20)
        _raises(NotFound, lambda: bench.store.size(key))
        _raises(NotFound, lambda: bench.store.open(key))
        _equal(list(bench.store.list(bench.prefix)), [], "the listing while a put is under way")

    bench.store.put(key, chunks())
    _equal(bench.store.size(key), 18 << 20, "size")


def forgets_what_broke_off(bench: Bench) -> None:
    """If the chunks raise, the same error comes out and nothing can be read, small or large."""
    for size in (10, LARGE):
        key = bench.key()
        broken = _Broken()

        def chunks(size: int = size, broken: _Broken = broken) -> Iterator[bytes]:
            for _ in range(0, size, 1 << 20):
                yield b"y" * min(size, 1 << 20)
            raise broken

        try:
            bench.store.put(key, chunks())
        except _Broken as error:
            _true(error is broken, "another error came out")
        else:
            raise AssertionError("put of chunks that raise did not raise")
        _raises(NotFound, lambda key=key: bench.store.open(key))  # type: ignore[misc]
        _equal(list(bench.store.list(bench.prefix)), [], "the listing after a put broke off")


def lets_readers_stop_early(bench: Bench) -> None:
    """A reader that is dropped half-way harms nobody, often."""
    key = bench.key()
    bench.store.put(key, [b"z" * (3 << 20)])
    for _ in range(100):
        reader = bench.store.open(key)
        next(reader)
        close = getattr(reader, "close", None)
        if close is not None:
            close()
    _equal(len(bench.read(key)), 3 << 20, "the whole object")


def refuses_strange_keys(bench: Bench) -> None:
    """Keys that a file system or a URL would read in another way never reach the backend."""
    for key in ("", "/a", "a/", "a//b", "../a", "a/../b", "A", "a b", "a\n", "a\0", ".a", "a" * 2000):
        _raises(ValueError, lambda key=key: bench.store.put(key, [b"x"]))  # type: ignore[misc]
        _raises(ValueError, lambda key=key: bench.store.open(key))  # type: ignore[misc]
        _raises(ValueError, lambda key=key: bench.store.delete(key))  # type: ignore[misc]


def is_usable(bench: Bench) -> None:
    """``check`` passes."""
    bench.store.check()


CHECKS: tuple[Callable[[Bench], None], ...] = (
    is_usable,
    gives_back_what_was_put,
    streams_large_objects,
    answers_ranges,
    tells_what_is_missing,
    deletes,
    lists,
    shows_nothing_before_it_is_whole,
    forgets_what_broke_off,
    lets_readers_stop_early,
    refuses_strange_keys,
)


def links_give_the_object(bench: Bench, links: Links) -> None:
    """To whoever has the link: whole, and by range; behind the end is refused; nothing else can be done."""
    key, whole = bench.key(), secrets.token_bytes(300_000)
    link = links.link(key, 300)
    _true(_status(link) in (403, 404), "a link to what is missing")
    bench.store.put(key, [whole])
    _equal(_fetched(link), (200, whole, None), "the whole object by a link")
    part = (206, whole[1000:2000], f"bytes 1000-1999/{len(whole)}")
    _equal(_fetched(link, "bytes=1000-1999"), part, "a range by a link")
    part = (206, whole[-7:], f"bytes {len(whole) - 7}-{len(whole) - 1}/{len(whole)}")
    _equal(_fetched(link, f"bytes={len(whole) - 7}-"), part, "the end by a link")
    _equal(_status(link, "bytes=300000-"), 416, "a range behind the end by a link")
    bench.store.delete(key)
    _true(_status(link) in (403, 404), "a link to what was deleted")


def links_are_not_forged(bench: Bench, links: Links) -> None:
    """Neither for another object, nor to write or delete, nor beyond their time."""
    key, other = bench.key(), bench.key()
    for each in (key, other):
        bench.store.put(each, [b"held"])
    link = links.link(key, 300)
    _equal(_status(link), 200, "a link")
    name, changed = key.rpartition("/")[2], other.rpartition("/")[2]
    _equal(_status(link.replace(name, changed)), 403, "a link whose object was changed")
    _equal(_status(link.replace("X-Amz-Expires=300", "X-Amz-Expires=3000")), 403, "a link made longer")
    for method in ("PUT", "DELETE"):
        _equal(_status(link, method=method), 403, f"{method} with a link")
    _equal(bench.read(key), b"held", "the object")
    short = links.link(key, 1)
    for _ in range(300):
        if _status(short) == 403:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("a link holds beyond its time")


LINK_CHECKS: tuple[Callable[[Bench, Links], None], ...] = (links_give_the_object, links_are_not_forged)
"""For stores that have the power."""


def run_links(store: BlobStore, links: Links, check: Callable[[Bench, Links], None]) -> None:
    """Runs one check of ``links`` to objects of ``store`` as :func:`run` does."""
    run(store, lambda bench: check(bench, links))


def run(store: BlobStore, check: Callable[[Bench], None]) -> None:
    """One check, and the removal of what it wrote. Raises ``AssertionError``, or what the store raises."""
    bench = Bench(store)
    try:
        check(bench)
    finally:
        bench.clean()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one check. ``problem``: what the store does wrong, or by which error it could not be seen;
    empty if the promise holds."""

    check: str
    promise: str
    problem: str = ""


def promises(links: Links | None) -> list[Verdict]:
    """Lists the checks that :func:`judge` runs, without a problem."""
    checks: tuple[Callable[..., None], ...] = (*CHECKS, *(LINK_CHECKS if links else ()))
    return [Verdict(check.__name__, " ".join((check.__doc__ or "").split())) for check in checks]


def judge(store: BlobStore, links: Links | None) -> Iterator[Verdict]:
    """Runs every check and yields its verdict; ``links``: of the same store, if it gives any. Ends after the
    first check, which is whether the store can be used at all, if that one fails."""
    runs: list[Callable[[], None]] = [partial(run, store, check) for check in CHECKS]
    if links:
        runs += [partial(run_links, store, links, check) for check in LINK_CHECKS]
    for verdict, act in zip(promises(links), runs, strict=True):
        try:
            act()
            problem = ""
        except (AssertionError, CacheSvcError) as error:
            problem = str(error)
        except OSError as error:  # the store's address in a link
            problem = f"a link cannot be fetched from here: {error}"
        yield replace(verdict, problem=problem)
        if problem and verdict.check == is_usable.__name__:
            return


class _Broken(Exception):
    pass


def _fetched(link: str, part: str | None = None, method: str = "GET") -> tuple[int, bytes, str | None]:
    headers = {"Range": part} if part else {}
    data = b"forged" if method == "PUT" else None
    request = urllib.request.Request(link, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read(), answer.headers.get("Content-Range")


def _status(link: str, part: str | None = None, method: str = "GET") -> int:
    try:
        return _fetched(link, part, method)[0]
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _true(holds: bool, what: str) -> None:
    # No assert statement: an operator's interpreter may run with -O.
    if not holds:
        raise AssertionError(what)


def _equal(found: object, wanted: object, what: str) -> None:
    _true(found == wanted, f"{what}: {str(found)[:200]} instead of {str(wanted)[:200]}")


def _raises(kind: type[Exception], act: Callable[[], object]) -> None:
    try:
        act()
    except kind:
        return
    except CacheSvcError as error:
        raise AssertionError(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"no {kind.__name__} was raised")
