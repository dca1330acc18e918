"""Replicas that start together on an empty database."""

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
from cachesvc.registry import startup, tokens
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


def started_together(folder: Path, variables: dict[str, str]) -> list[Server]:
    """As many processes as ``REPLICAS``, launched before the first of them is ready."""
    made = [Server(folder / str(number)) for number in range(REPLICAS)]
    files = [folder / f"{number}.json" for number in range(REPLICAS)]
    for server, file in zip(made, files, strict=True):
        server.process = launch(server.data, "--ready-file", str(file), **variables)
    deadline = time.monotonic() + 60
    for server, file in zip(made, files, strict=True):
        while not file.exists():
            assert server.process.poll() is None, server.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.ready = json.loads(file.read_text())
    return made


def stopped(servers: list[Server]) -> None:
    for server in servers:
        assert server.stop() == 0


def test_one_of_them_makes_token_and_key_and_all_serve(tmp_path: Path, variables: dict[str, str]) -> None:
    servers = started_together(tmp_path, variables)
    [first] = [server for server in servers if "token" in server.ready]
    assert [set(server.ready) for server in servers if server is not first] == [{"url"}] * (REPLICAS - 1)
    assert [server.data for server in servers if server.data.exists()] == [first.data]
    made = make(SigningKey.load(first.data / "signing.key"))
    token = first.ready["token"]
    ok(servers[0].api(token).publish(made))
    for server in servers:
        assert ok(server.api(None).http.get("/readyz"))["ready"]
        assert ok(server.api(token).resolve())["revisions"][0]["revision"] == made.revision
        assert [row["label"] for row in ok(server.api(token).http.get("/v1/tokens"))] == ["first start"]
        assert [row["label"] for row in ok(server.api(token).http.get("/v1/signers"))] == ["first start"]
    stopped(servers)


def test_a_token_that_the_operator_chose_is_made_once_and_told_to_nobody(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """And no key is made: nothing is written on the replicas. A later start does not bring it back."""
    variables["CACHESVC_SERVER_FIRST_TOKEN"] = CHOSEN
    servers = started_together(tmp_path, variables)
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
    stopped(servers)
    again = Server(tmp_path / "again", env=variables).start()
    refused(again.api(CHOSEN).http.get("/v1/whoami"), 401, "unauthenticated", "revoked")
    assert len(ok(again.api(other).http.get("/v1/tokens?revoked=true"))) == 2
    assert again.stop() == 0


def test_whoever_is_first_makes_others_wait(
    tmp_path: Path, column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All find no admin; while the first makes one, the others wait and then find it."""
    found, slowly = threading.Barrier(REPLICAS), startup._first

    def first(*given: object) -> str | None:
        time.sleep(0.3)
        return slowly(*given)

    monkeypatch.setattr(startup, "_first", first)
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as reg:
        index = reg.registry.index
        write = index.write

        def wait_and_write() -> AbstractContextManager[Unit]:
            found.wait(20)
            return write()

        monkeypatch.setattr(index, "write", wait_and_write)
        with ThreadPoolExecutor(REPLICAS) as pool:
            keys = [tmp_path / str(number) / "signing.key" for number in range(REPLICAS)]
            made = list(pool.map(lambda key: startup.prepare_credentials(reg.registry, key), keys))
        monkeypatch.undo()
        assert len([one.secret for one in made if one.secret]) == 1
        assert [one.trust is None for one in made].count(False) == 1
        assert sum(key.exists() for key in keys) == 1
        assert len(tokens.list_tokens(reg.registry, ROOT)) == 1


def test_what_a_deployment_runs_before_its_replicas(tmp_path: Path, variables: dict[str, str]) -> None:
    """The migrations alone, as often as it likes; then a token, at the console."""

    def admin(*words: str) -> str:
        command = [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(tmp_path / "none")]
        done = subprocess.run(
            [*command, *words], env={**os.environ, **variables}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "0001" in admin("migrate") and "plan:" in admin("migrate")
    assert "0001" in admin("migrate", "--apply")
    assert admin("migrate", "--apply") == "the schema is up to date\n"
    assert json.loads(admin("tokens", "list", "--json")) == []
    made = json.loads(admin("tokens", "create", "--label", "deploy", "--role", "admin", "-n", "*", "--json"))
    assert not (tmp_path / "none").exists()
    servers = started_together(tmp_path, variables)
    assert [set(server.ready) for server in servers] == [{"url"}] * REPLICAS
    assert [row["label"] for row in ok(servers[0].api(made["secret"]).http.get("/v1/tokens"))] == ["deploy"]
    stopped(servers)
