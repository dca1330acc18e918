"""Test the store for Google Cloud Storage over Google's own testbench: by the kit, with each identity,
behind a whole registry, and with a store that lies.

`make test-stores` installs what this needs; without it the tests are skipped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc.blobs.schemes import open_by_url
from cachesvc.blobs.store import BlobStore, Unusable
from cachesvc_client.wire.errors import NotFound, Unavailable
from tests.services.clouds import Headers, Lies, installed
from tests.services.process import free_port
from tests.services.testbench import Google, cloud_storage

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

SMALL, LARGE = b"small" * 1000, b"large" * (5 << 20)
SIZES = pytest.mark.parametrize("whole", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    with cloud_storage() as one:
        yield one


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return folders for the PYTHONPATH: the wheels of the examples, and what the store requires."""
    place = install(tmp_path_factory.mktemp("site"), "kinds/cffi", "stores/google")
    return f"{place}{os.pathsep}{installed('google') / 'site'}"


@pytest.fixture(scope="module", autouse=True)
def _packages(site: str, google: Google) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, *site.split(os.pathsep)])
        for name in ("HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
            patch.setenv(name, google.variables("key")[name])
        yield


@pytest.fixture(autouse=True)
def _honest(google: Google) -> Iterator[None]:
    yield
    google.lies, google.rights, google.rewritten = Lies(), {"storage", "sign"}, str


@pytest.fixture(scope="module")
def store(google: Google, _packages: None) -> BlobStore:
    return opened(google)


def opened(google: Google, url: str = "", identity: str = "key", **variables: str) -> BlobStore:
    """Return a store in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**google.variables(identity), **variables}.items():
            patch.setenv(name, value)
        return open_by_url(url or google.bucket())


@pytest.mark.parametrize("identity", ["key", "metadata", "federation"])
def test_the_store_passes_the_kit_that_cachesvc_ships(google: Google, site: str, identity: str) -> None:
    before = google.asked.copy()
    variables = {**os.environ, **google.variables(identity), "PYTHONPATH": site}
    passes_its_kit("stores/google", {**variables, "CACHESVC_TEST_GOOGLE": f"{google.bucket()}/some/where"})
    assert google.asked["link"] - before["link"] >= 6, "links with signatures that fit were answered"
    assert google.asked[identity] - before[identity] == 1, "one token, of this identity"
    assert (google.asked["sign"] > before["sign"]) == (identity != "key"), "a key signs by itself"


def test_a_fresh_host_hits_by_a_signed_link_and_what_is_deleted_is_collected(
    google: Google, site: str, tmp_path: Path
) -> None:
    url = f"{google.bucket()}/eu"
    variables = {
        **os.environ,
        **google.variables("metadata"),
        "PYTHONPATH": site,
        "CACHESVC_SERVER_PACKS_URL": url,
    }
    client = {name: google.variables("metadata")[name] for name in ("HTTPS_PROXY", "SSL_CERT_FILE")}
    serves_by_links(tmp_path, site, variables, client, opened(google, url))


def test_a_link_that_is_changed_or_over_gives_nothing(store: BlobStore) -> None:
    """The proxy verifies signatures by the published rules and the public key: it has to refuse what does not
    fit."""
    store.put("linked", [SMALL])
    link, short = store.link("linked", 300), store.link("linked", 1)
    with urllib.request.urlopen(link, timeout=30) as answer:
        assert answer.read() == SMALL
    for old, new in (("Expires=300", "Expires=3000"), ("linked", "other"), ("Signature=", "Signature=00")):
        assert (status(link.replace(old, new)), status(link)) == (403, 200), old
    assert status(f"{link}&userProject=another") == 403 and status(link, "DELETE") == 403
    time.sleep(1.1)
    assert (status(short), status(short.replace("Expires=1", "Expires=9"))) == (400, 403), "it is over"


def status(link: str, method: str = "GET") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(link, method=method), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("date", "says"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", r"the store's clock differs by -\d+ s \(set the clock"),
        (None, "the store tells no time: "),
    ],
)
def test_a_store_with_another_clock_or_none_is_refused(
    google: Google, store: BlobStore, date: str | None, says: str
) -> None:
    store.check()
    google.lies.answered = lambda _, headers, body: (
        {
            **{name: its for name, its in headers.items() if name != "Date"},
            **({"Date": date} if date else {}),
        },
        body,
    )
    one_line(Unusable, says, store.check)


@SIZES
def test_bytes_that_are_damaged_on_their_way_in_are_not_stored(
    google: Google, store: BlobStore, whole: bytes
) -> None:
    def damaged(_: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        return headers, body.replace(b"smallsmall", b"Smallsmall", 1).replace(b"largelarge", b"Largelarge", 1)

    google.lies.asked = damaged
    one_line(Unavailable, "damaged.*refused: .*crc32c", lambda: store.put("damaged", [whole]))
    google.lies = Lies()
    assert "damaged" not in {facts.key for facts in store.list()}
    with pytest.raises(NotFound):
        store.size("damaged")


@SIZES
def test_bytes_that_are_damaged_on_their_way_out_are_an_error(
    google: Google, store: BlobStore, whole: bytes
) -> None:
    store.put("read", [whole])
    google.lies.asked = lambda _, headers, body: (
        {**headers, "x-goog-emulator-instructions": "return-corrupted-data"},
        body,
    )
    one_line(
        Unavailable, "object read: what was read has not the CRC32C", lambda: b"".join(store.open("read"))
    )
    store.delete("read")


def test_a_put_whose_answer_tells_another_checksum_leaves_nothing(google: Google, store: BlobStore) -> None:
    google.lies.answered = lambda _, headers, body: (
        headers,
        re.sub(rb'"crc32c": *"[^"]*"', b'"crc32c": "AAAAAA=="', body),
    )
    one_line(Unavailable, "object told: The computed .*did not match", lambda: store.put("told", [LARGE]))
    google.lies = Lies()
    assert "told" not in {facts.key for facts in store.list()}


@SIZES
def test_of_many_writers_of_a_key_one_wins(store: BlobStore, whole: bytes) -> None:
    one_of_many_writers_wins(store, whole)


@pytest.mark.parametrize(("headers", "body"), WITHOUT_SENSE.values(), ids=WITHOUT_SENSE)
def test_an_answer_without_sense_is_one_line(google: Google, headers: Headers, body: bytes | None) -> None:
    reads_any_answer(opened(google), google.lies, headers, body)


@SIZES
def test_a_read_that_is_cut_is_one_line(google: Google, store: BlobStore, whole: bytes) -> None:
    reads_what_is_cut(store, google.lies, whole)


def test_a_put_needs_bounded_memory(google: Google) -> None:
    """Without the proxy, which holds what it passes on, in this process."""
    holds_at_most(opened(google, STORAGE_EMULATOR_HOST=f"http://127.0.0.1:{google.port}"), 36, 100)


def test_a_store_that_ignores_conditions_is_refused(google: Google) -> None:
    store = opened(google)
    google.rewritten = lambda path: path.replace("ifGenerationMatch=0", "")
    says = "writes over what exists, though ifGenerationMatch=0 forbids it"
    one_line(Unusable, says, lambda: store.put("a", [SMALL]))
    assert list(store.list()) == [], "the probe is removed"


@SIZES
def test_a_put_whose_answer_is_lost_is_the_one_that_exists(
    google: Google, store: BlobStore, whole: bytes
) -> None:
    """The client repeats it, and is told that the object exists, or that its upload has ended."""
    lost: list[str] = []

    def lose_one(_: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        if b'"timeFinalized"' in body and not lost:
            lost.append("")
            raise OSError("the connection breaks")
        return headers, body

    google.lies.answered = lose_one
    assert store.put("lost", [whole]) == len(whole) and lost
    assert b"".join(store.open("lost")) == whole
    store.delete("lost")


@pytest.mark.parametrize("fault", ["return-503", "return-429", "return-reset-connection"])
@pytest.mark.parametrize("operation", ["insert", "get", "delete", "list"])
def test_a_fault_of_the_store_is_repeated(
    google: Google, store: BlobStore, operation: str, fault: str
) -> None:
    key = f"{operation}-{fault}"
    if operation != "insert":
        store.put(key, [SMALL])
    does = {
        "insert": lambda: store.put(key, [SMALL]) == len(SMALL),
        "get": lambda: b"".join(store.open(key)) == SMALL,
        "delete": lambda: store.delete(key) is None,
        "list": lambda: key in {facts.key for facts in store.list()},
    }[operation]
    with google.fault(operation, fault):
        assert does()
    assert (operation == "delete") == (key not in {facts.key for facts in store.list()})
    store.delete(key)


@pytest.mark.parametrize("fault", ["return-503-after-256K", "return-503-after-12300K"])
def test_a_large_put_whose_part_breaks_off_goes_on(google: Google, store: BlobStore, fault: str) -> None:
    with google.fault("insert", fault):
        assert store.put("broken", [LARGE]) == len(LARGE)
    assert b"".join(store.open("broken")) == LARGE
    store.delete("broken")


def test_a_put_that_is_killed_leaves_nothing(google: Google, site: str, tmp_path: Path) -> None:
    """The process dies after two parts of three, where it says so, without a word to the store."""
    url = google.bucket()
    program = (
        "import sys, time; from cachesvc.blobs.schemes import open_by_url\n"
        "def chunks():\n"
        "    yield from [bytes(1 << 20)] * 26\n"
        "    print('two parts are sent', flush=True); time.sleep(600)\n"
        "open_by_url(sys.argv[1]).put('killed', chunks())\n"
    )
    variables = {**os.environ, **google.variables("key"), "PYTHONPATH": site}
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "two parts are sent\n"
        process.send_signal(signal.SIGKILL)
    store = opened(google, url)
    assert list(store.list()) == []
    assert store.put("killed", [LARGE]) == len(LARGE), "its key is free"


def test_what_an_operator_has_to_mend_is_one_line(google: Google) -> None:
    absent = opened(google, "gs://absent")
    says = r"bucket absent: refused: 404 .*\(create the bucket, or fix packs_url\)"
    one_line(Unusable, says, absent.check)
    one_line(Unusable, says, lambda: absent.put("a", [SMALL]))
    one_line(Unusable, says, lambda: absent.open("a"))
    one_line(Unusable, "names no bucket", lambda: opened(google, "gs://"))
    for url in ("gs://me:secret@b", "gs://b?key=secret", "gs://b/c/../d"):
        one_line(Unusable, "^gs:// has a user, a query", lambda url=url: opened(google, url))
    one_line(Unusable, r"fix packs_url", lambda: opened(google, "gs://-a-"))
    google.rights = {"sign"}
    one_line(Unusable, r"refused: 403 .*role Storage Object User", opened(google).check)
    google.rights = {"storage"}
    one_line(
        Unusable, "IAM signs no links: .*role Service Account Token Creator", lambda: link(google, "metadata")
    )
    one_line(Unusable, "no service account signs links", lambda: link(google, "unlinked"))
    proxy = f"http://127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", proxy)
        one_line(Unavailable, "is .*googleapis.com reachable", opened(google, HTTPS_PROXY=proxy).check)


def test_an_identity_that_is_none_is_one_line(google: Google, tmp_path: Path) -> None:
    (google.place / "assertion").write_text("of another pod")
    try:
        refused = opened(google, identity="federation")
        one_line(Unusable, "no token: .*GOOGLE_APPLICATION_CREDENTIALS", refused.check)
    finally:
        (google.place / "assertion").write_text("the cluster's word for this pod")
    (tmp_path / "key.json").write_text("{}")
    one_line(
        Unusable,
        "no token: .*GOOGLE_APPLICATION_CREDENTIALS",
        lambda: opened(google, "gs://a", GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "key.json")),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        nowhere = {"GCE_METADATA_HOST": f"127.0.0.1:{free_port()}", "GCE_METADATA_IP": "127.0.0.1:9"}
        one_line(
            Unusable,
            "no token: .*GOOGLE_APPLICATION_CREDENTIALS",
            lambda: opened(google, "gs://a", "metadata", **nowhere),
        )


def link(google: Google, identity: str) -> str:
    return opened(google, identity=identity).link("a", 60)
