"""Test references, descriptors and manifests: what is accepted, and what hostile ones come to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachesvc.oci.descriptors import (
    BUNDLE,
    DOCKER_LIST,
    EMPTY,
    MAX_ENTRIES,
    MAX_MANIFEST_BYTES,
    OCI_INDEX,
    OCI_MANIFEST,
    PACK,
    Descriptor,
    index,
    manifest,
    read_document,
)
from cachesvc.oci.places import checked
from cachesvc.oci.reference import Reference
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, TooLarge

DIGEST = Digest.of(b"x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5000/team/bert:v1", ("127.0.0.1:5000", "team/bert", "v1", None)),
        ("registry.example.com/bert", ("registry.example.com", "bert", "latest", None)),
        ("localhost/a/b__c:V.1", ("localhost", "a/b__c", "V.1", None)),
        ("[::1]:5000/a", ("[::1]:5000", "a", "latest", None)),
        (f"ghcr.io/a/b@{DIGEST}", ("ghcr.io", "a/b", "", DIGEST)),
        (f"ghcr.io/a/b:v1@{DIGEST}", ("ghcr.io", "a/b", "v1", DIGEST)),
    ],
)
def test_a_reference_is_parsed_and_written_again(text: str, expected: tuple[Any, ...]) -> None:
    reference = Reference.parse(text)
    assert (reference.host, reference.repository, reference.tag, reference.digest) == expected
    assert str(reference) == (text if ":" in text.rpartition("/")[2] else f"{text}:latest")


@pytest.mark.parametrize(
    "text",
    [
        *("bert", "team/bert", "example.com", "example.com/", "https://example.com/a", "example.com/A:v1"),
        *("example.com/a:" + "v" * 129, "example.com/a@sha256:abc", "example.com/a/../b", "example.com//a"),
        *("user@example.com/a", "example.com/a b", "example.com/a\n", "example.com/" + "a" * 256, ""),
    ],
)
def test_what_is_no_reference_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected host"):
        Reference.parse(text)


@pytest.mark.parametrize(
    ("text", "plain", "scheme"),
    [
        ("127.0.0.1:5000/a", False, "http"),
        ("localhost:5000/a", False, "http"),
        ("example.com/a", False, "https"),
        ("10.0.0.1:5000/a", False, "https"),
        ("10.0.0.1:5000/a", True, "http"),
    ],
)
def test_http_is_for_this_machine_unless_the_user_says_so(text: str, plain: bool, scheme: str) -> None:
    assert Reference.parse(text).origin(plain).scheme == scheme


def test_a_manifest_is_read_as_it_was_written() -> None:
    layer = Descriptor(PACK, DIGEST, 1, annotations={"a": "b"})
    document = manifest([layer], artifact_type=BUNDLE, subject=EMPTY, annotations={"c": "d"})
    assert document == manifest([layer], artifact_type=BUNDLE, subject=EMPTY, annotations={"c": "d"})
    assert (document.entries, document.artifact_type) == ((layer,), BUNDLE)
    assert document.subject == EMPTY
    assert document.descriptor.digest == Digest.of(document.data)
    rows = index([document.descriptor], artifact_type=BUNDLE)
    assert rows.is_index and rows.entries[0].digest == document.descriptor.digest


def changed(**fields: object) -> bytes:
    value = {**json.loads(manifest([EMPTY]).data), **fields}
    return json.dumps({name: item for name, item in value.items() if item is not None}).encode()


ROW = {"mediaType": "a/b", "digest": str(DIGEST), "size": 1}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", OCI_MANIFEST),
    "no object": (b"[]", OCI_MANIFEST),
    "deep": (b"[" * 100_000, OCI_MANIFEST),
    "a key twice": (b'{"schemaVersion":2,"schemaVersion":2}', OCI_MANIFEST),
    "schema 1": (changed(schemaVersion=1), OCI_MANIFEST),
    "announced as another": (changed(mediaType=OCI_INDEX), OCI_MANIFEST),
    "both kinds": (changed(manifests=[]), OCI_MANIFEST),
    "both kinds, as an index": (changed(mediaType=OCI_INDEX, manifests=[]), OCI_INDEX),
    "no layers": (changed(layers=None), OCI_MANIFEST),
    "too many": (changed(layers=[ROW] * (MAX_ENTRIES + 1)), OCI_MANIFEST),
    "no config": (changed(config=None), OCI_MANIFEST),
    "layer is text": (changed(layers=["x"]), OCI_MANIFEST),
    "negative size": (changed(layers=[{**ROW, "size": -1}]), OCI_MANIFEST),
    "size is true": (changed(layers=[{**ROW, "size": True}]), OCI_MANIFEST),
    "huge size": (changed(layers=[{**ROW, "size": 1 << 60}]), OCI_MANIFEST),
    "other hash": (changed(layers=[{**ROW, "digest": "sha512:" + "0" * 128}]), OCI_MANIFEST),
    "digest is a path": (changed(layers=[{**ROW, "digest": "sha256:../../etc"}]), OCI_MANIFEST),
    "media type splits": (changed(layers=[{**ROW, "mediaType": "a/b\r\nX: y"}]), OCI_MANIFEST),
    "annotations are a list": (changed(annotations=["a"]), OCI_MANIFEST),
    "annotation is a number": (changed(annotations={"a": 1}), OCI_MANIFEST),
    "subject is text": (changed(subject="x"), OCI_MANIFEST),
    "artifact type is a number": (changed(artifactType=1), OCI_MANIFEST),
}


@pytest.mark.parametrize(("data", "media_type"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_manifest_is_refused_in_one_line(data: bytes, media_type: str) -> None:
    with pytest.raises(Corrupt) as error:
        read_document(data, media_type, "example.com/a:v1")
    assert "\n" not in str(error.value) and "example.com/a:v1" in str(error.value)


def test_an_oversized_manifest_and_another_media_type_are_refused() -> None:
    with pytest.raises(TooLarge, match="more than the"):
        read_document(b" " * (MAX_MANIFEST_BYTES + 1), OCI_MANIFEST, "a")
    with pytest.raises(InvalidRequest, match="text/html"):
        read_document(b"<html>", "text/html", "a")
    assert read_document(
        changed(manifests=[], layers=None, config=None, mediaType=None), DOCKER_LIST, "a"
    ).is_index


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"ab", b"c"], "more than 2 bytes, its descriptor says 2"),
        ([b"abc"], "more than 2 bytes"),
        ([b"a"], "1 bytes, its descriptor says 2"),
        ([], "0 bytes"),
        ([b"a", b"c"], "another digest"),
    ],
)
def test_a_blob_is_its_bytes_and_no_others(chunks: list[bytes], words: str) -> None:
    described = Descriptor("a/b", Digest.of(b"ab"), 2)
    assert list(checked([b"a", b"b"], described, "here")) == [b"a", b"b"]
    with pytest.raises(Corrupt, match=words):
        list(checked(chunks, described, "here"))
