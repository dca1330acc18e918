"""Test image layouts on disk: bundles go out and come back, twice the same, and altered ones are refused."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from cachesvc.cli.oci.transfer import SendOptions, receive, send
from cachesvc.oci.image_layout import layout_target, open_layout
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, InvalidRequest, NotFound, Untrusted
from cachesvc_client.wire.names import Name

from .bundles import config, make_bundle


def export(path: Path, what: Path, key: SigningKey, tag: str = "v1", signing: Path | None = None) -> None:
    with layout_target(path) as target:
        send(config(path.parent, key, signing_key=signing), str(what), target, tag, "", SendOptions())


def files_of(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["layout", "layout.tar"])
def test_an_exported_bundle_comes_back_and_a_second_export_is_the_same(
    tmp_path: Path, bundle: Path, key: SigningKey, name: str
) -> None:
    key.save(tmp_path / "key")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        export(tmp_path / folder / name, bundle, key, signing=tmp_path / "key")
    assert files_of(tmp_path / "one" / name) == files_of(tmp_path / "two" / name)
    source = open_layout(tmp_path / "one" / name)
    [row] = receive(config(tmp_path, key), source, "v1", tmp_path / "into", None, "layout")
    assert row.path.read_bytes() == bundle.read_bytes() and row.moved == row.bytes
    [again] = receive(
        config(tmp_path, key), source, "", tmp_path / "into", Name.parse("team/bert:v1"), "layout"
    )
    assert again.moved == 0, "a file that is there is not written again"


def test_several_bundles_are_one_tag_and_two_tags_are_one_folder(tmp_path: Path, key: SigningKey) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    for target in ("bert/bf16", "bert/fp32"):
        make_bundle(folder, key, target=target)
    other = make_bundle(tmp_path, key, "team/other", "t5/default")
    export(tmp_path / "layout", folder, key, "all")
    export(tmp_path / "layout", other, key, "other")
    layout = open_layout(tmp_path / "layout")
    rows = receive(config(tmp_path, key), layout, "all", tmp_path / "into", None, "layout")
    assert {row.target for row in rows} == {"bert/bf16", "bert/fp32"}
    assert [
        row.target for row in receive(config(tmp_path, key), layout, "other", tmp_path / "x", None, "l")
    ] == ["t5/default"]
    with pytest.raises(InvalidRequest, match=r"2 images.*all, other"):
        layout.document("")
    with pytest.raises(NotFound, match="it holds: all, other"):
        layout.document("third")
    with pytest.raises(InvalidRequest, match="2 bundles, and one file"):
        receive(config(tmp_path, key), layout, "all", tmp_path / "one.cachesvc", None, "layout")
    export(tmp_path / "layout", other, key, "all")
    assert len(open_layout(tmp_path / "layout").document("all").entries) == 2, "the tag moved to one bundle"


def blob_of(layout: Path, media_type: str) -> Path:
    """Return the file of the first layer with a media type."""
    document = open_layout(layout).document("v1")
    [digest] = [row.digest for row in document.entries if row.media_type == media_type]
    return layout / "blobs" / "sha256" / digest.hex


PACK, ENVELOPE = "application/vnd.cachesvc.pack.v1", "application/vnd.dsse.envelope.v1+json"


@pytest.mark.parametrize("media_type", [PACK, ENVELOPE])
@pytest.mark.parametrize("change", ["shorter", "longer", "other bytes", "gone", "a link"])
def test_an_altered_blob_is_refused_and_nothing_is_written(
    tmp_path: Path, bundle: Path, key: SigningKey, media_type: str, change: str
) -> None:
    export(tmp_path / "layout", bundle, key)
    path = blob_of(tmp_path / "layout", media_type)
    data = path.read_bytes()
    if change in ("gone", "a link"):
        path.unlink()
    if change == "a link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    changed = {"shorter": data[:-1], "longer": data + b"x", "other bytes": data[:-1] + b"?"}
    if change in changed:
        path.write_bytes(changed[change])
    with pytest.raises((Corrupt, NotFound)) as error:
        receive(config(tmp_path, key), open_layout(tmp_path / "layout"), "v1", tmp_path / "into", None, "l")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "into").exists() or not os.listdir(tmp_path / "into")


def test_a_manifest_with_other_bytes_is_refused(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    export(tmp_path / "layout", bundle, key)
    digest = open_layout(tmp_path / "layout").document("v1").descriptor.digest
    path = tmp_path / "layout" / "blobs" / "sha256" / digest.hex
    path.write_bytes(path.read_bytes().replace(b'"pack"', b'"PACK"'))
    with pytest.raises(Corrupt, match="another digest"):
        open_layout(tmp_path / "layout").document("v1")


def test_what_is_no_layout_is_refused(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no tar")
    for name, error in (("empty", NotFound), ("absent", NotFound), ("text", CacheSvcError)):
        with pytest.raises(error) as caught:
            open_layout(tmp_path / name)
        assert name in str(caught.value)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(InvalidRequest, match="other files"):
        export(tmp_path / "photos", bundle, key)
    export(tmp_path / "layout", bundle, key)
    (tmp_path / "layout" / "oci-layout").write_text('{"imageLayoutVersion":"2.0.0"}')
    with pytest.raises(InvalidRequest, match=r"1\.0\.0 is read"):
        open_layout(tmp_path / "layout")


def test_a_tar_file_with_two_lists_of_images_is_refused(
    tmp_path: Path, bundle: Path, key: SigningKey
) -> None:
    export(tmp_path / "layout.tar", bundle, key)
    with tarfile.open(tmp_path / "layout.tar", "a") as tar:
        info = tarfile.TarInfo("./index.json")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"{}"))
    with pytest.raises(Corrupt, match="stands twice"):
        open_layout(tmp_path / "layout.tar")


def test_a_large_bundle_needs_little_memory(tmp_path: Path, key: SigningKey) -> None:
    (tmp_path / "large").write_bytes(os.urandom(48 << 20))
    files = [SourceFile("triton", f"{'C' * 52}/a.cubin", tmp_path / "large")]
    large = make_bundle(tmp_path, key, files=files, quick=True)
    export(tmp_path / "warm-up", large, key)  # imports what the flow needs
    tracemalloc.start()
    try:
        export(tmp_path / "layout.tar", large, key)
        receive(
            config(tmp_path, key), open_layout(tmp_path / "layout.tar"), "v1", tmp_path / "into", None, "l"
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20, f"{peak >> 20} MiB for a pack of 48 MiB"


def test_a_failed_export_leaves_the_older_file(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    (tmp_path / "layout.tar").write_bytes(b"older")
    damaged = tmp_path / "damaged.cachesvc"
    damaged.write_bytes(bundle.read_bytes()[:-1] + b"?")
    with pytest.raises(Corrupt, match="pack: digest"):
        export(tmp_path / "layout.tar", damaged, key)
    assert (tmp_path / "layout.tar").read_bytes() == b"older"


def test_only_what_is_trusted_goes_out_and_comes_in(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    stranger = SigningKey.generate()
    with pytest.raises(Untrusted, match="not trusted"):
        export(tmp_path / "layout", bundle, stranger)
    export(tmp_path / "layout", bundle, key)
    with pytest.raises(Untrusted, match="not trusted"):
        receive(config(tmp_path, stranger), open_layout(tmp_path / "layout"), "v1", tmp_path / "i", None, "l")
    with pytest.raises(Untrusted, match="wanted: team/other"):
        source = open_layout(tmp_path / "layout")
        receive(config(tmp_path, key), source, "v1", tmp_path / "i", Name.parse("team/other"), "l")
    assert not (tmp_path / "i").exists()


def test_a_name_of_a_registry_needs_one(tmp_path: Path, key: SigningKey) -> None:
    with pytest.raises(InvalidRequest, match="no registry is configured"):
        export(tmp_path / "layout", Path("team/bert"), key)
    with pytest.raises(NotFound, match=r"no bundle file \(\*\.cachesvc\) there"):
        export(tmp_path / "layout", tmp_path, key)


def test_a_list_of_platforms_is_no_bundle(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    export(tmp_path / "layout", bundle, key)
    path = tmp_path / "layout" / "index.json"
    rows = json.loads(path.read_text())
    for row in rows["manifests"]:
        row.pop("artifactType", None)
        row["platform"] = {"architecture": "amd64", "os": "linux"}
    data = json.dumps(rows).encode()
    digest = Digest.of(data)
    (tmp_path / "layout" / "blobs" / "sha256" / digest.hex).write_bytes(data)
    named = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": len(data)}
    named["annotations"] = {"org.opencontainers.image.ref.name": "platforms"}
    path.write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    with pytest.raises(InvalidRequest, match=r"one for each platform.*by its digest"):
        receive(
            config(tmp_path, key), open_layout(tmp_path / "layout"), "platforms", tmp_path / "i", None, "l"
        )
