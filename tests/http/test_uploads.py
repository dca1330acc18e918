"""Test uploads to servers that refuse them, and from files that change."""

from __future__ import annotations

import socket

import pytest
from hostile_servers import DATA, DIGEST, answer, serve

from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    ProtocolMismatch,
    TooLarge,
)
from cachesvc_client.wire.requests.protocol import (
    UploadAnswer,
)


def upload() -> UploadAnswer:
    return UploadAnswer("u1", "/v1/uploads/u1/pack", 2_000_000_000)


def test_an_upload_goes_to_the_registry_only(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(DATA)
    with pytest.raises(ProtocolMismatch, match="registry itself"):
        Uploads(Remote("http://127.0.0.1:9", "secret")).put_pack(
            UploadAnswer("u", "http://evil.example/x", 1), pack, len(DATA)
        )


def test_put_pack_streams_the_file(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(b"head" + DATA)
    stored = {"pack": DIGEST, "size": len(DATA)}
    with serve(lambda sock, _: answer(sock, stored)) as server, open(pack, "rb") as file:
        file.seek(4)
        assert Uploads(Remote(server.url, "secret")).put_pack(upload(), file, len(DATA)).pack == DIGEST
    assert server.requests[0].body == DATA
    assert server.requests[0].headers["content-length"] == str(len(DATA))
    assert "transfer-encoding" not in server.requests[0].headers


def test_a_refusal_during_an_upload_is_read(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(b"\0" * (32 << 20))
    error = {"error": {"code": "too_large", "message": "more than the lease", "hint": ""}}

    def refuse(sock, _):
        answer(sock, error, 413, Connection="close")
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):  # nginx reads on too, so that a reset does not lose the answer.
            pass

    with serve(refuse, body=False) as server, pytest.raises(TooLarge, match="more than the lease"):
        Uploads(Remote(server.url)).put_pack(upload(), pack, 32 << 20)


def test_a_file_that_shrinks_is_not_uploaded(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(DATA)
    with serve(lambda sock, _: answer(sock, {})) as server, pytest.raises(Corrupt, match="early"):
        Uploads(Remote(server.url)).put_pack(upload(), pack, len(DATA) + 1)
    with (
        pytest.raises(CacheSvcError, match="No such file"),
        serve(lambda sock, _: answer(sock, {})) as server,
    ):
        Uploads(Remote(server.url)).put_pack(upload(), tmp_path / "absent", 5)


def test_an_abort_of_a_missing_upload_succeeds():
    error = {"error": {"code": "not_found", "message": "no upload u/1", "hint": ""}}
    with serve(lambda sock, _: answer(sock, error, 404)) as server:
        Uploads(Remote(server.url)).abort("u/1")
    assert server.requests[0].path == "/v1/uploads/u%2F1"
