"""Check the contract of :mod:`.store`: the tests of every backend do so, and operators for their own bucket.

A test of a backend runs each of `CHECKS` by `run`; if it gives links, each of `LINK_CHECKS` by `run_links`.

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
from urllib.parse import urlsplit

from cachesvc_client.wire.errors import CacheSvcError, NotFound, RangeInvalid

from .store import CHUNK_BYTES, BlobStore, Links

LARGE = (26 << 20) + 11
"""Bytes of a large object: more than two parts of a multipart upload, and an odd number."""


class StoreUnderTest:
    """A store, and a prefix in it that nobody else uses."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.prefix = f"contract/{secrets.token_hex(8)}/"
        self._count = 0

    def key(self) -> str:
        """Returns a new key."""
        self._count += 1
        return f"{self.prefix}object-{self._count}.bin"

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Returns the bytes of an object, joined."""
        return b"".join(self.store.open(key, start, length))

    def clean(self) -> None:
        """Removes everything that the check wrote."""
        for facts in list(self.store.list(self.prefix)):
            self.store.delete(facts.key)


def gives_back_what_was_put(tested: StoreUnderTest) -> None:
    """An object has the bytes and the size that were put, also if it or a chunk is empty."""
    for chunks in ([b"abc", b"", b"defg"], [], [b""], [b"x"]):
        key, whole = tested.key(), b"".join(chunks)
        _equal(tested.store.put(key, iter(chunks)), len(whole), "put answers the size")
        _equal(tested.store.size(key), len(whole), "size")
        _equal(tested.read(key), whole, "the bytes")


def streams_large_objects(tested: StoreUnderTest) -> None:
    """A large object is stored from chunks of odd sizes and read in bounded chunks."""
    key = tested.key()
    put, read = hashlib.sha256(), hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        left = LARGE
        while left:
            chunk = secrets.token_bytes(min(left, 1_234_567))
            left -= len(chunk)
            put.update(chunk)
            yield chunk

    _equal(tested.store.put(key, chunks()), LARGE, "put answers the size")
    for chunk in tested.store.open(key):
        _true(0 < len(chunk) <= CHUNK_BYTES, f"a chunk of {len(chunk)} bytes")
        read.update(chunk)
    _equal(read.hexdigest(), put.hexdigest(), "the bytes of a large object")


def answers_ranges(tested: StoreUnderTest) -> None:
    """A range begins anywhere, has any length and ends at the end; one behind the end is an error at once."""
    key, whole = tested.key(), bytes(range(256)) * 5000
    tested.store.put(key, [whole])
    for start, length in ((0, 1), (0, None), (7, 100), (len(whole) - 1, None), (500_000, 900_000), (3, 0)):
        end = len(whole) if length is None else start + length
        _equal(tested.read(key, start, length), whole[start:end], f"range {start} {length}")
    for start, length in ((len(whole), None), (len(whole) + 1, 5), (-1, 5), (0, -1)):
        _raises(RangeInvalid, lambda s=start, n=length: tested.store.open(key, s, n))  # type: ignore[misc]
    empty = tested.key()
    tested.store.put(empty, [])
    _equal(tested.read(empty), b"", "an empty object from 0")


def tells_what_is_missing(tested: StoreUnderTest) -> None:
    """An absent object is an error at once, and deleting it is a success."""
    key = tested.key()
    _raises(NotFound, lambda: tested.store.open(key))
    _raises(NotFound, lambda: tested.store.size(key))
    tested.store.delete(key)


def deletes(tested: StoreUnderTest) -> None:
    """A deleted object is gone, and no other object is."""
    gone, kept = tested.key(), tested.key()
    for key in (gone, kept):
        tested.store.put(key, [b"x"])
    tested.store.delete(gone)
    tested.store.delete(gone)
    _raises(NotFound, lambda: tested.store.open(gone))
    _equal(tested.read(kept), b"x", "the other object")
    _equal([facts.key for facts in tested.store.list(tested.prefix)], [kept], "the listing")


def lists(tested: StoreUnderTest) -> None:
    """A listing has all keys with a prefix, which need not end at a slash, and their sizes."""
    sizes = {f"{tested.prefix}{name}": size for size, name in enumerate(("a", "ab", "b/c/d", "b/c/e"))}
    for key, size in sizes.items():
        tested.store.put(key, [b"x" * size])
    for prefix in ("", "a", "ab", "b/", "b/c/d", "z"):
        listed = {facts.key: facts.size for facts in tested.store.list(tested.prefix + prefix)}
        expected = {key: size for key, size in sizes.items() if key.startswith(tested.prefix + prefix)}
        _equal(listed, expected, f"the listing of {prefix!r}")


def shows_nothing_before_it_is_whole(tested: StoreUnderTest) -> None:
    """A large object is absent until its put has ended."""
    key = tested.key()

    def chunks() -> Iterator[bytes]:
        for _ in range(LARGE >> 20):
            yield b"x" * (1 << 20)
        _raises(NotFound, lambda: tested.store.size(key))
        _raises(NotFound, lambda: tested.store.open(key))
        _equal(list(tested.store.list(tested.prefix)), [], "the listing while a put is under way")

    tested.store.put(key, chunks())
    _equal(tested.store.size(key), LARGE >> 20 << 20, "size")


def forgets_what_broke_off(tested: StoreUnderTest) -> None:
    """A put whose chunks raise an error raises the same one, and leaves nothing that can be read."""
    for size in (10, LARGE):
        key = tested.key()
        broken = _Broken()

        def chunks(size: int = size, broken: _Broken = broken) -> Iterator[bytes]:
            for _ in range(0, size, 1 << 20):
                yield b"y" * min(size, 1 << 20)
            raise broken

        try:
            tested.store.put(key, chunks())
        except _Broken as error:
            _true(error is broken, "another error came out")
        else:
            raise AssertionError("put of chunks that raise did not raise")
        _raises(NotFound, lambda key=key: tested.store.open(key))  # type: ignore[misc]
        _equal(list(tested.store.list(tested.prefix)), [], "the listing after a put broke off")


def lets_readers_stop_early(tested: StoreUnderTest) -> None:
    """Many readers that stop half-way harm no later reader."""
    key = tested.key()
    tested.store.put(key, [b"z" * (3 << 20)])
    for _ in range(100):
        reader = tested.store.open(key)
        next(reader)
        close = getattr(reader, "close", None)
        if close is not None:
            close()
    _equal(len(tested.read(key)), 3 << 20, "the whole object")


def refuses_strange_keys(tested: StoreUnderTest) -> None:
    """A key that a file system or a URL would read in another way never reaches the backend."""
    for key in ("", "/a", "a/", "a//b", "../a", "a/../b", "A", "a b", "a\n", "a\0", ".a", "a" * 2000):
        _raises(ValueError, lambda key=key: tested.store.put(key, [b"x"]))  # type: ignore[misc]
        _raises(ValueError, lambda key=key: tested.store.open(key))  # type: ignore[misc]
        _raises(ValueError, lambda key=key: tested.store.delete(key))  # type: ignore[misc]


def is_usable(tested: StoreUnderTest) -> None:
    """The store can be used."""
    tested.store.check()


Check = Callable[[StoreUnderTest], None]
CHECKS: tuple[Check, ...] = (
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


def links_give_the_object(tested: StoreUnderTest, links: Links) -> None:
    """A link serves the object, whole or by range, and refuses a range behind the end."""
    key, whole = tested.key(), secrets.token_bytes(300_000)
    link = links.link(key, 300)
    _true(_status(link) in (403, 404), "a link to what is missing")
    tested.store.put(key, [whole])
    _equal(_fetched(link), (200, whole, None), "the whole object by a link")
    part = (206, whole[1000:2000], f"bytes 1000-1999/{len(whole)}")
    _equal(_fetched(link, "bytes=1000-1999"), part, "a range by a link")
    part = (206, whole[-7:], f"bytes {len(whole) - 7}-{len(whole) - 1}/{len(whole)}")
    _equal(_fetched(link, f"bytes={len(whole) - 7}-"), part, "the end by a link")
    # Azurite answers 206 without a byte where a range begins right behind the last one.
    _equal(_status(link, f"bytes={len(whole) + 1}-"), 416, "a range behind the end by a link")
    tested.store.delete(key)
    _true(_status(link) in (403, 404), "a link to what was deleted")


def links_are_not_forged(tested: StoreUnderTest, links: Links) -> None:
    """A link serves no other object, neither writes nor deletes, and ends with its time."""
    key, other = tested.key(), tested.key()
    for each in (key, other):
        tested.store.put(each, [b"held"])
    link, longer = links.link(key, 300), links.link(key, 3000)
    _equal(_status(link), 200, "a link")
    name, changed = key.rpartition("/")[2], other.rpartition("/")[2]
    _refused(link.replace(name, changed), "a link whose object was changed")
    # No store is known by the names of its parameters: each one of a longer link is tried.
    for own, its in _differing(link, longer):
        _refused(link.replace(own, its), f"a link with {its.partition('=')[0]} of a longer one")
    for method in ("PUT", "DELETE"):
        _refused(link, f"{method} with a link", method)
    _equal(tested.read(key), b"held", "the object")
    short = links.link(key, 1)
    for _ in range(300):
        if _status(short) in _REFUSED:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("a link holds beyond its time")
    for _, its in _differing(short, longer):
        for second in (short.replace("?", f"?{its}&"), f"{short}&{its}"):
            _refused(second, f"a link with a second {its.partition('=')[0]}")


LINK_CHECKS: tuple[Callable[[StoreUnderTest, Links], None], ...] = (
    links_give_the_object,
    links_are_not_forged,
)
"""Checks of stores that give links."""


def run_links(store: BlobStore, links: Links, check: Callable[[StoreUnderTest, Links], None]) -> None:
    """Runs one check of ``links`` to objects of ``store`` as :func:`run` does."""
    run(store, lambda tested: check(tested, links))


def run(store: BlobStore, check: Callable[[StoreUnderTest], None]) -> None:
    """Runs one check and removes what it wrote. Raises ``AssertionError``, or what the store raises."""
    tested = StoreUnderTest(store)
    try:
        check(tested)
    finally:
        tested.clean()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check. ``problem``: what the store does wrong, or the error that prevented the
    check; empty if the promise holds."""

    check: str
    promise: str
    problem: str = ""


def promises(links: Links | None) -> list[Verdict]:
    """Lists the checks that :func:`judge` runs, without a problem."""
    checks: tuple[Callable[..., None], ...] = (*CHECKS, *(LINK_CHECKS if links else ()))
    return [Verdict(check.__name__, " ".join((check.__doc__ or "").split())) for check in checks]


def judge(store: BlobStore, links: Links | None) -> Iterator[Verdict]:
    """Runs every check and yields its verdict. Ends after the first check if that fails: the store cannot be
    used at all. ``links``: those of the same store, if it gives any."""
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


_REFUSED = (400, 401, 403)


def _refused(link: str, what: str, method: str = "GET") -> None:
    status = _status(link, method=method)
    _true(status in _REFUSED, f"{what}: {status} instead of a refusal")


def _differing(link: str, longer: str) -> list[tuple[str, str]]:
    """Return each parameter of ``link`` beside that of the same name in ``longer``, where they differ."""
    own, its = (
        {part.partition("=")[0]: part for part in urlsplit(each).query.split("&")} for each in (link, longer)
    )
    differing = [(own[name], its[name]) for name in own if name in its and own[name] != its[name]]
    _true(bool(differing), "a link for longer is the same link")
    return differing


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


def _equal(actual: object, expected: object, what: str) -> None:
    _true(actual == expected, f"{what}: {str(actual)[:200]} instead of {str(expected)[:200]}")


def _raises(kind: type[Exception], act: Callable[[], object]) -> None:
    try:
        act()
    except kind:
        return
    except CacheSvcError as error:
        raise AssertionError(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"no {kind.__name__} was raised")
