"""What somebody gains who can write where backups are kept: nothing that an operator did not name by its
digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from registry_making import Publication, Server, make, ok

from cachesvc.bootstrap import key_path, knows_schema, open_empty
from cachesvc.registry.upkeep.backup import read_backup, restore_backup
from cachesvc.settings import read_settings
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt

SECRET = "csv_" + "e" * 48
"""The attacker's."""


@dataclass
class Backups:
    """Two backups of a registry, ``old`` of before ``bad`` was quarantined; and one of another registry."""

    folder: Path
    bad: Publication
    digests: dict[str, str]


def admin(data: Path, *words: object) -> tuple[int, str]:
    """Run ``cachesvc admin --local`` in a process of its own. Return its status and what it said."""
    command = [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(data), *map(str, words)]
    result = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    return result.returncode, result.stdout if result.returncode == 0 else result.stderr


def back_up(server: Server, folder: Path) -> str:
    status, said = admin(server.data, "backup", folder, "--json")
    assert status == 0, said
    return str(json.loads(said)["digest"])


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Backups:
    folder = tmp_path_factory.mktemp("backups")
    with Server(folder / "data").running() as server:
        bad = make(server.key)
        ok(server.api().publish(bad))
        digests = {"old": back_up(server, folder / "old")}
        ok(server.api().http.put(f"/v1/revisions/{bad.revision}/quarantine", json={"reason": "hostile"}))
        digests["new"] = back_up(server, folder / "new")
    with Server(folder / "other-data").running() as other:
        digests["other"] = back_up(other, folder / "other")
    return Backups(folder, bad, digests)


def changed(source: Path, target: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """Copy a backup and change a file in it, with the digests that go with it, as who writes there can."""
    shutil.copytree(source, target)
    file, summary = target / name, json.loads((target / "backup.json").read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(change(file.read_bytes() if file.exists() else b""))
    summary["digests"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    summary["sizes"][name] = file.stat().st_size
    for table in summary["tables"]:
        summary["tables"][table] = len((target / f"index/{table}.jsonl").read_bytes().splitlines())
    (target / "backup.json").write_bytes(canonical(summary))
    return target


def with_my_token(rows: bytes) -> bytes:
    first = json.loads(rows.splitlines()[0])
    mine = {"token": "t-" + "e" * 16, "secret_hash": hashlib.sha256(SECRET.encode()).hexdigest()}
    return rows + json.dumps({**first, **mine, "role": "admin", "namespace": "*"}).encode() + b"\n"


def without_rows(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("index/tokens.jsonl", with_my_token),
        ("index/audit.jsonl", without_rows),
        ("keys/signing.key", lambda key: key + b" "),
    ],
)
def test_a_backup_in_which_somebody_wrote_is_not_restored(
    backups: Backups, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    """A token that is the attacker's, an audit log without its rows, another key: with matching digests."""
    hostile = changed(backups.folder / "new", tmp_path / "hostile", name, change)
    new = tmp_path / "data"
    status, said = admin(new, "restore", hostile, "--digest", backups.digests["new"], "--apply")
    assert status == 7 and "not the backup of digest" in said, said
    assert not new.exists()


@pytest.mark.parametrize("instead", ["old", "other"])
def test_another_backup_in_the_place_of_the_newest_is_not_restored(
    backups: Backups, tmp_path: Path, instead: str
) -> None:
    """An older one would offer again what was quarantined since; that of another registry has its tokens."""
    place, new = backups.folder / instead, tmp_path / "data"
    status, said = admin(new, "restore", place, "--digest", backups.digests["new"], "--apply")
    assert status == 7 and "not the backup of digest" in said, said
    assert not new.exists()


def test_no_backup_is_restored_that_nobody_named_by_its_digest(backups: Backups, tmp_path: Path) -> None:
    new = tmp_path / "data"
    status, said = admin(new, "restore", backups.folder / "new", "--apply")
    assert status == 2 and "--digest" in said and not new.exists()
    status, said = admin(new, "restore", backups.folder / "new", "--json")
    assert status == 0 and json.loads(said)["digest"] == backups.digests["new"]


def test_the_newest_backup_keeps_what_was_quarantined(backups: Backups, tmp_path: Path) -> None:
    new = tmp_path / "data"
    status, said = admin(
        new, "restore", backups.folder / "new", "--digest", backups.digests["new"], "--apply"
    )
    assert status == 0, said
    with Server(new).running() as server:
        server.token = (backups.folder / "data/admin.token").read_text().strip()
        assert ok(server.api().resolve())["revisions"] == []


def test_a_backup_that_is_changed_while_it_is_restored_leaves_no_registry(
    backups: Backups, tmp_path: Path
) -> None:
    """After it was checked: its files are read a second time."""
    folder = tmp_path / "backup"
    for name, change in (("index/tokens.jsonl", with_my_token), ("keys/root.key", lambda key: key + b" ")):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(backups.folder / "new", folder)
        settings = read_settings(None, data=tmp_path / f"data-{len(name)}")
        summary = read_backup(folder, knows_schema, Digest(backups.digests["new"]))
        changed(backups.folder / "new", tmp_path / f"changed-{len(name)}", name, change)
        shutil.copy(tmp_path / f"changed-{len(name)}" / name, folder / name)
        with pytest.raises(Corrupt, match="not the bytes"), open_empty(settings) as (open_index, blobs):
            restore_backup(
                folder,
                summary,
                blobs,
                open_index=open_index,
                key_path=lambda key, at=settings: key_path(at, key),
            )
        assert not (settings.data / "index.sqlite3").exists()


def test_a_backup_writes_no_file_outside_of_the_registry(backups: Backups, tmp_path: Path) -> None:
    """By the name of a key, even where an operator takes the digest of who wrote it."""
    hostile = changed(backups.folder / "new", tmp_path / "hostile", "keys/../../planted.key", lambda _: b"x")
    summary = json.loads((hostile / "backup.json").read_text())
    summary["keys"].append("../../planted")
    (hostile / "backup.json").write_bytes(canonical(summary))
    digest = Digest.of((hostile / "backup.json").read_bytes())
    new = tmp_path / "deep" / "er" / "data"
    status, said = admin(new, "restore", hostile, "--digest", digest, "--apply")
    assert status == 7, said
    assert not (tmp_path / "deep" / "planted.key").exists()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (_pipe, "backup.json"),
        (_sparse, "backup.json"),
        (_endless, "index/tokens.jsonl"),
        (_pipe, "keys/signing.key"),
        (_sparse, "packs"),
    ],
)
def test_a_file_without_an_end_holds_up_no_restore(
    backups: Backups, tmp_path: Path, put: Callable[[Path], None], name: str
) -> None:
    """A pipe that nobody fills, an endless device, a terabyte that takes no room."""
    folder, new = tmp_path / "backup", tmp_path / "data"
    shutil.copytree(backups.folder / "new", folder)
    put(next((path for path in (folder / name).rglob("*") if path.is_file()), folder / name))
    for words in (("--digest", backups.digests["new"], "--apply"), ()):
        began = time.monotonic()
        status, said = admin(new, "restore", folder, *words)
        assert status in (4, 7) and said.count("\n") == 1, said
        assert time.monotonic() - began < 30 and not new.exists()


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("objects", b"[]"),
        ("objects", b"[" * 100_000),
        ("revisions", b"{}"),
        ("revisions", b'{"revision": 1, "signer": [], "envelope": {}}'),
        ("revisions", b"\xff\xfe"),
    ],
    ids=["list", "deep", "empty", "types", "bytes"],
)
def test_a_backup_with_rows_that_are_none_is_refused_in_one_line(
    backups: Backups, tmp_path: Path, table: str, row: bytes
) -> None:
    """To whoever looks at it before a digest is named."""
    hostile = changed(backups.folder / "new", tmp_path / "b", f"index/{table}.jsonl", lambda rows: rows + row)
    status, said = admin(tmp_path / "data", "restore", hostile)
    assert status == 7 and said.count("\n") == 1 and "Traceback" not in said, said
