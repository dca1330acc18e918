"""Test ``cachesvc serve`` as a process: first and later starts, what it refuses, how it ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sqlite3
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from registry_making import Server, launch, make, ok, refused

from cachesvc.api import garbage
from cachesvc.cli.serve import no_collections
from cachesvc.cli.serving.server import listening, url_of
from cachesvc_client.bundle.seal import SigningKey


def failed_start(data: Path, *options: str, before: Sequence[str] = (), **env: str) -> tuple[int, str]:
    """Return the exit status and the one line on stderr of a start that must fail."""
    process = launch(data, *options, before=before, **env)
    out, err = process.communicate(timeout=30)
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return process.returncode, lines[0]


def test_the_first_start_prints_the_lines_to_copy_and_later_starts_print_no_secret(
    own_server: Server,
) -> None:
    server = own_server.start()
    assert set(server.ready) == {"url", "token", "trust", "signing_key"}
    assert server.ready["token"].startswith("csv_")
    assert SigningKey.load(Path(server.ready["signing_key"])).public == server.ready["trust"]
    key_file = Path(server.ready["signing_key"])
    assert key_file == server.data / "signing.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    assert server.ready["token"].encode() not in (server.data / "index.sqlite3").read_bytes()
    ok(server.api().publish(make(server.key)))
    first, before = server.process, dict(server.ready)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=20)
    assert first.returncode == 0
    assert err == ""
    token_file = server.data / "admin.token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert token_file.read_text() == before["token"] + "\n"
    login = f"cachesvc login {before['url']} --token-file {token_file}"
    assert "csv_" not in out
    assert f"{login} --trust {before['trust']} --signing-key {key_file}\n" in out
    assert f"listening on {before['url']}" in out

    server.start()
    assert set(server.ready) == {"url", "trust", "signing_key"}
    assert len(ok(server.api().resolve())["revisions"]) == 1
    server.process.send_signal(signal.SIGINT)
    out, err = server.process.communicate(timeout=20)
    assert (server.process.returncode, err) == (0, "")
    assert "csv_" not in out
    assert str(server.data) in out

    server.options = ["--new-token"]
    old = server.token
    server.start()
    assert token_file.read_text() == server.token + "\n"
    assert server.token != old
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"
    assert ok(server.api(old).http.get("/v1/whoami"))["role"] == "admin"


def test_a_variable_that_names_no_setting_is_refused(tmp_path: Path) -> None:
    status, line = failed_start(tmp_path / "data", CACHESVC_SERVER_KEEPBYTES="200GiB")
    assert status == 2 and "did you mean CACHESVC_SERVER_KEEP_BYTES?" in line
    assert not (tmp_path / "data").exists()


def test_the_ready_file_is_private(server: Server) -> None:
    ready = server.data.parent / "data.ready.json"
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    assert json.loads(ready.read_text()) == server.ready


def test_a_missing_signing_key_is_not_replaced(own_server: Server) -> None:
    own_server.start()
    key = own_server.key
    own_server.stop()
    (own_server.data / "signing.key").unlink()
    own_server.start()
    assert set(own_server.ready) == {"url"}
    assert not (own_server.data / "signing.key").exists()
    assert ok(own_server.api().publish(make(key)))["created"]


def test_answers_are_sent_without_delay() -> None:
    """asyncio switches Nagle's delay off only for sockets that name their protocol; the delay is 40 ms an
    answer."""
    with listening("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
def test_the_printed_address_accepts_a_token(host: str, url: str) -> None:
    """The server listens on every address, as in a container."""
    with socket.socket() as bound:
        bound.bind((host, 0))
        assert url_of(bound, "http") == f"http://{url}:{bound.getsockname()[1]}"


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        status, line = failed_start(tmp_path / "data", "--port", str(port))
    assert status == 6
    assert f"127.0.0.1:{port}: Address already in use" in line
    assert "--port" in line
    assert not (tmp_path / "data").exists()


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, line = failed_start(tmp_path / "file" / "data")
    assert status == 6
    assert "Not a directory" in line
    assert "--data" in line


def test_an_unusable_data_folder_is_reported(own_server: Server) -> None:
    """A second server uses the folder, an older version of cachesvc starts on it, or its key file holds no
    key."""
    own_server.start()
    status, line = failed_start(own_server.data)
    assert (status, "another server works in it" in line) == (2, True)
    assert ok(own_server.api().http.get("/readyz"))["ready"]
    own_server.stop()
    key = own_server.data / "signing.key"
    text = key.read_text()
    key.write_text("nonsense")
    status, line = failed_start(own_server.data)
    assert (status, "signing.key: not a signing key" in line) == (2, True)
    key.write_text(text)
    with sqlite3.connect(own_server.data / "index.sqlite3") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'g2-0001'")
    connection.close()
    status, line = failed_start(own_server.data)
    assert status == 6
    assert "g2-0001" in line
    assert "upgrade" in line


def test_an_unwritable_ready_file_is_reported(tmp_path: Path) -> None:
    process = launch(tmp_path / "data", "--ready-file", str(tmp_path / "none" / "x"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == f"error: --ready-file {tmp_path}/none/x: No such file or directory\n"


@pytest.mark.parametrize(
    ("options", "env", "status", "words"),
    [
        (["--port", "70000"], {}, 2, "--port"),
        ([], {"CACHESVC_SERVER_LEASE_SECONDS": "x"}, 2, "CACHESVC_SERVER_LEASE_SECONDS"),
        (["--config", "/nowhere/x.toml"], {}, 2, "/nowhere/x.toml"),
        (["--host", "256.1.1.1"], {}, 2, "--host"),
        ([], {"CACHESVC_SERVER_DATABASE": "postgresql://nobody@127.0.0.1:9/none"}, 6, "index"),
    ],
)
def test_bad_settings_are_reported(
    tmp_path: Path, options: list[str], env: dict, status: int, words: str
) -> None:
    actual_status, line = failed_start(tmp_path / "data", *options, **env)
    assert (actual_status, words in line) == (status, True), line


def test_a_running_request_is_finished_before_the_server_ends(own_server: Server) -> None:
    server = own_server.start()
    api, publication = server.api(), make(server.key, content=os.urandom(2_000_000))
    upload = ok(api.begin(publication))["upload"]
    sent, answers = threading.Event(), []

    def chunks():
        yield publication.pack[:1_500_000]
        sent.set()
        deadline = time.monotonic() + 5
        while _accepts(server) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield publication.pack[1_500_000:]

    thread = threading.Thread(target=lambda: answers.append(api.put(upload, chunks())))
    thread.start()
    sent.wait(10)
    server.process.send_signal(signal.SIGTERM)
    thread.join(20)
    assert server.process.wait(20) == 0
    assert ok(answers[0])["size"] == len(publication.pack)
    server._closed()
    server.start()
    assert ok(server.api().commit(upload, publication))["created"]


def _accepts(server: Server) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_silent_upload_does_not_delay_the_end(own_server: Server) -> None:
    own_server.options = ["--config", str(own_server.data.parent / "cachesvc.toml")]
    (own_server.data.parent / "cachesvc.toml").write_text("shutdown_seconds = 1\n")
    server = own_server.start()
    publication = make(server.key)
    upload = ok(server.api().begin(publication))["upload"]
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            f"PUT /v1/uploads/{upload}/pack HTTP/1.1\r\nHost: x\r\n"
            f"Content-Length: {len(publication.pack)}\r\n"
            f"Authorization: Bearer {server.token}\r\n\r\n".encode()
            + publication.pack[:10]
        )
        while not list((server.data / "blobs" / "tmp").iterdir()):
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    server._closed()
    server.start()
    assert list((server.data / "blobs" / "tmp").iterdir()) == []
    ok(server.api().put(upload, publication.pack))
    assert ok(server.api().commit(upload, publication))["created"]


def test_readiness_names_the_fault(own_server: Server) -> None:
    server = own_server.start()
    (server.data / "blobs" / "tmp").rmdir()
    answer = server.api(None).http.get("/readyz")
    assert answer.status_code == 503
    parts = answer.json()["parts"]
    assert parts["index"] == "ok"
    assert "blobs" in parts["blobs"]
    assert ok(server.api(None).http.get("/healthz"))
    publication = make(server.key)
    upload = ok(server.api().begin(publication))["upload"]
    refused(server.api().put(upload, publication.pack), 503, "unavailable")
    (server.data / "blobs" / "tmp").mkdir()
    assert ok(server.api().publish(publication))["created"]


def test_a_server_survives_a_full_disk_and_reports_it(own_server: Server) -> None:
    """The server's files may not exceed 1 MiB: the pack does not fit, and the index does."""
    import resource

    server = own_server.start()
    publication, small = make(server.key, content=os.urandom(3_000_000)), make(server.key, name="small")
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    upload = ok(server.api().begin(publication))["upload"]
    refused(server.api().put(upload, publication.pack), 507, "storage_full", "make room")
    refused(server.api().commit(upload, publication), 422, "invalid", "was not uploaded")
    assert ok(server.api().publish(small))["created"]
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    ok(server.api().put(upload, publication.pack))
    assert ok(server.api().commit(upload, publication))["created"]
    lines = server.end()
    assert any("WARNING" in line and "make room" in line for line in lines), lines
    assert not any("ERROR" in line for line in lines), "nothing in the registry is broken"


def test_a_publish_after_kill_9_at_any_step_ends_in_the_same_state(own_server: Server) -> None:
    """The client sends the same publish again."""
    server = own_server.start()
    publication = make(server.key)

    def again() -> None:
        server.kill()
        server.start()

    upload = ok(server.api().begin(publication))["upload"]
    again()
    ok(server.api().put(upload, publication.pack))
    again()
    refused(server.api().resolve(), 404, "not_found")
    ok(server.api().put(upload, publication.pack))
    assert ok(server.api().commit(upload, publication))["created"]
    again()
    assert ok(server.api().commit(upload, publication))["created"] is False
    [row] = ok(server.api().resolve())["revisions"]
    assert server.api().fetch(row["pack_url"]).content == publication.pack


def test_the_server_collects_garbage_again_after_its_imports() -> None:
    with pytest.raises(ImportError), no_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_connections_begin_no_full_search_for_garbage() -> None:
    """Whoever opens connections makes objects, and would decide how often the registry stands still."""
    before = gc.get_threshold()
    with garbage.rarely_searched():
        assert gc.get_freeze_count() > 0
        searches = gc.get_stats()[2]["collections"]
        connections = [{"body": [number]} for number in range(400_000)]
        assert len(connections) == 400_000
        assert gc.get_stats()[2]["collections"] == searches
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
