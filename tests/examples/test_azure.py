"""Test the store for Azure over Azurite, with a workload identity: by the kit, behind a whole registry, and
with a store that lies.

`make test-stores` installs what this needs; without it the tests are skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc.blobs.schemes import open_by_url
from cachesvc.blobs.store import BlobStore, Unusable
from cachesvc_client.wire.errors import NotFound, Unavailable
from tests.services.azurite import Azurite, azurite, relay
from tests.services.clouds import Headers, Lies, installed

from .outside import (
    WITHOUT_SENSE,
    holds_at_most,
    one_line,
    one_of_many_writers_wins,
    reads_any_answer,
    reads_what_is_cut,
    serves_by_links,
)
from .wheels import install, passes_its_kit

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SMALL, FULL, LARGE = b"small" * 1000, b"full" * (6 << 20), b"large" * (5 << 20)
"""FULL is the most that one request puts."""
SIZES = pytest.mark.parametrize("whole", [SMALL, FULL, LARGE], ids=["small", "full", "large"])


@pytest.fixture(scope="module")
def emulator() -> Iterator[Azurite]:
    with azurite() as one:
        yield one


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return folders for the PYTHONPATH: the wheels of the examples, and what the store requires."""
    place = install(tmp_path_factory.mktemp("site"), "kinds/cffi", "stores/azure")
    return f"{place}{os.pathsep}{installed('azure') / 'site'}"


def test_the_store_passes_the_kit_that_cachesvc_ships(emulator: Azurite, site: str) -> None:
    variables = {**os.environ, **emulator.variables, "PYTHONPATH": site}
    passes_its_kit("stores/azure", {**variables, "CACHESVC_TEST_AZURE": f"{emulator.container()}/some/where"})
    assert emulator.exchanged == ["https://storage.azure.com/.default"], "one token, of a workload identity"


def test_a_fresh_host_hits_by_a_signed_link_and_what_is_deleted_is_collected(
    emulator: Azurite, site: str, tmp_path: Path
) -> None:
    url = f"{emulator.container()}/eu"
    variables = {
        **os.environ,
        **emulator.variables,
        "PYTHONPATH": site,
        "CACHESVC_SERVER_PACKS_URL": url,
    }
    client = {"SSL_CERT_FILE": emulator.variables["SSL_CERT_FILE"]}
    serves_by_links(tmp_path, site, variables, client, opened(emulator, url))


def opened(emulator: Azurite, url: str = "", endpoint: str = "") -> BlobStore:
    """Return a store in this process, in the emulator or behind a relay at ``endpoint``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.variables.items():
            patch.setenv(name, value)
        if endpoint:
            patch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", endpoint)
        return open_by_url(url or emulator.container())


@pytest.fixture(scope="module", autouse=True)
def _packages(site: str, emulator: Azurite) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, *site.split(os.pathsep)])
        patch.setenv("REQUESTS_CA_BUNDLE", emulator.variables["REQUESTS_CA_BUNDLE"])
        yield


@pytest.fixture(scope="module")
def relayed(_packages: None, emulator: Azurite) -> Iterator[tuple[BlobStore, Lies]]:
    with relay(emulator) as (endpoint, lies), pytest.MonkeyPatch.context() as patch:
        # The client waits for seconds before it repeats a request.
        patch.setattr("azure.core.pipeline.transport.HttpTransport.sleep", lambda *_: None)
        store = opened(emulator, endpoint=endpoint)
        store.put("first", [SMALL])  # tries what the store promises
        store.delete("first")
        yield store, lies


@pytest.fixture
def lying(relayed: tuple[BlobStore, Lies]) -> Iterator[tuple[BlobStore, Lies]]:
    store, lies = relayed
    honest = Lies()
    yield store, lies
    lies.asked, lies.answered, lies.cut = honest.asked, honest.answered, None


@pytest.mark.parametrize(
    ("date", "says"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", r"the store's clock differs by -\d+ s \(set the clock"),
        ("Sun, 06 Nov 1994 08:49:37", r"the store's clock differs by -\d+ s \(set the clock"),
        ("Sun, 66 Nov 2026 88:49:37 GMT", "the store tells no time: Sun, 66"),
        ("", "the store tells no time: "),
    ],
)
def test_a_store_with_another_clock_or_none_is_refused(
    lying: tuple[BlobStore, Lies], date: str, says: str
) -> None:
    store, lies = lying
    store.check()

    def late(_: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        return {**headers, "date": date}, body

    lies.answered = late
    one_line(Unusable, says, store.check)


@SIZES
def test_bytes_that_are_damaged_on_their_way_in_are_not_stored(
    lying: tuple[BlobStore, Lies], whole: bytes
) -> None:
    store, lies = lying

    def damaged(method: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        return headers, b"X" + body[1:] if method == "PUT" and len(body) > 1000 else body

    lies.asked = damaged
    one_line(Unavailable, "container cachesvctest/packs-.* refused: ", lambda: store.put("damaged", [whole]))
    assert list(store.list()) == []
    with pytest.raises(NotFound):
        store.size("damaged")


@SIZES
def test_a_put_whose_answer_tells_another_checksum_leaves_nothing(
    lying: tuple[BlobStore, Lies], whole: bytes
) -> None:
    store, lies = lying

    def another(method: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        return {**headers, "content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="} if method == "PUT" else headers, body

    lies.answered = another
    one_line(Unavailable, "object told: MD5 mismatch", lambda: store.put("told", [whole]))
    assert list(store.list()) == []


@SIZES
def test_of_many_writers_of_a_key_one_wins(lying: tuple[BlobStore, Lies], whole: bytes) -> None:
    one_of_many_writers_wins(lying[0], whole[1:])


@pytest.mark.parametrize(("headers", "body"), WITHOUT_SENSE.values(), ids=WITHOUT_SENSE)
def test_an_answer_without_sense_is_one_line(
    lying: tuple[BlobStore, Lies], headers: Headers, body: bytes | None
) -> None:
    store, lies = lying
    reads_any_answer(store, lies, headers, body)
    for facts in list(store.list()):
        store.delete(facts.key)


@SIZES
def test_a_read_that_is_cut_is_one_line(lying: tuple[BlobStore, Lies], whole: bytes) -> None:
    reads_what_is_cut(*lying, whole)


@SIZES
def test_a_put_that_is_cut_leaves_nothing(lying: tuple[BlobStore, Lies], whole: bytes) -> None:
    store, lies = lying

    def cut(method: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        if method == "PUT":
            raise OSError("the connection breaks")
        return headers, body

    lies.asked = cut
    one_line(Unavailable, "account cachesvctest: .*reachable", lambda: store.put("cut", [whole]))
    assert list(store.list()) == []


@pytest.mark.parametrize(("size", "mebibytes"), [(24, 48), (100, 32)])
def test_a_put_needs_bounded_memory(emulator: Azurite, size: int, mebibytes: int) -> None:
    holds_at_most(opened(emulator), mebibytes, size)


def test_a_store_that_ignores_conditions_is_refused(emulator: Azurite) -> None:
    with relay(emulator) as (endpoint, lies):
        store = opened(emulator, endpoint=endpoint)

        def unconditional(_: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
            return {name: value for name, value in headers.items() if name.lower() != "if-none-match"}, body

        lies.asked = unconditional
        one_line(
            Unusable,
            "writes over what exists, though If-None-Match forbids it",
            lambda: store.put("a", [SMALL]),
        )
        assert list(store.list()) == [], "the probe is removed"


@SIZES
@pytest.mark.parametrize("times", [1, 3])
def test_a_put_whose_answer_is_lost_is_the_one_that_exists(
    lying: tuple[BlobStore, Lies], whole: bytes, times: int
) -> None:
    """The client repeats it, and is told that the blob exists, or gets no answer at all."""
    store, lies = lying
    lost: list[str] = []

    def lose(method: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        made = "etag" in {name.lower() for name in headers}
        if method == "PUT" and (made or lost) and len(lost) < times:
            lost.append(method)
            raise OSError("the connection breaks")
        return headers, body

    lies.answered = lose
    assert store.put("lost", [whole]) == len(whole) and len(lost) == times
    assert b"".join(store.open("lost")) == whole
    store.delete("lost")


def test_what_an_operator_has_to_mend_is_one_line(emulator: Azurite) -> None:
    one_line(
        Unusable,
        "ContainerNotFound .create the container",
        opened(emulator, "azure://cachesvctest/absent").check,
    )
    one_line(Unusable, "names no container", lambda: opened(emulator, "azure://cachesvctest"))
    for url in ("azure://me:secret@a/c", "azure://a/c?sig=secret", "azure://a/c/../d", "azure://a/c/d%5Ce"):
        one_line(Unusable, "^azure:// has a user, a query", lambda url=url: opened(emulator, url))
    one_line(
        Unavailable,
        "account cachesvctest: .*reachable from here",
        opened(emulator, endpoint="https://127.0.0.1:9/cachesvctest").check,
    )
    (emulator.place / "assertion").write_text("of another pod")
    try:
        one_line(Unusable, "no token: .*AZURE_FEDERATED_TOKEN_FILE", opened(emulator).check)
    finally:
        (emulator.place / "assertion").write_text("the cluster's word for this pod")
