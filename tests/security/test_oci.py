"""Attacks by whoever writes into an OCI registry, an image layout or an image of MCV."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cachesvc.cli.oci.mcv import ImportOptions, import_mcv
from cachesvc.cli.oci.transfer import ReceivedBundle, SendOptions, receive, send
from cachesvc.oci.descriptors import BUNDLE, DSSE, ENVELOPE, OCI_INDEX, Descriptor, index, manifest
from cachesvc.oci.distribution import Repository
from cachesvc.oci.image_layout import FolderFiles, ImageLayout, layout_target, open_layout
from cachesvc.oci.mcv import CONFIG, OCI_LAYER
from cachesvc.oci.mcv_read import read_mcv
from cachesvc.oci.places import Blob
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, ProtocolMismatch, Untrusted
from cachesvc_client.wire.names import Name, Target
from tests.oci.bundles import FACTS, KERNEL, config, make_bundle, metadata
from tests.oci.lying_registry import LyingRegistry, answer, lying_registry


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LyingRegistry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with lying_registry() as registry:
        yield registry


def push(registry: LyingRegistry, bundle: Path, key: SigningKey, tag: str = "v1") -> None:
    repository = Repository.of(registry.reference())
    send(config(bundle.parent, key), str(bundle), repository, tag, "team/bert", SendOptions())


def pull(
    registry: LyingRegistry, folder: Path, key: SigningKey, name: str = "v1", expected: str | None = None
) -> list[ReceivedBundle]:
    wanted = Name.parse(expected) if expected else None
    repository = Repository.of(registry.reference())
    return receive(config(folder, key), repository, name, folder / "into", wanted, "image")


def nothing_in(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir())


def test_a_registry_answers_with_other_bytes_than_the_digest(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    bundle = make_bundle(tmp_path, key)
    push(liar, bundle, key)
    good = {**liar.blobs}
    for digest, data in good.items():
        if len(data) > 2:
            liar.blobs[digest] = data[:-1] + bytes([data[-1] ^ 1])
            with pytest.raises(Corrupt, match="another digest"):
                pull(liar, tmp_path, key)
            assert nothing_in(tmp_path / "into")
            liar.blobs[digest] = data
    digest = next(name for name in liar.manifests if name != "v1" and ":" in name)
    media_type, data = liar.manifests[digest]
    liar.manifests[digest] = (media_type, data.replace(b'"pack"', b'"PACK"'))
    with pytest.raises(Corrupt, match="other bytes"):
        pull(liar, tmp_path, key, digest)
    liar.manifests[digest] = (media_type, data)
    assert pull(liar, tmp_path, key)


def test_a_manifest_is_swapped_after_its_tag_was_resolved(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    """The digest decides: what the tag names meanwhile is not read."""
    bundle, other = make_bundle(tmp_path, key), make_bundle(tmp_path, key, "team/bert:v2")
    push(liar, other, key, "other")
    push(liar, bundle, key)
    stolen = liar.manifests["other"]

    def swap(handler: BaseHTTPRequestHandler) -> bool:
        if "/blobs/" in handler.path:
            liar.manifests["v1"] = stolen
        return False

    liar.lies.append(swap)
    [row] = pull(liar, tmp_path, key)
    assert liar.manifests["v1"] == stolen and row.path.read_bytes() == bundle.read_bytes()
    digest = str(Digest.of(stolen[1]))
    liar.manifests[digest] = liar.manifests["v1"] = (stolen[0], stolen[1] + b" ")
    with pytest.raises(Corrupt, match="other bytes"):
        pull(liar, tmp_path, key, digest)


def test_a_pack_is_exchanged_under_a_manifest_that_was_signed(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    """Whoever may push writes a manifest with another pack, and refers the true envelope to it."""
    bundle, other = make_bundle(tmp_path, key), make_bundle(tmp_path, key)
    push(liar, bundle, key)
    push(liar, other, key, "other")
    mine, theirs = (json.loads(liar.manifests[tag][1]) for tag in ("v1", "other"))
    mine["layers"][0] = theirs["layers"][0]
    liar.manifests["v1"] = (liar.manifests["v1"][0], json.dumps(mine).encode())
    with pytest.raises(Untrusted, match="somebody put another manifest there"):
        pull(liar, tmp_path, key)
    assert nothing_in(tmp_path / "into")


def referrer(liar: LyingRegistry, envelope: bytes) -> None:
    """Attach an envelope to what the tag names, as anybody may who pushes."""
    repository = Repository.of(liar.reference())
    row = Descriptor(DSSE, Digest.of(envelope), len(envelope))
    repository.put_blob(Blob.of(row, envelope))
    subject = repository.document("v1").descriptor
    repository.put_document(manifest([row], artifact_type=ENVELOPE, subject=subject))


def test_a_referrer_of_a_strangers_key_counts_nothing(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    stranger = SigningKey.generate()
    theirs = make_bundle(tmp_path, stranger)
    push(liar, theirs, stranger)
    with pytest.raises(Untrusted, match="not trusted"):
        pull(liar, tmp_path, key)
    payload = json.loads(open_bundle(theirs)[0])
    for forged in (
        {**payload, "signatures": [{**payload["signatures"][0], "keyid": key.public.keyid}]},
        {**payload, "signatures": []},
    ):
        referrer(liar, json.dumps(forged).encode())
    for _ in range(20):
        referrer(liar, os.urandom(200))
    with pytest.raises(Untrusted):
        pull(liar, tmp_path, key)
    fetched = [path for path in liar.asked("GET") if "/blobs/" in path]
    assert len(fetched) < 20, "no more than a few envelopes of strangers are read"
    assert nothing_in(tmp_path / "into")


def test_referrers_of_strangers_hide_no_true_one(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    bundle = make_bundle(tmp_path, key)
    push(liar, bundle, key)
    for _ in range(16):
        referrer(liar, os.urandom(200))
    [row] = pull(liar, tmp_path, key)
    assert row.path.read_bytes() == bundle.read_bytes()


def test_a_bundle_is_served_under_the_name_of_another(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    push(liar, make_bundle(tmp_path, key, "team/gpt:v1"), key)
    with pytest.raises(Untrusted, match="wanted: team/bert"):
        pull(liar, tmp_path, key, expected="team/bert:v1")
    push(liar, make_bundle(tmp_path, key, "team/bert:v1", lane="pr-1"), key)
    with pytest.raises(Untrusted, match="lane pr-1"):
        pull(liar, tmp_path, key)
    assert nothing_in(tmp_path / "into")


def test_an_older_bundle_is_put_back_under_a_tag(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    old = make_bundle(tmp_path, key)
    new = make_bundle(tmp_path, key)
    push(liar, old, key)
    older = liar.manifests["v1"]
    push(liar, new, key)
    pull(liar, tmp_path, key)
    liar.manifests["v1"] = older
    with pytest.raises(Untrusted, match="is older than"):
        pull(liar, tmp_path, key)


def test_a_list_names_an_image_among_bundles(liar: LyingRegistry, tmp_path: Path, key: SigningKey) -> None:
    push(liar, make_bundle(tmp_path, key), key)
    good = Repository.of(liar.reference()).document("v1").descriptor
    image = manifest([Descriptor(OCI_LAYER, Digest.of(b"x"), 1)]).descriptor
    rows = index([good, image]).data
    liar.manifests["v1"] = (OCI_INDEX, rows)
    with pytest.raises(InvalidRequest, match="one for each platform"):
        pull(liar, tmp_path, key)
    claims = Descriptor(image.media_type, image.digest, image.size, BUNDLE)
    data = manifest([Descriptor(OCI_LAYER, Digest.of(b"x"), 1)]).data
    liar.manifests[str(image.digest)] = (image.media_type, data)
    liar.manifests["v1"] = (OCI_INDEX, index([good, claims]).data)
    with pytest.raises(InvalidRequest, match="is no bundle"):
        pull(liar, tmp_path, key)


def test_a_registry_sends_a_client_with_credentials_to_the_metadata_service(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    push(liar, make_bundle(tmp_path, key), key)
    for place in ("http://169.254.169.254/latest/meta-data", "http://10.0.0.1/x", "file:///etc/passwd"):
        liar.lies[:] = [
            lambda handler, place=place: "/blobs/" in handler.path and answer(handler, 307, Location=place)
        ]
        with pytest.raises((Untrusted, ProtocolMismatch)):
            pull(liar, tmp_path, key)
    assert nothing_in(tmp_path / "into")


def test_a_manifest_of_a_bundle_leads_nowhere_else(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    """Foreign addresses, content in descriptors, a platform, another type: what was signed decides."""
    bundle = make_bundle(tmp_path, key)
    push(liar, bundle, key)
    media_type, data = liar.manifests["v1"]
    value = json.loads(data)
    for layer in value["layers"]:
        layer |= {"urls": [f"http://{liar.address}/stolen"], "data": "aG9zdGlsZQ==", "platform": {"os": "x"}}
    value["config"] |= {"urls": [f"http://{liar.address}/stolen"], "data": "aG9zdGlsZQ=="}
    liar.manifests["v1"] = (media_type, json.dumps(value).encode())
    [row] = pull(liar, tmp_path, key)
    assert row.path.read_bytes() == bundle.read_bytes()
    assert not [path for _, path, _ in liar.requests if "stolen" in path]
    row.path.unlink()
    for place, change in (
        (0, {"mediaType": OCI_LAYER}),
        (0, {"mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"}),
        (0, {"digest": "sha512:" + "0" * 128}),
        (0, {"digest": "sha256:../../etc/passwd"}),
        (0, {"size": -1}),
        (0, {"size": 2**63}),
    ):
        hostile = json.loads(data)
        hostile["layers"][place] |= change
        liar.manifests["v1"] = (media_type, json.dumps(hostile).encode())
        with pytest.raises((Corrupt, InvalidRequest, Untrusted)):
            pull(liar, tmp_path, key)
        assert nothing_in(tmp_path / "into"), change


def test_a_list_of_bundles_names_a_list_or_manifests_that_fill_the_memory(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    push(liar, make_bundle(tmp_path, key), key)
    media_type, data = liar.manifests["v1"]
    rows = []
    for text in ("", "x" * (1 << 20)):
        value = json.loads(data) | {"annotations": {"filled": text}} if text else json.loads(data)
        more = json.dumps(value).encode()
        liar.manifests[str(Digest.of(more))] = (media_type, more)
        rows.append(Descriptor(media_type, Digest.of(more), len(more), BUNDLE))
    inner = index(rows[:1], artifact_type=BUNDLE)
    liar.manifests[str(inner.descriptor.digest)] = (OCI_INDEX, inner.data)
    nested = Descriptor(OCI_INDEX, inner.descriptor.digest, len(inner.data), BUNDLE)
    for entries, words in ((rows, "more than the 65536 allowed"), ([nested], "is no bundle")):
        liar.manifests["v1"] = (OCI_INDEX, index(entries, artifact_type=BUNDLE).data)
        with pytest.raises((Corrupt, InvalidRequest), match=words):
            pull(liar, tmp_path, key)
    assert nothing_in(tmp_path / "into")
    liar.requests.clear()
    liar.manifests["v1"] = (OCI_INDEX, index(rows[:1] * 256, artifact_type=BUNDLE).data)
    assert len(pull(liar, tmp_path, key)) == 1, "one bundle, which stands there 256 times"
    assert sum("/blobs/" in path for path in liar.asked("GET")) == 2, "its envelope and its pack"


class CountingFiles(FolderFiles):
    """Counts how often a layout is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opened: list[str] = []

    def open(self, name: str) -> tuple[int, Iterator[bytes]]:
        self.opened.append(name)
        return super().open(name)


def test_a_layout_that_names_one_manifest_a_thousand_times_is_read_once(
    tmp_path: Path, key: SigningKey
) -> None:
    """Else a file of some megabytes holds an import for hours: each bundle asks what refers to it."""
    folder, bundle = tmp_path / "layout", make_bundle(tmp_path, key)
    with layout_target(folder) as target:
        send(config(tmp_path, key), str(bundle), target, "v1", "team/bert", SendOptions())
        large = manifest([], artifact_type=ENVELOPE, annotations={"filled": "x" * (1 << 20)})
        target.put_document(large, "filled")
    listed = json.loads((folder / "index.json").read_text())
    row = next(one for one in listed["manifests"] if one["digest"] == str(large.descriptor.digest))
    listed["manifests"] += [row] * (1024 - len(listed["manifests"]))
    (folder / "index.json").write_text(json.dumps(listed))
    files = CountingFiles(folder)
    stranger = config(tmp_path, SigningKey.generate())
    with pytest.raises(Untrusted):
        receive(stranger, ImageLayout(files), "v1", tmp_path / "into", None, "image")
    assert sum(name.endswith(large.descriptor.digest.hex) for name in files.opened) == 1


Entry = tuple[tarfile.TarInfo, bytes]
GROUP = f"io.triton.cache/{KERNEL}/__grp__add.json"
GOOD = f"io.triton.cache/{KERNEL}/add.json"


def file(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), "/etc/passwd" if kind != tarfile.REGTYPE else ""
    return info, data


def layer_of(entries: list[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in entries:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def image(
    folder: Path,
    entries: list[Entry],
    *,
    layer: bytes | None = None,
    media_type: str = OCI_LAYER,
    **labels: str,
) -> Path:
    """Write the layout of an image of MCV with these entries, and with labels that are right for them unless
    others are given (``None`` leaves one out)."""
    packed = layer if layer is not None else gzip.compress(layer_of(entries), mtime=0)
    size = sum(len(data) for info, data in entries if info.isreg() and "io.triton.cache/" in info.name)
    right = {
        "cache-size-bytes": str(size),
        "entry-count": "1",
        "summary": '{"targets":[{"backend":"cuda","arch":"90","warp_size":32}]}',
        **{name.replace("_", "-"): text for name, text in labels.items()},
    }
    value = {"config": {"Labels": {f"cache.triton.image/{name}": text for name, text in right.items()}}}
    data = json.dumps(value).encode()
    described = Descriptor(CONFIG, Digest.of(data), len(data))
    row = Descriptor(media_type, Digest(f"sha256:{hashlib.sha256(packed).hexdigest()}"), len(packed))
    path = folder / f"image-{os.urandom(4).hex()}"
    with layout_target(path) as target:
        target.put_blob(Blob.of(described, data))
        target.put_blob(Blob.of(row, packed))
        target.put_document(manifest([row], config=described), "v1")
    return path


def load(path: Path, folder: Path, key: SigningKey) -> Path:
    source = open_layout(path)
    options = ImportOptions(key, Name.parse("team/bert"), Target("t/mcv"), dict(FACTS))
    return import_mcv(source, source.document("v1"), folder / "into", options, "image").path


def kernel() -> Entry:
    return file(GOOD, metadata())


BAD_ENTRIES: dict[str, tuple[str, list[Entry]]] = {
    "a path with ..": ("leads out", [kernel(), file("io.triton.cache/../../etc/cron.d/x")]),
    "a path with .. at the end": ("leads out", [kernel(), file("io.triton.cache/a/..")]),
    "an absolute path": ("leads out", [kernel(), file("/etc/cron.d/x")]),
    "an absolute path of the cache": ("leads out", [kernel(), file("/io.triton.cache/a")]),
    "a path with a backslash": ("leads out", [kernel(), file("io.triton.cache/..\\x")]),
    "a path with a line end": ("leads out", [kernel(), file("io.triton.cache/a\nb")]),
    "an empty part": ("leads out", [kernel(), file("io.triton.cache//x")]),
    "a symbolic link": ("is a symbolic link", [kernel(), file("io.triton.cache/x", b"", tarfile.SYMTYPE)]),
    "a hard link": ("is a hard link", [kernel(), file("io.triton.cache/x", b"", tarfile.LNKTYPE)]),
    "a device": ("is a character device", [kernel(), file("io.triton.cache/x", b"", tarfile.CHRTYPE)]),
    "a block device": ("is a block device", [kernel(), file("io.triton.cache/x", b"", tarfile.BLKTYPE)]),
    "a named pipe": ("is a named pipe", [kernel(), file("io.triton.cache/x", b"", tarfile.FIFOTYPE)]),
    "a file twice": ("stands twice", [kernel(), kernel()]),
    "a file twice, spelled otherwise": ("stands twice", [kernel(), file(f"./{GOOD}", metadata())]),
    "another folder": ("lies outside of", [kernel(), file("usr/lib/x.so")]),
    "another cache": ("lies outside of", [kernel(), file("io.vllm.cache/x")]),
    "a folder with ..": ("leads out", [kernel(), file("io.triton.cache/../..", b"", tarfile.DIRTYPE)]),
    "a group file that names others": (
        "no file of this kind",
        [kernel(), file(GROUP, b'{"child_paths":{"a":"/etc/passwd"}}')],
    ),
    "a group file that is none": ("no group file", [kernel(), file(GROUP, b"[]")]),
    "metadata that are no JSON": ("not JSON", [kernel(), file(f"io.triton.cache/{KERNEL}/b.json", b"{")]),
    "metadata that are deep": (
        "not JSON",
        [kernel(), file(f"io.triton.cache/{KERNEL}/b.json", b"[" * 100_000)],
    ),
    "metadata of megabytes": (
        "bytes of metadata",
        [kernel(), file(f"io.triton.cache/{KERNEL}/b.json", b" " * (2 << 20))],
    ),
    "a list of megabytes": (
        "bytes of metadata",
        [kernel(), file("io.triton.manifest/manifest.json", b" " * (2 << 20))],
    ),
}


@pytest.mark.parametrize(("words", "entries"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_an_image_of_mcv_has_a_layer_that_leads_elsewhere(
    tmp_path: Path, key: SigningKey, words: str, entries: list[Entry]
) -> None:
    with pytest.raises(Corrupt, match=words) as error:
        load(image(tmp_path, entries), tmp_path, key)
    assert str(error.value).isprintable()
    assert nothing_in(tmp_path / "into")


def test_the_good_image_of_these_tests_is_accepted(tmp_path: Path, key: SigningKey) -> None:
    folder = file("io.triton.cache/", b"", tarfile.DIRTYPE)
    inner = file(f"./io.triton.cache/{KERNEL}/", b"", tarfile.DIRTYPE)
    unknown = file("io.triton.cache/.wh.x", b"whiteout")
    listing = file("io.triton.manifest/manifest.json", b"{}")
    group = {"child_paths": {"add.json": f"/anywhere/{KERNEL}/add.json"}}
    named = file(GROUP, json.dumps(group).encode())
    entries = [folder, inner, kernel(), unknown, named, listing]
    assert load(image(tmp_path, entries), tmp_path, key).is_file()
    two_members = gzip.compress(layer_of(entries)[:700]) + gzip.compress(layer_of(entries)[700:])
    assert load(image(tmp_path, entries, layer=two_members), tmp_path, key).is_file()


@pytest.mark.parametrize(
    "labels",
    [
        {"cache_size_bytes": "1"},
        {"cache_size_bytes": "999999"},
        {"cache_size_bytes": "-1"},
        {"cache_size_bytes": "9" * 30},
        {"cache_size_bytes": "1e3"},
        {"cache_size_bytes": ""},
        {"entry_count": "2"},
        {"entry_count": "0"},
        {"entry_count": "one"},
        {"summary": "{}"},
        {"summary": "["},
        {"summary": '{"targets":[{"backend":"cuda","arch":"80","warp_size":32}]}'},
    ],
    ids=str,
)
def test_an_image_of_mcv_is_not_what_its_labels_say(
    tmp_path: Path, key: SigningKey, labels: dict[str, str]
) -> None:
    with pytest.raises(Corrupt):
        load(image(tmp_path, [kernel()], **labels), tmp_path, key)
    assert nothing_in(tmp_path / "into")


def bomb(size: int) -> bytes:
    """Return gzip of a tar file with one file of zeros."""
    out, gz = io.BytesIO(), zlib.compressobj(9, zlib.DEFLATED, 31)
    info = tarfile.TarInfo("io.triton.cache/x")
    info.size = size
    out.write(gz.compress(info.tobuf()))
    for _ in range(size >> 20):
        out.write(gz.compress(bytes(1 << 20)))
    return out.getvalue() + gz.flush()


def test_an_image_of_mcv_is_a_bomb(tmp_path: Path, key: SigningKey) -> None:
    """600 MB of zeros in 600 kB: under true labels it is more than such a layer may have, and under false
    ones no more than these say is unpacked."""
    size = 600 << 20
    packed = bomb(size)
    assert len(packed) < 1 << 20
    with pytest.raises(Corrupt, match=r"in \d+ bytes of gzip, more than the"):
        load(image(tmp_path, [kernel()], layer=packed, cache_size_bytes=str(size)), tmp_path, key)
    with pytest.raises(Corrupt, match="more than the 1000 bytes"):
        load(image(tmp_path, [kernel()], layer=packed, cache_size_bytes="1000"), tmp_path, key)


@pytest.mark.parametrize("cut", [0, 5, 100, 1500])
def test_an_image_of_mcv_has_a_layer_that_ends_early(tmp_path: Path, key: SigningKey, cut: int) -> None:
    whole = gzip.compress(layer_of([kernel(), file("io.triton.cache/x", os.urandom(3000))]))
    entries = [kernel(), file("io.triton.cache/x", bytes(3000))]
    with pytest.raises(Corrupt):
        load(image(tmp_path, entries, layer=whole[:cut]), tmp_path, key)
    with pytest.raises(Corrupt, match="not gzip"):
        load(image(tmp_path, entries, layer=b"no gzip at all"), tmp_path, key)


def test_an_image_of_mcv_has_more_files_than_any_bundle(
    tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachesvc.oci.mcv_read.MAX_FILES", 50)
    entries = [kernel(), *(file(f"io.triton.cache/f{number}", b"") for number in range(51))]
    with pytest.raises(Corrupt, match="more than the 50 files"):
        load(image(tmp_path, entries), tmp_path, key)
    folders = [kernel(), *(file(f"io.triton.cache/d{n}/", b"", tarfile.DIRTYPE) for n in range(101))]
    with pytest.raises(Corrupt, match="more than the 100 entries"):
        load(image(tmp_path, folders), tmp_path, key)


def test_an_image_of_another_kind_is_no_cache(tmp_path: Path) -> None:
    source = open_layout(
        image(tmp_path, [kernel()], media_type="application/vnd.oci.image.layer.v1.tar+zstd")
    )
    with pytest.raises(InvalidRequest, match="has one gzip layer"):
        read_mcv(source, source.document("v1"), tmp_path, "image")
