"""Test ``cachesvc admin backup`` and ``restore``: what they hold and refuse, and kill -9 at every step."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from admin_command import Admin
from registry_inside import production
from registry_making import Publication, Server, make, ok

from cachesvc.bootstrap import (
    key_files,
    key_path,
    knows_schema,
    open_empty,
    open_running,
    require_registry,
)
from cachesvc.registry.upkeep.backup import read_backup, restore_backup, write_backup
from cachesvc.settings import Settings, read_settings
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, NotFound
from tests.killed import was_killed


@pytest.fixture
def local(command: Admin, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Return a function that runs ``cachesvc admin --local`` over a server's backends."""

    def run(server: Server, *words: object) -> object:
        with monkeypatch.context() as patch:
            for name, value in server.env.items():
                patch.setenv(name, value)
            return command("admin", "--local", "--data", server.data, *words)

    return run


def restoring(backup: Path) -> list[object]:
    return ["restore", backup, "--digest", Digest.of((backup / "backup.json").read_bytes()), "--apply"]


def publish_two(server: Server) -> list[Publication]:
    facts = {"fingerprint": detect()}
    rows = [make(server.key, target=one, content=os.urandom(9000), **facts) for one in ("a", "b")]
    for row in rows:
        ok(server.api().publish(row))
    return rows


def assert_restored(server: Server, old: Server, rows: list[Publication], secret: str) -> None:
    """Assert that a restored registry offers what the old one did, to the old tokens, and is whole."""
    server.token = old.token
    with server.running():
        offered = {
            row["revision"]: row for row in ok(server.api(secret).resolve(fingerprint=detect()))["revisions"]
        }
        for row in rows:
            assert server.api(secret).fetch(offered[row.revision]["pack_url"]).content == row.pack
        log = ok(server.api().http.get("/v1/audit"))["rows"]
        assert [row["action"] for row in log][:2] == ["registry.restore", "token.create"]
        page = ok(server.api().http.post("/v1/fsck?deep=true"))
        rest = ok(server.api().http.post(f"/v1/fsck?deep=true&cursor={page['next']}"))
        assert page["findings"] == rest["findings"] == [] and page["checked"] == len(rows)
        ok(server.api().publish(make(old.key, target="later")))


def test_a_registry_is_backed_up_while_it_serves_and_restored(
    local: Callable, command: Admin, own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = own_server.start()
    rows, backup = publish_two(old), tmp_path / "backup"
    request = {"label": "pods", "role": "report", "namespace": "team"}
    secret = ok(old.api().http.post("/v1/tokens", json=request))["secret"]
    result = local(old, "backup", backup, "--json")
    assert result.status == 0, result.err
    assert result.json["keys"] == ["signing", "root", "targets", "online"]
    assert secret not in "".join(
        path.read_text(errors="replace") for path in backup.rglob("*") if path.is_file()
    )
    assert {path.stat().st_mode & 0o077 for path in [backup, *backup.rglob("*")]} == {0}
    assert local(old, "backup", backup).status == 2, "a backup is never written over"
    old.stop()

    new = Server(tmp_path / "new", prepared=own_server.prepared)
    plan = local(new, "restore", backup)
    assert plan.status == 0 and "would restore 2 revisions" in plan.out and not new.data.exists()
    words = ("restore", backup, "--digest", result.json["digest"], "--apply")
    assert local(new, *words).status == 0
    assert local(new, *words).status == 2, "it is not empty any more"
    old_root = old.data / "root.key"
    assert (new.data / "root.key").read_bytes() == old_root.read_bytes()
    assert_restored(new, old, rows, secret)

    with new.running():
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("CACHESVC_STORE", str(tmp_path / "store"))
        monkeypatch.setenv("CACHESVC_TRUSTED_KEYS", old.ready["trust"])
        monkeypatch.setenv("CACHESVC_URL", new.url)
        monkeypatch.setenv("CACHESVC_TOKEN", secret)
        pulled = command("pull", "team/bert", "--into", tmp_path / "into", "--json")
        assert len(pulled.rows) == 2, pulled.err
        assert command("verify", pulled.rows[0]["path"]).status == 0


@pytest.mark.services
def test_a_backup_moves_a_registry_between_backends(
    local: Callable, own_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One machine, then PostgreSQL and a bucket, then one machine again: the audit log goes on, and the
    events that wait for the receiver of a webhook."""
    old = own_server.start()
    webhook = {"namespace": "team", "url": "https://hooks.invalid/events"}
    ok(old.api().http.post("/v1/webhooks", json=webhook))
    rows = publish_two(old)
    secret = ok(old.api().http.post("/v1/tokens", json={"label": "x", "role": "read", "namespace": "team"}))[
        "secret"
    ]
    assert local(old, "backup", tmp_path / "first").status == 0
    old.stop()
    there = Server(tmp_path / "there", env=production(request), prepared=old.prepared)
    result = local(there, *restoring(tmp_path / "first"))
    assert result.status == 0 and "not restored, since the settings hold such keys" in result.err, result.err
    assert local(there, "restore", tmp_path / "first").status == 2
    assert_restored(there, old, rows, secret)
    assert local(there, "backup", tmp_path / "second").status == 0
    back = Server(tmp_path / "back", prepared=old.prepared)
    result = local(back, *restoring(tmp_path / "second"))
    assert result.status == 0, result.err
    back.token = old.token
    with back.running():
        assert len(ok(back.api(secret).resolve(fingerprint=detect()))["revisions"]) == 2
        [kept] = ok(back.api().http.get("/v1/webhooks"))
        assert kept["waiting"] == 3, "both publications, and the one on the way"


@pytest.fixture
def settings(own_server: Server) -> Settings:
    """Return the settings of a stopped registry with two entries."""
    publish_two(own_server.start())
    own_server.stop()
    return read_settings(None, data=own_server.data)


def back_up(settings: Settings, folder: Path) -> None:
    with open_running(settings) as (index, blobs):
        write_backup(index, blobs, folder, key_files(settings))


def restore(settings: Settings, folder: Path) -> None:
    summary = read_backup(folder, knows_schema)
    with open_empty(settings) as (open_index, blobs):
        restore_backup(
            folder, summary, blobs, open_index=open_index, key_path=lambda name: key_path(settings, name)
        )


def altered(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    [path] = [path for path in folder.rglob("*") if path.is_file() and name in str(path)][:1]
    path.write_bytes(change(path.read_bytes()))


def newer(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "schema": "0999"}).encode()


@pytest.mark.parametrize(
    ("name", "change", "status", "words"),
    [
        ("packs/", lambda data: data[:-1] + bytes([data[-1] ^ 1]), 7, "not the bytes"),
        ("index/revisions", lambda data: data + data, 7, "not the bytes"),
        ("keys/root", lambda data: data + b"x", 7, "not the bytes"),
        ("backup.json", newer, 6, "does not know"),
        ("backup.json", lambda data: data[:-9], 7, "not JSON"),
        ("backup.json", lambda data: data.replace(b"backup/1", b"backup/2"), 7, "not of"),
    ],
)
def test_a_damaged_backup_is_refused_and_nothing_is_made(
    settings: Settings, tmp_path: Path, name: str, change: Callable, status: int, words: str
) -> None:
    back_up(settings, tmp_path / "backup")
    altered(tmp_path / "backup", name, change)
    new = read_settings(None, data=tmp_path / "new")
    with pytest.raises(CacheSvcError, match=words) as refusal:
        restore(new, tmp_path / "backup")
    assert refusal.value.exit_status == status and not new.data.exists()


def test_a_store_with_other_packs_is_refused(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    new = read_settings(None, data=tmp_path / "new")
    strange = new.data / "blobs/objects/packs/strange"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(b"x")
    with pytest.raises(CacheSvcError, match="not of this backup"):
        restore(new, tmp_path / "backup")
    assert strange.read_bytes() == b"x"


def test_a_pack_that_was_collected_meanwhile_ends_the_backup(settings: Settings, tmp_path: Path) -> None:
    next((settings.data / "blobs/objects/packs").iterdir()).unlink()
    with pytest.raises(NotFound, match="collected while it was backed up"):
        back_up(settings, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def killed_at(number: int, act: Callable[[], None]) -> bool:
    """Run ``act`` in a child that dies before its n-th synchronisation or renaming."""

    def run() -> None:
        left = number

        def wrap(function: Callable) -> Callable:
            def counted(*arguments: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            return counted

        os.fsync, os.replace, os.rename = wrap(os.fsync), wrap(os.replace), wrap(os.rename)
        act()

    return was_killed(run)


def test_a_killed_backup_looks_like_none_and_the_next_one_is_whole(
    settings: Settings, tmp_path: Path
) -> None:
    folder, kills = tmp_path / "backup", 0
    while killed_at(kills + 1, lambda: back_up(settings, folder)):
        kills += 1
        if folder.exists():
            break  # it died after the folder got its name
        with pytest.raises(NotFound):
            read_backup(folder, knows_schema)
    assert kills > 30
    assert read_backup(folder, knows_schema).packs == 2


def test_a_killed_restore_is_no_registry_and_goes_on(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    new, kills = read_settings(None, data=tmp_path / "new"), 0
    while killed_at(kills + 1, lambda: restore(new, tmp_path / "backup")):
        kills += 1
        if (new.data / "index.sqlite3").exists():
            break  # it died after the index got its name
        with pytest.raises(NotFound):
            require_registry(new)
    assert kills > 5
    require_registry(new)
    with open_running(new) as (index, blobs), index.read() as unit:
        rows = unit.inventory.packs("", 9)
        assert len(rows) == 2 and len(list(blobs.list("packs/"))) == 2
