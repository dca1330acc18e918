"""Test that formats of version 1 stay readable for ever, as they were first written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from packing import FILES, KEY, make_pack

from cachesvc_client.bundle.check import ExpectedStatement, check_envelope, check_pack
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Namespace, ShortName

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def verified():
    envelope = (GOLDEN / "envelope-1.json").read_bytes()
    expected = ExpectedStatement(Namespace("team"), ShortName("bert"))
    return check_envelope(envelope, trusted=[KEY.public], expected=expected, now=1_700_000_000)


def test_envelope_and_manifest(verified):
    payload = (GOLDEN / "manifest-1.json").read_bytes()
    assert verified.revision == Digest.of(payload)
    assert verified.manifest.encode() == payload
    assert verified.signer == KEY.public
    assert KEY.sign(verified.manifest) == verified.envelope


PROOF = Proof(
    "2.16.0.dev20261101+cpu", ("torch._inductor.compile_fx.compile_fx", "torch.library.Library.impl")
)


def test_a_proof_is_read_and_older_manifests_have_none(verified):
    assert verified.manifest.proof is None
    payload = (GOLDEN / "manifest-proof-1.json").read_bytes()
    proven = replace(verified.manifest, proof=PROOF)
    assert codec.build(Manifest, codec.parse_json(payload, limit=1 << 20, what="manifest")) == proven
    assert proven.encode() == payload
    without = {name: value for name, value in json.loads(payload).items() if name != "proof"}
    assert codec.canonical(without) == verified.manifest.encode(), "an older client reads the same"


def test_ancestors_are_read_and_a_manifest_without_them_has_none(verified):
    assert verified.manifest.ancestors is None
    payload = (GOLDEN / "manifest-ancestors-1.json").read_bytes()
    ancestor = Ancestor(Digest.of(b"ancestor"), Namespace("team"), KEY.public)
    made_with = replace(verified.manifest, ancestors=(ancestor,))
    assert codec.build(Manifest, codec.parse_json(payload, limit=1 << 20, what="manifest")) == made_with
    assert made_with.encode() == payload


def test_pack_is_read(verified):
    check_pack(GOLDEN / "pack-1.bin", verified.manifest)
    with PackReader(GOLDEN / "pack-1.bin", verified.manifest) as reader:
        files = {(file.kind, file.path): (reader.read(file), file.mode) for file in verified.manifest.files}
    assert files == {(file.kind, file.path): (file.data, file.mode) for file in FILES}


def test_a_pack_is_written_with_the_same_bytes(verified, tmp_path):
    if (GOLDEN / "pack-1.libzstd").read_text() != ".".join(map(str, zstandard.ZSTD_VERSION)):
        pytest.skip("another libzstd compresses otherwise; reading is what has to hold")
    path, manifest = make_pack(tmp_path, expires=4_000_000_000)
    assert path.read_bytes() == (GOLDEN / "pack-1.bin").read_bytes()
    assert manifest == verified.manifest


def test_bundle_is_read(verified):
    envelope, offset = open_bundle(GOLDEN / "bundle-1.cachesvc")
    assert envelope == verified.envelope
    with PackReader(GOLDEN / "bundle-1.cachesvc", verified.manifest, offset) as reader:
        assert [reader.read(file) for file in verified.manifest.files if file.kind == "triton"]
