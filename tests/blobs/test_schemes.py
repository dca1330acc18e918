"""Test which store a URL opens, and what is refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.schemes import open_by_url
from cachesvc.bootstrap import open_store
from cachesvc.settings import read_settings
from cachesvc_client.wire.errors import InvalidRequest


def test_a_folder_is_opened_by_its_url(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, 100%"
    store = open_by_url(folder.as_uri())
    assert isinstance(store, LocalBlobStore)
    store.put("key", [b"x"])
    assert (folder / "objects" / "key").read_bytes() == b"x"


def test_a_scheme_that_is_not_installed_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no store for ftp:// is installed") as error:
        open_by_url("ftp://host/folder")
    assert "there are file, oci, s3" in str(error.value.hint)
    settings = read_settings(None, data=tmp_path, packs_url="ftp://host/folder")
    with pytest.raises(InvalidRequest, match="ftp"), open_store(settings):
        pass


def install(place: Path, package: str, scheme: str, text: str) -> None:
    (place / f"{package}.py").write_text(text)
    info = place / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[cachesvc.blobs]\n{scheme} = {package}:open_url\n")


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "broken_store", "broken", "raise OSError('two\\nlines')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(InvalidRequest, match=r"broken:// cannot be opened: OSError: two\?lines"):
        open_by_url("broken://host")


def test_a_store_may_not_replace_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "second_s3", "s3", "raise SystemExit")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(InvalidRequest, match="have a store for s3://"):
        open_by_url("s3://bucket")


@pytest.mark.parametrize("url", ["sftp://user:password@host/x", "no url", "://x", "sftp://u:p@h@i"])
def test_a_url_with_a_password_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="packs_url"):
        read_settings(None, data=tmp_path, packs_url=url)


def test_only_one_place_of_packs_is_named(tmp_path: Path) -> None:
    assert read_settings(None, data=tmp_path, packs_url="sftp://user@host/x").packs_elsewhere
    with pytest.raises(InvalidRequest, match="bucket, packs_url"):
        read_settings(None, data=tmp_path, packs_url="sftp://host/x", bucket="packs")
