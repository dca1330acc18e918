"""Whoever writes a manifest or a name leads no file out of its folder, and takes no other place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packing import KEY as PACK_KEY
from packing import make_pack, sign_value
from registry_making import make

from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.store import BlobStore
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds import RULES
from cachesvc_client.node.install import install
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, Corrupt
from cachesvc_client.wire.names import Lane, Name, Namespace, ShortName, Tag

KEY = SigningKey.generate()
AUTORUN = (
    "sitecustomize.py",
    "usercustomize.py",
    "conftest.py",
    "evil.pth",
    "__init__.py",
    "aa/__init__.py",
    "torch.py",
    "torch/__init__.py",
    "numpy.so",
    "aa/caaaaaaaaaaaaaaaaaaaaaaaa.py",
    "__pycache__/torch.cpython-311.pyc",
    "aa/caaaaaaaaaaaaaaaaaaaaaaaa.so",
    "setup.cfg",
    "pyvenv.cfg",
    "lib/libtorch.so.1",
    "cachesvc/0123456789abcdef/libc.so.6",
    "Makefile",
    "build.ninja",
)
"""Paths that Python, a loader or a build tool runs by their names."""
OUTSIDE = (
    "../escape",
    "aa/../../escape",
    "/etc/cron.d/x",
    "aa//b",
    "./aa",
    "aa/.",
    "aa/./b",
    ".hidden",
    "aa/.git/hooks",
    "aa/b\0c",
    "aa\\..\\b",
    "C:escape",
    "aa/b\n",
    "aa/ b",
    "aa/\u2025/b",
    "\uff0e\uff0e/escape",
    "a\u0308/b",
    "~/x",
    "aa/b:stream",
    "-rf",
    "x" * 513,
    "",
    "/",
)
"""Paths that lead elsewhere, or that another system reads as another path."""


def manifest_with(path: str, kind: str = "inductor") -> bytes:
    """Sign a manifest whose one file has this path, as a hostile builder does."""
    value = codec.plain(make(KEY).manifest)
    value["files"][0]["path"], value["files"][0]["kind"] = path, kind
    return KEY.sign_bytes(json.dumps(value).encode(), "application/vnd.cachesvc.manifest.v1+json")


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_builder_s_path_leads_out_of_the_folder(path: str) -> None:
    with pytest.raises(Corrupt, match="path"):
        check_envelope(manifest_with(path), trusted=[KEY.public], expected=None, now=0.0)


@pytest.mark.parametrize("kind", ["../inductor", "Inductor", "", "inductor/..", "inductor\n", "i" * 33])
def test_a_builder_s_kind_leads_to_another_folder(kind: str) -> None:
    with pytest.raises(Corrupt, match="kind"):
        check_envelope(manifest_with("aa/b", kind), trusted=[KEY.public], expected=None, now=0.0)


@pytest.mark.parametrize("kind", sorted(RULES))
def test_a_builder_s_file_runs_by_its_name(kind: str, tmp_path: Path) -> None:
    """Each kind takes its own files alone: none that an interpreter, a loader or a build tool looks for."""
    for number, path in enumerate(AUTORUN):
        folder = tmp_path / str(number)
        folder.mkdir()
        packed = make_pack(folder, [SourceFile(kind, path, b"hostile")])
        with PackReader(*packed) as reader, pytest.raises(Corrupt, match="no file that this kind has"):
            install(reader, RULES, {kind: folder / "root"})
        assert not (folder / "root").exists() or not any((folder / "root").rglob("*"))


def test_a_builder_s_two_files_have_one_place() -> None:
    """Two files of one path, and a file that is another's folder: the order of reading would decide."""
    value = codec.plain(make(KEY).manifest)
    [file] = value["files"]
    for paths, words in (
        (("aa/b", "aa/b"), "two files are"),
        (("aa", "aa/b"), "both a file and a folder"),
        (("aa/b", "aa/b.c", "aa/b/c"), "both a file and a folder"),
    ):
        files = [{**file, "path": path} for path in paths]
        envelope = KEY.sign_bytes(
            json.dumps({**value, "files": files}).encode(), "application/vnd.cachesvc.manifest.v1+json"
        )
        with pytest.raises(Corrupt, match=words):
            check_envelope(envelope, trusted=[KEY.public], expected=None, now=0.0)


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o777, 0o666, 0o1644, 0o100644, -1, 1 << 40])
def test_a_builder_s_file_has_rights_that_others_use(mode: int) -> None:
    value = codec.plain(make(KEY).manifest)
    value["files"][0]["mode"] = mode
    envelope = KEY.sign_bytes(json.dumps(value).encode(), "application/vnd.cachesvc.manifest.v1+json")
    with pytest.raises(Corrupt, match="mode"):
        check_envelope(envelope, trusted=[KEY.public], expected=None, now=0.0)


def test_a_builder_s_group_file_names_a_file_outside_of_the_kind() -> None:
    """Triton opens what a group file names: after the install it names files of this kind, below the root."""
    rule = RULES["triton"].rule("A" * 32 + "/__grp__k.json")
    assert rule is not None and rule.local is not None
    for path in (
        "/etc/passwd",
        "{cachesvc:triton}/../../etc/passwd",
        "{cachesvc:triton}//etc/passwd",
        "{cachesvc:triton}/" + "A" * 32 + "/../x.cubin",
        "{cachesvc:triton}",
        "{cachesvc:triton}x/" + "A" * 32 + "/k.cubin",
    ):
        with pytest.raises(ValueError, match="no file of this kind"):
            rule.local(json.dumps({"child_paths": {"k.cubin": path}}).encode(), Path("/root-of-triton"))


NAMES = (
    "team/bert\n",
    "team/bert\r\nX-Evil: 1",
    "team/b\u0435rt",  # the Cyrillic letter
    "te\u200bam/bert",
    "\uff54eam/bert",
    "Team/bert",
    "team/../other",
    "team/bert/../../x",
    "team//bert",
    "team/bert:../x",
    "team/bert:a\0b",
    "team/bert:a%2fb",
    "team/%2e%2e",
    "team/bert:",
    "*/bert",
    "team/bert;drop",
    "team/\x1b[2Jbert",
)


@pytest.mark.parametrize("text", NAMES)
def test_a_name_that_looks_like_another_or_splits_a_line_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        Name.parse(text)


@pytest.mark.parametrize("kind", [Namespace, ShortName, Lane, Tag])
def test_a_name_has_one_spelling(kind: Callable[[str], str]) -> None:
    """No letter outside of ASCII, no line end, no case that a file system or a database folds."""
    for text in ("a\n", "\na", "\u0430", "\u212a", "a\u0301", "\ufb01", "a\0", "..", ".", "-a", "a/../b"):
        with pytest.raises(ValueError, match="not a"):
            kind(text)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    (tmp_path / "secret").write_bytes(b"secret")
    return LocalBlobStore(tmp_path / "data")


KEYS = (
    "../secret",
    "packs/../../secret",
    "%2e%2e/secret",
    "/etc/passwd",
    "packs//x",
    "",
    ".",
    "packs/.x",
    "A",
)


@pytest.mark.parametrize("key", [*KEYS, "packs/x\0", "packs\\x", "a" * 5000, "packs/\u2025/x"])
def test_a_key_of_an_object_leads_out_of_the_store(store: BlobStore, tmp_path: Path, key: str) -> None:
    for act in (
        lambda: b"".join(store.open(key)),
        lambda: store.put(key, [b"x"]),
        lambda: store.size(key),
        lambda: store.delete(key),
    ):
        with pytest.raises((ValueError, CacheSvcError)):
            act()
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_signed_manifest_of_a_thousand_sparse_files_is_no_bomb(tmp_path: Path) -> None:
    """65,536 files of one content: their sum is bounded by the pack's size, before anything is written."""
    _, manifest = make_pack(tmp_path, [SourceFile("inductor", "aa/big", bytes(4 << 20))])
    [file] = manifest.files
    files = tuple(replace(file, path=f"aa/f{number}") for number in range(2000))
    value = codec.plain(replace(manifest, files=files))
    with pytest.raises(Corrupt, match="bytes in all files, more than"):
        check_envelope(sign_value(value), trusted=[PACK_KEY.public], expected=None, now=0.0)
