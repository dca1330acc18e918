"""Test the one way into a registry: a bundle goes as it was signed, or signed again over a newer head.

Small packs go with their envelope, large packs by an upload before. Most tests try both."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.publication.publish_bundle import publish_bundle, publish_signed
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.errors import Corrupt, HeadConflict, Untrusted
from cachesvc_client.wire.requests.protocol import BundleRequest


class CountingRemote(Remote):
    """Is a real client that remembers its calls that publish, and may run a function before its commit."""

    def __init__(self, *arguments, before_commit=lambda: None):
        super().__init__(*arguments)
        self.calls: list[str] = []
        self._before_commit = before_commit
        self._ask = self.exchange.call
        self.exchange.call = self._note

    def _note(self, method, path, *arguments, **more):
        words = {"/v1/uploads": "begin", "/v1/bundles": "bundle"}
        if method in ("PUT", "DELETE"):
            self.calls.append({"PUT": "put", "DELETE": "abort"}[method])
        elif word := "commit" if path.endswith("/commit") else words.get(path.partition("?")[0]):
            if word in ("commit", "bundle"):
                self._before_commit()
            self.calls.append(word)
        answer = self._ask(method, path, *arguments, **more)
        if path == "/v1/uploads":
            self.upload = json.loads(answer.body)["upload"]
        return answer


@pytest.fixture(params=["bundle", "upload"])
def route(request, monkeypatch):
    if request.param == "upload":
        monkeypatch.setattr("cachesvc_client.publication.publish_bundle.ONE_REQUEST_BYTES", 0)
    return request.param


def expected_calls(route, commits=1, *, released=False):
    if route == "bundle":
        return ["bundle"] * commits
    return ["begin", "put", *["commit"] * commits, *["abort"] * released]


@pytest.fixture
def remote(registry):
    def make(**more):
        return CountingRemote(registry.url, registry.token, **more)

    return make


def manifest_of(path, key):
    envelope, _ = open_bundle(path)
    return check_envelope(envelope, trusted=[key.public], expected=None, now=time.time()).manifest


NOW = time.time_ns() // 1_000_000


def test_a_bundle_is_published_as_signed_and_a_second_time_without_a_byte(remote, bundle, registry, route):
    path = bundle(f"publishing/signed-{route}")
    client = remote()
    verified, answer = publish_signed(client, path, Acceptance([registry.trust]))
    assert answer.created and answer.revision == verified.revision
    assert client.calls == expected_calls(route)
    for again in (
        publish_signed(client, path, Acceptance([registry.trust]))[1],
        publish_bundle(client, path, registry.key),
    ):
        assert not again.created and again.revision == verified.revision
    assert client.calls == expected_calls(route)


def test_only_a_holder_of_the_key_publishes_over_a_newer_head(remote, bundle, registry, route):
    publish_signed(
        remote(),
        bundle(f"publishing/newer-{route}", content=b"new", sequence=NOW),
        Acceptance([registry.trust]),
    )
    older = bundle(f"publishing/newer-{route}", content=b"old", sequence=NOW - 1000)
    client = remote()
    with pytest.raises(HeadConflict):
        publish_signed(client, older, Acceptance([registry.trust]))
    assert client.calls == expected_calls(route, released=True), "the lease is released"
    client = remote()
    answer = publish_bundle(client, older, registry.key)
    assert answer.created and client.calls == expected_calls(route)
    head = client.entry(manifest_of(older, registry.key).entry)
    assert head.revision == answer.revision and head.sequence > NOW


def test_a_publication_over_a_faster_publisher_needs_no_second_upload(remote, bundle, registry, route):
    mine = bundle(f"publishing/race-{route}", content=b"mine", sequence=NOW)
    theirs = [bundle(f"publishing/race-{route}", content=b"theirs", sequence=NOW + 1000)]

    def first():
        if theirs:
            publish_signed(remote(), theirs.pop(), Acceptance([registry.trust]))

    client = remote(before_commit=first)
    answer = publish_bundle(client, mine, registry.key)
    assert answer.created and client.calls == expected_calls(route, 2)
    assert client.entry(answer.entry).revision == answer.revision


def test_an_abort_after_the_commit_takes_nothing_away(
    command, remote, bundle, registry, tmp_path, monkeypatch
):
    """A client sends an abort after a commit whose answer was lost."""
    monkeypatch.setattr("cachesvc_client.publication.publish_bundle.ONE_REQUEST_BYTES", 0)
    client = remote()
    publish_bundle(client, bundle("publishing/lost"), registry.key)
    Uploads(client).abort(client.upload)
    assert command("pull", "publishing/lost", "--into", tmp_path / "into")[0] == 0


def test_a_second_copy_of_a_bundle_succeeds(remote, bundle, registry):
    """A client sends it after an answer that was lost."""
    path = bundle("publishing/twice")
    envelope, offset = open_bundle(path)
    statement = manifest_of(path, registry.key).statement
    request = BundleRequest(statement.namespace, statement.name)
    created = []
    with path.open("rb") as pack:
        for _ in range(2):
            pack.seek(offset)
            size = path.stat().st_size - offset
            created.append(Uploads(remote()).put_bundle(request, envelope, pack, size).created)
    assert created == [True, False]


def test_a_publisher_that_is_always_late_gives_up(remote, bundle, registry, route):
    mine, sequences = bundle(f"publishing/late-{route}", content=b"mine", sequence=NOW), iter(range(1, 10))

    def first():
        newer = time.time_ns() // 1_000_000 + next(sequences)
        content = str(newer).encode()
        publish_signed(
            remote(),
            bundle(f"publishing/late-{route}", content=content, sequence=newer),
            Acceptance([registry.trust]),
        )

    client = remote(before_commit=first)
    with pytest.raises(HeadConflict):
        publish_bundle(client, mine, registry.key, attempts=2)
    assert client.calls == expected_calls(route, 2, released=True)


def test_one_of_several_publishers_at_once_wins(remote, bundle, registry):
    paths = [bundle("publishing/many", content=bytes([number]) * 99) for number in range(4)]
    answers = []

    def run(path):
        answers.append(publish_bundle(remote(), path, registry.key, attempts=8))

    threads = [threading.Thread(target=run, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 4 and all(answer.created for answer in answers)
    assert remote().entry(answers[0].entry).revision in {answer.revision for answer in answers}


def test_a_damaged_or_untrusted_bundle_is_not_sent(remote, bundle, registry):
    path, client = bundle("publishing/damaged", content=b"x" * 500), remote()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for attempt in (
        lambda: publish_signed(client, path, Acceptance([registry.trust])),
        lambda: publish_bundle(client, path, registry.key),
    ):
        with pytest.raises(Corrupt):
            attempt()
    path.write_bytes(whole)
    stranger = SigningKey.generate()
    with pytest.raises(Untrusted):
        publish_bundle(client, path, stranger)
    assert client.calls == []
