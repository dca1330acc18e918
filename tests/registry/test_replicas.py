"""Test replicas that start together on an empty database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, inside
from registry_making import Server, launch, make, ok, refused

from cachesvc.index.unit import Unit
from cachesvc.registry import startup
from cachesvc.registry.access import tokens
from cachesvc_client.bundle.seal import SigningKey
from tests.services.ceph import Gateway

REPLICAS = 4
CHOSEN = "csv_" + "chosen-by-the-operator-" * 2


@pytest.fixture
def variables(database: str, gateway: Gateway, bucket_at_gateway: str) -> dict[str, str]:
    return {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_BUCKET": bucket_at_gateway,
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }


def start_together(folder: Path, variables: dict[str, str]) -> list[Server]:
    """Launch as many processes as ``REPLICAS`` before the first of them is ready."""
    servers = [Server(folder / str(number)) for number in range(REPLICAS)]
    files = [folder / f"{number}.json" for number in range(REPLICAS)]
    for server, file in zip(servers, files, strict=True):
        server.process = launch(server.data, "--ready-file", str(file), **variables)
    deadline = time.monotonic() + 60
    for server, file in zip(servers, files, strict=True):
        while not file.exists():
            assert server.process.poll() is None, server.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.ready = json.loads(file.read_text())
    return servers


def stop(servers: list[Server]) -> None:
    for server in servers:
        assert server.stop() == 0


def test_one_replica_makes_token_and_key_and_all_serve(tmp_path: Path, variables: dict[str, str]) -> None:
    servers = start_together(tmp_path, variables)
    [first] = [server for server in servers if "token" in server.ready]
    assert [set(server.ready) for server in servers if server is not first] == [{"url"}] * (REPLICAS - 1)
    assert [server.data for server in servers if server.data.exists()] == [first.data]
    publication = make(SigningKey.load(first.data / "signing.key"))
    token = first.ready["token"]
    ok(servers[0].api(token).publish(publication))
    for server in servers:
        assert ok(server.api(None).http.get("/readyz"))["ready"]
        assert ok(server.api(token).resolve())["revisions"][0]["revision"] == publication.revision
        assert [row["label"] for row in ok(server.api(token).http.get("/v1/tokens"))] == ["first start"]
        assert [row["label"] for row in ok(server.api(token).http.get("/v1/signers"))] == ["first start"]
    stop(servers)


def test_a_token_that_the_operator_chose_is_made_once_and_never_printed(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """No key is made either: nothing is written on the replicas. A later start does not bring the token
    back."""
    variables["CACHESVC_SERVER_FIRST_TOKEN"] = CHOSEN
    servers = start_together(tmp_path, variables)
    assert [set(server.ready) for server in servers] == [{"url"}] * REPLICAS
    assert not any(server.data.exists() for server in servers)
    api = servers[0].api(CHOSEN)
    [token] = ok(api.http.get("/v1/tokens"))
    assert (token["role"], token["namespace"]) == ("admin", "*")
    assert ok(api.http.get("/v1/signers")) == []
    key = SigningKey.generate()
    refused(servers[1].api(CHOSEN).publish(make(key)), 403, "untrusted", "signers add")
    ok(servers[2].api(CHOSEN).http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    ok(servers[3].api(CHOSEN).publish(make(key)))
    other = ok(api.http.post("/v1/tokens", json={"label": "next", "role": "admin", "namespace": "*"}))[
        "secret"
    ]
    ok(servers[0].api(other).http.delete(f"/v1/tokens/{token['token']}"))
    stop(servers)
    again = Server(tmp_path / "again", env=variables).start()
    refused(again.api(CHOSEN).http.get("/v1/whoami"), 401, "unauthenticated", "revoked")
    assert len(ok(again.api(other).http.get("/v1/tokens?revoked=true"))) == 2
    assert again.stop() == 0


def test_the_first_replica_makes_the_others_wait(
    tmp_path: Path, column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas find no admin. While the first makes one, the others wait, and then find it."""
    barrier, slowly = threading.Barrier(REPLICAS), startup._first

    def first(*arguments: object) -> str | None:
        time.sleep(0.3)
        return slowly(*arguments)

    monkeypatch.setattr(startup, "_first", first)
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as reg:
        index = reg.registry.index
        write = index.write

        def wait_and_write() -> AbstractContextManager[Unit]:
            barrier.wait(20)
            return write()

        monkeypatch.setattr(index, "write", wait_and_write)
        with ThreadPoolExecutor(REPLICAS) as pool:
            keys = [tmp_path / str(number) / "signing.key" for number in range(REPLICAS)]
            credentials = list(pool.map(lambda key: startup.prepare_credentials(reg.registry, key), keys))
        monkeypatch.undo()
        assert len([one.secret for one in credentials if one.secret]) == 1
        assert [one.trust is None for one in credentials].count(False) == 1
        assert sum(key.exists() for key in keys) == 1
        assert len(tokens.list_tokens(reg.registry, ROOT)) == 1


def test_a_deployment_migrates_and_makes_a_token_before_its_replicas(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """The migrations run alone, as often as the deployment likes; then the console makes a token."""

    def admin(*words: str) -> str:
        command = [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(tmp_path / "none")]
        result = subprocess.run(
            [*command, *words], env={**os.environ, **variables}, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert "0019" in admin("migrate") and "plan:" in admin("migrate")
    assert "0019" in admin("migrate", "--apply")
    assert admin("migrate", "--apply") == "the schema is up to date\n"
    assert json.loads(admin("tokens", "list", "--json"))["rows"] == []
    creation = json.loads(
        admin("tokens", "create", "--label", "deploy", "--role", "admin", "-n", "*", "--json")
    )
    assert not (tmp_path / "none").exists()
    servers = start_together(tmp_path, variables)
    assert [set(server.ready) for server in servers] == [{"url"}] * REPLICAS
    assert [row["label"] for row in ok(servers[0].api(creation["secret"]).http.get("/v1/tokens"))] == [
        "deploy"
    ]
    stop(servers)
