"""Whoever hands an operator the file of an export: nothing of it reaches the disk before its signature by a
trusted key is checked, and no more than was signed."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from registry_making import Publication, make

from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.codec import canonical

MOST = 1 << 20
"""Bytes of the largest file that the command can write here."""
KEY = SigningKey.generate()


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], namespace: str = "team") -> Path:
    """An export with these members. The second value is what stands in the archive."""
    first = canonical({"format": "cachesvc.export/1", "namespace": namespace, "made": 1})
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        head = tarfile.TarInfo("cachesvc-export.json")
        head.size = len(first)
        out.addfile(head, io.BytesIO(first))
        for member, data in members:
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


def member(data: bytes, **pax: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("000001-0123456789ab.cachesvc")
    info.pax_headers = pax
    return info, data


def import_(path: Path, tmp_path: Path) -> tuple[int, str]:
    """`cachesvc admin import --apply` of an operator who trusts ``KEY``: (exit status, stderr)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    done = subprocess.run(
        [sys.executable, "-m", "cachesvc", "admin", "import", str(path), "--apply"],
        env={
            **kept,
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CACHESVC_URL": "http://127.0.0.1:9",
            "CACHESVC_TOKEN": "csv_x",
            "CACHESVC_TRUSTED_KEYS": str(KEY.public),
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


def bundle(made: Publication) -> bytes:
    return bundle_head(made.envelope) + made.pack


def test_a_sparse_file_of_four_kilobytes_does_not_fill_the_disk(tmp_path: Path) -> None:
    size = 300 << 20
    sparse = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(size),
        "GNU.sparse.map": f"0,512,{size - 512},0",
    }
    path = archive(tmp_path / "sparse.tar", [member(bytes(512), **sparse)])
    assert path.stat().st_size < 20_000
    with tarfile.open(path) as opened:
        assert opened.getmembers()[1].size == size, "the attack is one"
    status, said = import_(path, tmp_path)
    assert status == 7 and "is no member of an export" in said, said


@pytest.mark.parametrize("attack", ["stranger", "padded", "cut"])
def test_what_no_trusted_key_signed_is_not_written(tmp_path: Path, attack: str) -> None:
    key = SigningKey.generate() if attack == "stranger" else KEY
    data = bundle(make(key, content=os.urandom(4 * MOST if attack != "padded" else 100)))
    data += bytes(4 * MOST) if attack == "padded" else b""
    data = data[: -2 * MOST] if attack == "cut" else data
    status, said = import_(archive(tmp_path / "made.tar", [member(data)]), tmp_path)
    assert status == 7, said
    assert ("not trusted" if attack == "stranger" else "the manifest says") in said, said


def test_a_signed_bundle_is_written_and_its_namespace_counts(tmp_path: Path) -> None:
    made = make(KEY, namespace="team")
    status, said = import_(archive(tmp_path / "a.tar", [member(bundle(made))]), tmp_path)
    assert status == 6 and "127.0.0.1:9" in said, "the next step is the registry"
    status, said = import_(archive(tmp_path / "b.tar", [member(bundle(made))], "other"), tmp_path)
    assert status == 7 and "an export of 'other'" in said, said
