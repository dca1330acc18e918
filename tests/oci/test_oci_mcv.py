"""Test images of MCV: what is written has MCV's paths and labels, and becomes a bundle again under the
user's key."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from cachesvc.cli.oci.mcv import ImportOptions, import_mcv
from cachesvc.cli.oci.transfer import SendOptions, send
from cachesvc.oci.image_layout import layout_target, open_layout
from cachesvc.oci.mcv import TRITON, format_of
from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Incompatible, InvalidRequest
from cachesvc_client.wire.names import Name, Target

from .bundles import FACTS, KERNEL, config, make_bundle, metadata, triton_files, verified


def export(path: Path, bundle: Path, key: SigningKey, **options: object) -> None:
    with layout_target(path) as target:
        chosen = SendOptions("mcv", **options)  # type: ignore[arg-type]
        send(config(path.parent, key), str(bundle), target, "v1", "", chosen)


def image_of(layout: Path) -> tuple[dict[str, str], dict[str, bytes], list[tarfile.TarInfo]]:
    """Return the labels, the files and the entries of an exported image."""
    source = open_layout(layout)
    document = source.document("v1")
    assert document.config is not None
    labels = json.loads(b"".join(source.chunks(document.config)))["config"]["Labels"]
    layer = gzip.decompress(b"".join(source.chunks(document.entries[0])))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        entries = tar.getmembers()
        return labels, {info.name: tar.extractfile(info).read() for info in entries}, entries  # type: ignore


def options(key: SigningKey, **facts: object) -> ImportOptions:
    return ImportOptions(key, Name.parse("team/imported"), Target("t/mcv"), {**FACTS, **facts})  # type: ignore


def test_an_image_has_the_paths_and_labels_of_mcv(tmp_path: Path, key: SigningKey) -> None:
    files = [*triton_files(), SourceFile("inductor", "ab/cab.best_config", b"{}")]
    export(tmp_path / "layout", make_bundle(tmp_path, key, files=files), key)
    labels, content, entries = image_of(tmp_path / "layout")
    names = [f"io.triton.cache/{KERNEL}/{name}" for name in ("__grp__add.json", "add.cubin", "add.json")]
    assert list(content) == [*names, "io.triton.manifest/manifest.json"]
    assert all(entry.isreg() and not entry.name.startswith("./") for entry in entries)
    size = sum(len(data) for name, data in content.items() if name.startswith("io.triton.cache/"))
    assert labels == {
        "cache.triton.image/entry-count": "1",
        "cache.triton.image/summary": '{"targets":[{"arch":"90","backend":"cuda","warp_size":32}]}',
        "cache.triton.image/cache-size-bytes": str(size),
    }
    row = {"hash": "ab" * 32, "backend": "cuda", "arch": "90", "warp_size": 32, "num_warps": 4}
    assert json.loads(content["io.triton.manifest/manifest.json"]) == {"triton": [row]}
    group = json.loads(content[names[0]])
    assert group == {"child_paths": {"add.json": f"/root/.triton/cache/{KERNEL}/add.json"}}


def test_kserve_learns_where_the_files_are_mounted(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    export(tmp_path / "layout", bundle, key, kserve=True, folder="/home/kserve/triton")
    labels, content, _ = image_of(tmp_path / "layout")
    assert {name: text for name, text in labels.items() if name.startswith("io.kserve.km/")} == {
        "io.kserve.km/framework": "triton",
        "io.kserve.km/cache-type": "triton",
        "io.kserve.km/cache-hash": "ab" * 32,
        "io.kserve.km/cache-mount-subpath": ".",
        "io.kserve.km/cache-root-env": "TRITON_CACHE_DIR=/home/kserve/triton",
    }
    group = json.loads(content[f"io.triton.cache/{KERNEL}/__grp__add.json"])
    assert group["child_paths"]["add.json"].startswith("/home/kserve/triton/")
    many = [{"hash": f"{number:064x}"} for number in range(100)]
    assert "io.kserve.km/cache-hash" not in TRITON.kserve_labels(many, "/x"), (
        "a label has 4096 letters at most"
    )


def test_an_image_is_the_same_each_time(tmp_path: Path, bundle: Path, key: SigningKey) -> None:
    for name in ("one", "two"):
        export(tmp_path / name, bundle, key)
    digests = [open_layout(tmp_path / name).document("v1").descriptor.digest for name in ("one", "two")]
    assert digests[0] == digests[1]


def test_an_image_becomes_a_bundle_of_the_user_with_the_same_files(
    tmp_path: Path, bundle: Path, key: SigningKey
) -> None:
    export(tmp_path / "layout", bundle, key)
    source, mine = open_layout(tmp_path / "layout"), SigningKey.generate()
    row = import_mcv(source, source.document("v1"), tmp_path / "into", options(mine), "layout")
    manifest = verified(row.path, mine)[0].manifest
    assert (row.files, row.left_out, row.signer) == (3, 0, mine.public)
    assert (
        str(manifest.statement.full_name) == "team/imported:latest" and manifest.statement.target == "t/mcv"
    )
    assert manifest.scopes == ("gpu",) and manifest.fingerprint["compute_capability"] == "9.0"
    assert "nobody known here had signed" in manifest.provenance["imported"]
    assert contents(row.path, mine) == contents(bundle, key)


def contents(path: Path, key: SigningKey) -> dict[str, bytes]:
    checked, offset = verified(path, key)
    with PackReader(path, checked.manifest, offset) as reader:
        return {file.path: reader.read(file) for file in checked.manifest.files}


def test_host_code_is_said_and_what_no_kind_knows_is_left_out(tmp_path: Path, key: SigningKey) -> None:
    more = [SourceFile("triton", f"{KERNEL}/__triton_launcher.so", b"elf")]
    export(tmp_path / "layout", make_bundle(tmp_path, key, files=[*triton_files(), *more]), key)
    source = open_layout(tmp_path / "layout")
    row = import_mcv(source, source.document("v1"), tmp_path / "one.cachesvc", options(key), "layout")
    assert row.path == tmp_path / "one.cachesvc"
    assert verified(row.path, key)[0].manifest.scopes == ("gpu", "host")


def test_the_environment_must_have_the_gpu_of_the_kernels(
    tmp_path: Path, bundle: Path, key: SigningKey
) -> None:
    export(tmp_path / "layout", bundle, key)
    source = open_layout(tmp_path / "layout")
    for facts, error, words in (
        ({"compute_capability": "8.0"}, Incompatible, "cuda 90, and the environment's GPU is 8.0"),
        ({"compute_capability": ""}, InvalidRequest, "has no GPU"),
    ):
        with pytest.raises(error, match=words):
            import_mcv(source, source.document("v1"), tmp_path / "into", options(key, **facts), "layout")
    assert not list(tmp_path.glob("into/*"))


def test_what_an_image_cannot_hold_is_said(tmp_path: Path, key: SigningKey) -> None:
    host = make_bundle(tmp_path, key, files=[SourceFile("inductor", "ab/cab.best_config", b"{}")])
    with pytest.raises(InvalidRequest, match="files of inductor, and an image of MCV holds Triton's kernels"):
        export(tmp_path / "a", host, key)
    bare = make_bundle(tmp_path, key, files=[SourceFile("triton", f"{KERNEL}/a.cubin", b"x")])
    with pytest.raises(InvalidRequest, match="describe no kernel"):
        export(tmp_path / "b", bare, key)
    with pytest.raises(InvalidRequest, match="not absolute"):
        export(tmp_path / "c", make_bundle(tmp_path, key), key, folder="relative")
    folder = tmp_path / "two"
    folder.mkdir()
    for _ in range(2):
        make_bundle(folder, key)
    with pytest.raises(InvalidRequest, match="2 bundles, and an image of MCV is one"):
        export(tmp_path / "d", folder, key)


def test_an_image_of_another_cache_or_of_none_is_named() -> None:
    with pytest.raises(InvalidRequest, match="a cache of vllm"):
        format_of({"cache.vllm.image/summary": "{}"}, "image")
    with pytest.raises(InvalidRequest, match="no image of MCV"):
        format_of({"maintainer": "x"}, "image")


def test_metadata_that_describe_no_kernel_are_skipped() -> None:
    rows = [
        (f"{KERNEL}/a.json", metadata(80)),
        (f"{KERNEL}/a.autotune.json", b"{"),
        (f"{KERNEL}/b.json", b"{}"),
    ]
    assert [row["arch"] for row in TRITON.records(rows)] == ["80"]
