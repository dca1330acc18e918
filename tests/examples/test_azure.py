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

from .outside import one_line, serves_by_links
from .wheels import install, passes_its_kit

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SMALL, LARGE = b"small" * 1000, b"large" * (5 << 20)


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
    with relay(emulator) as (endpoint, lies):
        yield opened(emulator, endpoint=endpoint), lies


@pytest.fixture
def lying(relayed: tuple[BlobStore, Lies]) -> Iterator[tuple[BlobStore, Lies]]:
    store, lies = relayed
    honest = Lies()
    yield store, lies
    lies.asked, lies.answered = honest.asked, honest.answered


def test_a_store_with_another_clock_is_refused(lying: tuple[BlobStore, Lies]) -> None:
    store, lies = lying
    store.check()

    def late(_: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        return {**headers, "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, body

    lies.answered = late
    one_line(Unusable, r"the store's clock differs by -\d+ s \(set the clock", store.check)


@pytest.mark.parametrize("whole", [SMALL, LARGE], ids=["small", "large"])
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


@pytest.mark.parametrize("whole", [SMALL, LARGE], ids=["small", "large"])
def test_of_two_writers_of_a_key_the_second_is_refused(lying: tuple[BlobStore, Lies], whole: bytes) -> None:
    store, _ = lying
    store.put("twice", [whole])
    one_line(Unavailable, "object twice exists", lambda: store.put("twice", [whole[::-1]]))
    assert b"".join(store.open("twice")) == whole
    store.delete("twice")


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


@pytest.mark.parametrize("whole", [SMALL, LARGE], ids=["small", "large"])
def test_a_put_whose_answer_is_lost_is_the_one_that_exists(
    lying: tuple[BlobStore, Lies], whole: bytes
) -> None:
    """The client repeats it, and is told that the blob exists."""
    store, lies = lying
    lost: list[str] = []

    def lose_one(method: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        if method == "PUT" and "etag" in {name.lower() for name in headers} and not lost:
            lost.append(method)
            raise OSError("the connection breaks")
        return headers, body

    lies.answered = lose_one
    assert store.put("lost", [whole]) == len(whole) and lost
    assert b"".join(store.open("lost")) == whole
    store.delete("lost")


def test_what_an_operator_has_to_mend_is_one_line(emulator: Azurite) -> None:
    one_line(
        Unusable,
        "ContainerNotFound .create the container",
        opened(emulator, "azure://cachesvctest/absent").check,
    )
    one_line(Unusable, "names no container", lambda: opened(emulator, "azure://cachesvctest"))
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
