"""Test publish, resolve and download over HTTP, against a real server process."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_making import FINGERPRINT, Api, Publication, Server, make, ok, refused

from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.layout import PACK_MAGIC
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FRAME_BYTES, Frame, PackRecord


def test_a_published_revision_is_resolved_and_downloaded(api: Api, key: SigningKey) -> None:
    publication = make(key, name="first")
    committed = ok(api.publish(publication))
    assert committed == {
        "entry": publication.manifest.entry,
        "revision": publication.revision,
        "created": True,
    }
    resolved = ok(api.resolve(name="first"))
    assert resolved["tag"] == "latest"
    [revision] = resolved["revisions"]
    assert revision["envelope"].encode() == publication.envelope
    assert (revision["entry"], revision["revision"]) == (publication.manifest.entry, publication.revision)
    assert (revision["pack"], revision["pack_size"]) == (Digest.of(publication.pack), len(publication.pack))
    assert api.fetch(revision["pack_url"]).content == publication.pack
    answer = api.pack(publication.revision)
    assert answer.content == publication.pack
    assert answer.headers["etag"] == f'"{Digest.of(publication.pack)}"'


def test_a_second_publication_of_the_same_revision_succeeds(api: Api, key: SigningKey) -> None:
    publication = make(key, name="again")
    upload = ok(api.begin(publication))["upload"]
    ok(api.put(upload, publication.pack))
    assert ok(api.commit(upload, publication))["created"] is True
    assert ok(api.commit(upload, publication))["created"] is False
    assert ok(api.publish(publication))["created"] is False
    assert len(ok(api.resolve(name="again"))["revisions"]) == 1


def test_another_manifest_must_name_the_head_that_it_replaces(api: Api, key: SigningKey) -> None:
    first, second = make(key, name="cas"), make(key, name="cas", content=b"better")
    assert first.manifest.entry == second.manifest.entry
    ok(api.publish(first))
    text = refused(api.publish(second), 409, "head_conflict", first.revision[:19], "not none")
    assert "look at the new head" in text
    refused(api.publish(second, Digest.of(b"other")), 409, "head_conflict")
    assert ok(api.resolve(name="cas"))["revisions"][0]["revision"] == first.revision
    assert ok(api.publish(second, first.revision))["created"] is True
    [row] = ok(api.resolve(name="cas"))["revisions"]
    assert row["revision"] == second.revision
    assert api.pack(first.revision).content == first.pack
    refused(api.publish(first, second.revision), 409, "head_conflict", "sequence")


def test_entries_of_one_name_do_not_replace_each_other(api: Api, key: SigningKey) -> None:
    publications = [
        make(key, name="many"),
        make(key, name="many", target="bert/bf16"),
        make(key, name="many", model=b"other"),
        make(key, name="many", fingerprint={**FINGERPRINT, "cpu_isa": "avx512"}),
    ]
    for one in publications:
        ok(api.publish(one))
    answer = ok(api.resolve(name="many", model=Digest.of(b"other")))
    assert answer["revisions"][0]["revision"] == publications[2].revision
    assert {row["revision"] for row in answer["revisions"]} == {one.revision for one in publications[:3]}
    [rejected] = answer["rejected"]
    assert rejected["entry"] == publications[3].manifest.entry
    [difference] = rejected["differences"]
    assert (difference["factor"], difference["mine"], difference["theirs"]) == ("cpu_isa", "avx2", "avx512")


def test_the_nearest_entry_that_does_not_fit_comes_first(api: Api, key: SigningKey) -> None:
    changes = [
        {"torch": "2.11.0", "cpu_isa": "neon"},
        {"torch": "2.12.0"},
        {"cpu_flags": ["avx", "sve"]},
    ]
    for number, change in enumerate(changes):
        ok(api.publish(make(key, name="near", target=f"t{number}", fingerprint={**FINGERPRINT, **change})))
    answer = ok(api.resolve(name="near"))
    assert answer["revisions"] == []
    assert [row["target"] for row in answer["rejected"]] == ["t2", "t1", "t0"]
    assert [len(row["differences"]) for row in answer["rejected"]] == [1, 1, 2]


@pytest.mark.parametrize(
    "value", [1.5, None, {"deep": []}, [1], [["x"]], "x" * 2_000_000], ids=lambda value: str(value)[:12]
)
def test_a_factor_of_another_type_is_refused_or_ignored(api: Api, value: object) -> None:
    """A newer client may send such a factor: the answer is clear, and the registry goes on."""
    answer = api.resolve(name="many", fingerprint={**FINGERPRINT, "colour": value})
    assert answer.status_code in (200, 400, 404, 413, 422), answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
        assert len(answer.text) < 2000


@pytest.mark.parametrize("value", ["9" * 5000, "2.²", "", True, ["2.36"], "2.36" + "." * 90])
def test_a_malformed_version_is_a_doubt_and_no_crash(api: Api, key: SigningKey, value: object) -> None:
    name = f"version-{Digest.of(repr(value).encode()).hex[:8]}"
    ok(api.publish(make(key, name=name, fingerprint={**FINGERPRINT, "libc": "2.36"})))
    answer = ok(api.resolve(name=name, fingerprint={**FINGERPRINT, "libc": value}))
    assert [one["factor"] for one in answer["rejected"][0]["differences"]] == ["libc"]


def test_tags_fall_back_in_the_order_of_the_caller(api: Api, key: SigningKey) -> None:
    latest, tagged = make(key, name="tags"), make(key, name="tags", tag="v1")
    ok(api.publish(latest))
    ok(api.publish(tagged))
    for tags, tag, publication in (
        (["v1", "latest"], "v1", tagged),
        (["v9", "latest"], "latest", latest),
        (["latest"], "latest", latest),
    ):
        answer = ok(api.resolve(name="tags", tags=tags))
        assert (answer["tag"], answer["revisions"][0]["revision"]) == (tag, publication.revision)
    refused(api.resolve(name="tags", tags=["v9"]), 404, "not_found", "team/tags has no tag v9", "latest, v1")
    refused(api.resolve(name="tagz"), 404, "not_found", "nothing is published as team/tagz:latest")


def test_entries_are_resolved_by_key(api: Api, key: SigningKey) -> None:
    one, two = make(key, name="keys"), make(key, name="keys", target="other")
    for publication in (one, two):
        ok(api.publish(publication))
    answer = ok(api.resolve(name="keys", entries=[two.manifest.entry, Digest.of(b"none")]))
    assert [row["revision"] for row in answer["revisions"]] == [two.revision]
    assert "tag" not in answer
    assert ok(api.resolve(name="other", entries=[two.manifest.entry]))["revisions"] == []


def test_readers_in_a_lane_see_the_trunk_and_not_the_other_way_round(api: Api, key: SigningKey) -> None:
    trunk, lane = make(key, name="lanes"), make(key, name="lanes", lane="pr-1", content=b"try")
    only = make(key, name="lanes", target="only-trunk")
    for publication in (trunk, lane, only):
        ok(api.publish(publication))
    revisions = {row["revision"] for row in ok(api.resolve(name="lanes", lane="pr-1"))["revisions"]}
    assert revisions == {lane.revision, only.revision}
    for other_lane in (None, "pr-2"):
        revisions = {row["revision"] for row in ok(api.resolve(name="lanes", lane=other_lane))["revisions"]}
        assert revisions == {trunk.revision, only.revision}


def test_an_expired_revision_is_not_in_an_answer(api: Api, key: SigningKey) -> None:
    now = int(time.time())
    ok(api.publish(make(key, name="expiring", target="old", expires=now - 60)))
    young = make(key, name="expiring", target="young", expires=now + 3600)
    ok(api.publish(young))
    assert [row["revision"] for row in ok(api.resolve(name="expiring"))["revisions"]] == [young.revision]


def test_names_and_entries_are_listed(api: Api, key: SigningKey) -> None:
    publications = [
        make(key, namespace="listing", name="a/b"),
        make(key, namespace="listing", name="a/b", tag="v1"),
        make(key, namespace="listing", name="c", lane="pr-1"),
    ]
    for one in publications:
        ok(api.publish(one))
    names = ok(api.http.get("/v1/namespaces/listing/names"))
    assert [(row["name"], row["tags"], row["entries"]) for row in names] == [
        ("a/b", ["latest", "v1"], 2),
        ("c", ["latest"], 1),
    ]
    assert names[0]["bytes"] == len(publications[0].pack) + len(publications[1].pack)
    entries = ok(api.http.get("/v1/namespaces/listing/entries", params={"name": "a/b", "tag": "v1"}))
    assert [row["revision"] for row in entries] == [publications[1].revision]
    assert len(ok(api.http.get("/v1/namespaces/listing/entries"))) == 3
    one = ok(api.http.get(f"/v1/entries/{publications[2].manifest.entry}"))
    assert (one["lane"], one["files"], one["measured"]) == ("pr-1", 1, {"compile": 1.5})
    assert one["fingerprint"] == FINGERPRINT
    refused(api.http.get(f"/v1/entries/{Digest.of(b'none')}"), 404, "not_found")
    assert ok(api.http.get("/v1/namespaces/empty/names")) == []


def wrong_signer(_key: SigningKey) -> Publication:
    return make(SigningKey.generate(), name="bad")


def altered(key: SigningKey) -> Publication:
    publication = make(key, name="bad")
    envelope = json.loads(publication.envelope)
    payload = base64.b64decode(envelope["payload"]).replace(b"2.13.0", b"2.13.1")
    envelope["payload"] = base64.b64encode(payload).decode()
    return dataclasses.replace(publication, envelope=json.dumps(envelope).encode())


def other_name(key: SigningKey) -> Publication:
    return dataclasses.replace(make(key, name="bad"), envelope=make(key, name="good").envelope)


def other_lane(key: SigningKey) -> Publication:
    publication = make(key, name="bad", lane="pr-1")
    return dataclasses.replace(publication, envelope=make(key, name="bad").envelope)


def other_pack(key: SigningKey) -> Publication:
    publication = make(key, name="bad")
    return dataclasses.replace(publication, pack=publication.pack[:-1] + b"!")


def from_the_future(key: SigningKey) -> Publication:
    return make(key, name="bad", sequence=int(time.time() * 1000) + 3_600_000)


def strange_facts(key: SigningKey) -> Publication:
    return make(key, name="bad", fingerprint={**FINGERPRINT, "cpu_model": "x" * 70_000})


def far_expiry(key: SigningKey) -> Publication:
    return make(key, name="bad", expires=10**30)


def no_envelope(key: SigningKey) -> Publication:
    return dataclasses.replace(make(key, name="bad"), envelope=b'{"payload": 1}')


BAD = [
    (wrong_signer, 403, "untrusted", "not trusted"),
    (altered, 403, "untrusted", "does not match"),
    (other_name, 403, "untrusted", "team/good:latest"),
    (other_lane, 422, "invalid", "uploaded to pr-1"),
    (other_pack, 422, "corrupt", "not the one that the manifest names"),
    (from_the_future, 422, "invalid", "future"),
    (strange_facts, 422, "invalid", "65536"),
    (far_expiry, 422, "invalid", "expires"),
    (no_envelope, 422, "corrupt", "envelope"),
]


@pytest.mark.parametrize(
    ("bad", "status", "code", "words"), BAD, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_bad_commit_publishes_nothing(
    api: Api, key: SigningKey, bad: Callable[[SigningKey], Publication], status: int, code: str, words: str
) -> None:
    publication = bad(key)
    upload = ok(api.begin(publication))["upload"]
    ok(api.put(upload, publication.pack))
    refused(api.commit(upload, publication), status, code, words)
    refused(api.resolve(name="bad"), 404, "not_found")


@pytest.mark.parametrize(
    ("bad", "status", "code", "words"), BAD, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_bad_bundle_publishes_nothing(
    api: Api, key: SigningKey, bad: Callable[[SigningKey], Publication], status: int, code: str, words: str
) -> None:
    refused(api.bundle(bad(key)), status, code, words)
    refused(api.resolve(name="bad"), 404, "not_found")


def test_a_bundle_is_a_publication_in_one_request(api: Api, key: SigningKey) -> None:
    first, second = make(key, name="whole"), make(key, name="whole", content=secrets.token_bytes(3_000_000))
    committed = {"entry": first.manifest.entry, "revision": first.revision, "created": True}
    assert ok(api.bundle(first)) == committed
    assert ok(api.bundle(first)) == {**committed, "created": False}
    refused(api.bundle(second), 409, "head_conflict", first.revision[:19])
    assert ok(api.bundle(second, first.revision))["created"] is True
    [revision_row] = ok(api.resolve(name="whole"))["revisions"]
    assert revision_row["envelope"].encode() == second.envelope
    assert api.fetch(revision_row["pack_url"]).content == second.pack
    lane = make(key, name="whole", lane="pr-1")
    assert ok(api.bundle(lane))["created"] is True
    assert lane.revision in {
        row["revision"] for row in ok(api.resolve(name="whole", lane="pr-1"))["revisions"]
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda *_: b"", "does not begin as a bundle"),
        (lambda whole, _: whole[:20], "does not begin as a bundle"),
        (lambda whole, _: b"x" + whole[1:], "does not begin as a bundle"),
        (lambda whole, _: whole[:18] + (1 << 40).to_bytes(8, "big") + whole[26:], "an envelope of"),
        (lambda whole, at: whole[: at - 1], "ends within its envelope"),
        (lambda whole, at: whole[:at], "0 bytes came"),
        (lambda whole, _: whole[:-1], "bytes came; the upload declared"),
        (lambda whole, _: whole + b"!", "more than the"),
    ],
)
def test_a_body_that_is_no_bundle_is_refused(
    api: Api, key: SigningKey, body: Callable[[bytes, int], bytes], words: str
) -> None:
    publication = make(key, name="no-bundle")
    whole, parameters = (
        bundle_head(publication.envelope) + publication.pack,
        {"namespace": "team", "name": "no-bundle"},
    )
    answer = api.http.post(
        "/v1/bundles", params=parameters, content=body(whole, len(whole) - len(publication.pack))
    )
    assert answer.status_code in (413, 422) and words in answer.json()["error"]["message"], answer.text
    refused(api.resolve(name="no-bundle"), 404, "not_found")


def test_the_parameters_of_a_bundle_are_checked(api: Api, key: SigningKey) -> None:
    publication = make(key, name="asked")
    digest = str(Digest.of(b"claim"))
    refused(api.bundle(publication, claim=digest), 422, "invalid", "all, or none")
    refused(api.bundle(publication, claim=digest, holder="x", fence=1), 422, "invalid", "holder")
    refused(api.bundle(publication, deed="arson"), 422, "invalid", "deed")
    refused(api.bundle(publication, head="x"), 422, "invalid", "query.head")
    refused(api.bundle(publication, claim=digest, holder="0" * 32, fence=1), 409, "claim_lost")
    refused(api.resolve(name="asked"), 404, "not_found")


def test_a_commit_needs_the_bytes_of_its_pack(api: Api, key: SigningKey) -> None:
    publication = make(key, name="absent-bytes")
    upload = ok(api.begin(publication))["upload"]
    refused(api.commit(upload, publication), 422, "invalid", "was not uploaded")
    refused(api.resolve(name="absent-bytes"), 404, "not_found")


def test_a_body_of_another_size_is_refused(api: Api, key: SigningKey) -> None:
    publication = make(key, name="sizes", content=b"x" * 3000)

    def chunked(data: bytes) -> Iterator[bytes]:
        yield data

    upload = ok(api.begin(publication))["upload"]
    refused(api.put(upload, publication.pack + b"!"), 413, "too_large", str(len(publication.pack)))
    refused(api.put(upload, chunked(publication.pack + b"!")), 413, "too_large", str(len(publication.pack)))
    refused(api.put(upload, publication.pack[:-1]), 422, "invalid", str(len(publication.pack) - 1))
    refused(api.put(upload, chunked(b"")), 422, "invalid", "0 bytes")
    stored = ok(api.put(upload, chunked(publication.pack)))
    assert stored == {"pack": Digest.of(publication.pack), "size": len(publication.pack)}
    assert ok(api.put(upload, publication.pack)) == stored
    refused(api.put(upload, publication.pack[:-1] + b"?"), 422, "invalid", "holds other bytes")
    assert ok(api.commit(upload, publication))["created"] is True
    assert api.pack(publication.revision).content == publication.pack


def test_an_aborted_upload_is_gone(api: Api, key: SigningKey) -> None:
    publication = make(key, name="aborted")
    upload = ok(api.begin(publication))["upload"]
    ok(api.put(upload, publication.pack))
    assert api.http.delete(f"/v1/uploads/{upload}").status_code == 204
    refused(api.commit(upload, publication), 404, "not_found", "begin the upload again")
    refused(api.put(upload, publication.pack), 404, "not_found")
    refused(api.http.delete(f"/v1/uploads/{upload}"), 404, "not_found")


def test_sizes_are_bounded(api: Api, key: SigningKey) -> None:
    publication = make(key)
    refused(api.begin(publication, size=0), 422, "invalid", "size")
    refused(api.begin(publication, size=1 << 60), 413, "too_large", str(16 << 30))


def test_a_connection_that_breaks_off_stores_nothing(server: Server, api: Api, key: SigningKey) -> None:
    publication = make(key, name="cut", content=secrets.token_bytes(300_000))
    upload = ok(api.begin(publication))["upload"]
    host, port = server.url.removeprefix("http://").split(":")
    for length in (len(publication.pack), None):
        with socket.create_connection((host, int(port))) as line:
            framing = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
            line.sendall(
                f"PUT /v1/uploads/{upload}/pack HTTP/1.1\r\nHost: x\r\n{framing}\r\n"
                f"Authorization: Bearer {server.token}\r\n\r\n".encode()
            )
            line.sendall(
                publication.pack[:100_000] if length else b"10000\r\n" + publication.pack[: 1 << 16] + b"\r\n"
            )
    refused(api.commit(upload, publication), 422, "invalid", "was not uploaded")
    ok(api.put(upload, publication.pack))
    assert ok(api.commit(upload, publication))["created"] is True


RANGES = [
    ("bytes=0-0", 0, 1),
    ("bytes=5-9", 5, 10),
    ("bytes=100-", 100, None),
    ("bytes=-7", -7, None),
    ("bytes=10-99999999", 10, None),
    ("bytes=-99999999", 0, None),
]


def test_ranges_of_a_pack_are_downloaded(api: Api, key: SigningKey) -> None:
    publication = make(key, name="ranges", content=secrets.token_bytes(5000))
    ok(api.publish(publication))
    size = len(publication.pack)
    for header, start, end in RANGES:
        answer = api.pack(publication.revision, Range=header)
        assert answer.status_code == 206
        assert answer.content == publication.pack[start:end]
        begin = start if start >= 0 else size + start
        assert answer.headers["content-range"] == f"bytes {begin}-{begin + len(answer.content) - 1}/{size}"
    for header in (f"bytes={size}-", "bytes=-0", f"bytes={size + 5}-{size + 9}"):
        answer = api.pack(publication.revision, Range=header)
        refused(answer, 416, "range", str(size))
        assert answer.headers["content-range"] == f"bytes */{size}"
    for ignored in ("bytes=0-1,3-4", "lines=1-2", "bytes=9-5", "bytes=-", "bytes=x-"):
        answer = api.pack(publication.revision, Range=ignored)
        assert (answer.status_code, answer.content) == (200, publication.pack)


def test_a_download_resumes_over_the_same_bytes_only(api: Api, key: SigningKey) -> None:
    publication = make(key, name="resume", content=secrets.token_bytes(2_500_000))
    ok(api.publish(publication))
    whole = api.pack(publication.revision)
    etag = whole.headers["etag"]
    assert whole.headers["accept-ranges"] == "bytes"
    rest = api.pack(publication.revision, **{"Range": "bytes=1000000-", "If-Range": etag})
    assert rest.status_code == 206
    assert Digest.of(whole.content[:1_000_000] + rest.content) == publication.manifest.pack.digest
    other = api.pack(publication.revision, **{"Range": "bytes=1000000-", "If-Range": '"sha256:other"'})
    assert (other.status_code, other.content) == (200, publication.pack)
    head = api.http.head(f"/v1/revisions/{publication.revision}/pack")
    assert (head.status_code, head.content, head.headers["content-length"]) == (
        200,
        b"",
        str(len(publication.pack)),
    )
    assert head.headers["etag"] == etag
    refused(api.pack(Digest.of(b"none")), 404, "not_found", "resolve again")
    refused(api.pack("sha256:xyz"), 422, "invalid", "path.revision")


def test_memory_does_not_grow_with_the_pack(own_column_server: Server) -> None:
    """The pack has 160 MiB, or 2 GiB with CACHESVC_TEST_FRAMES=512 in the environment."""
    server = own_column_server.start()
    api = server.api()
    frames = int(os.environ.get("CACHESVC_TEST_FRAMES", "40"))
    content = secrets.token_bytes(FRAME_BYTES)
    pack = hashlib.sha256(PACK_MAGIC)
    for _ in range(frames):
        pack.update(content)
    size = len(PACK_MAGIC) + frames * FRAME_BYTES
    publication = make(
        server.key,
        pack=PackRecord(Digest("sha256:" + pack.hexdigest()), size),
        frames=tuple(
            Frame(len(PACK_MAGIC) + n * FRAME_BYTES, FRAME_BYTES, FRAME_BYTES, Digest.of(content))
            for n in range(frames)
        ),
        files=(),
    )
    upload = ok(api.begin(publication, size=size))["upload"]

    def chunks() -> Iterator[bytes]:
        yield PACK_MAGIC
        for _ in range(frames):
            yield content

    def peak() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10

    # The first use loads modules, and their memory does not count.
    ok(api.publish(make(server.key, name="first")))
    before = peak()
    ok(api.put(upload, chunks()))
    ok(api.commit(upload, publication))
    digest = hashlib.sha256()
    with api.http.stream("GET", f"/v1/revisions/{publication.revision}/pack") as answer:
        for chunk in answer.iter_raw():
            digest.update(chunk)
    assert digest.digest() == pack.digest()
    print(f"{size >> 20} MiB: the peak rose from {before >> 20} to {peak() >> 20} MiB")
    assert peak() - before < 48 << 20 < size // 3
    assert peak() < 200 << 20


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"unknown": [1]},
        {"tags": ["v1", "latest"], "lane": None, "entries": [], "model": None},
        {"tags": []},
        {"tags": "latest"},
        {"namespace": "Not One"},
        {"namespace": None},
        {"namespace": ["team"]},
        {"name": 7},
        {"lane": ""},
        {"lane": "pr 1"},
        {"model": "sha256:zz"},
        {"entries": ["x"] * 300},
        {"fingerprint": None},
        {"fingerprint": []},
        {"fingerprint": {}},
        {"fingerprint": {**FINGERPRINT, "threads": 2, "half": True}},
        {"fingerprint": {**FINGERPRINT, "nested": {"a": 1}}},
        {"fingerprint": {**FINGERPRINT, "float": 1.5}},
        {"fingerprint": {**FINGERPRINT, "none": None}},
        {"fingerprint": {**FINGERPRINT, "mixed": ["a", 1]}},
    ],
    ids=lambda change: ",".join(change) or "nothing",
)
def test_both_readers_read_a_question_alike(api: Api, key: SigningKey, change: dict[str, Any]) -> None:
    """The clients' own content type is read without FastAPI, and any other JSON type is read by FastAPI."""
    ok(
        api.publish(
            make(key, name="readers", target=f"t-{secrets.token_hex(4)}", content=secrets.token_bytes(9))
        )
    )
    body = json.dumps({"namespace": "team", "name": "readers", "fingerprint": FINGERPRINT, **change})
    ours, fastapis = (
        api.http.post("/v1/resolve", content=body, headers={"Content-Type": kind})
        for kind in ("application/json", "application/json; charset=utf-8")
    )
    assert (ours.status_code, ours.json()) == (fastapis.status_code, fastapis.json())
    for text in (body[:-1], "", "[]", '{"namespace":"team","namespace":"other"}', "NaN"):
        for kind in ("application/json", "application/json; charset=utf-8"):
            answer = api.http.post("/v1/resolve", content=text, headers={"Content-Type": kind})
            refused(answer, 422, "invalid")
