"""Test ``cachesvc serve --check-config``: it says what a start would use or refuse, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from registry_making import Server

from tests.security.issuer import running_issuer
from tests.services.process import free_port


def check(*options: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cachesvc", "serve", "--check-config", *map(str, options)]
    return subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def test_usable_settings_are_named_and_nothing_is_made(tmp_path: Path) -> None:
    done = check("--data", tmp_path / "data", "--port", 0)
    assert done.returncode == 0, done.stderr
    assert f"SQLite in {tmp_path / 'data'}; " in done.stdout and "migrations to run" in done.stdout
    assert "nothing was started or changed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_runs_is_left_alone(own_server: Server) -> None:
    server = own_server.start()
    done = check("--data", server.data, "--port", 0)
    assert done.returncode == 0 and "up to date" in done.stdout, done.stderr
    assert server.api().http.get("/v1/whoami").status_code == 200


def test_a_kubernetes_service_of_the_servers_name_does_not_stop_it(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f"port = {free_port()}\n")
    kubernetes = {"CACHESVC_SERVER_PORT": "tcp://10.0.0.1:80", "CACHESVC_SERVER_SERVICE_HOST": "10.0.0.1"}
    done = check("--data", tmp_path / "data", "--config", settings, **kubernetes)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CACHESVC_SERVER_PORT=tcp://10.0.0.1:80 is ignored") == 1


@pytest.mark.parametrize("parameter", ["pgbouncer", "schema", "ssl", "connection_limit"])
def test_a_parameter_of_another_driver_is_named(parameter: str) -> None:
    url = f"postgres://me:hunter2@127.0.0.1:{free_port()}/name?sslmode=prefer&{parameter}=true"
    done = check("--port", 0, CACHESVC_SERVER_DATABASE=url)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and f"database: the URL has ?{parameter}=, " in line
    assert "hunter2" not in line and "half-migrated" not in line


def test_each_fault_is_one_line(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("keep_day = 3\n")
    half = tmp_path / "chain.pem"
    half.write_text("no certificate")
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    faults = {
        "did you mean keep_days": check("--config", settings),
        "certificate": check(
            "--data",
            tmp_path / "data",
            CACHESVC_SERVER_TLS_CERTIFICATE=str(half),
            CACHESVC_SERVER_TLS_KEY=str(half),
        ),
        "error": check("--port", 0, CACHESVC_SERVER_DATABASE=away),
    }
    for said, done in faults.items():
        assert done.returncode != 0 and said in done.stderr.lower(), (said, done.stderr)
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3, done.stderr
    assert not (tmp_path / "data").exists()


def test_a_login_at_a_provider_is_whole_and_the_provider_answers(tmp_path: Path) -> None:
    with running_issuer() as issuer:
        addresses = {name: f"{issuer.url}/{name}" for name in ("authorization_endpoint", "token_endpoint")}
        issuer.discovery = dict(addresses)
        settings = {
            "CACHESVC_SERVER_PUBLIC_URL": "https://cache.example",
            "CACHESVC_SERVER_OIDC_ISSUER": issuer.url,
            "CACHESVC_SERVER_OIDC_CLIENT_ID": "cachesvc",
            "CACHESVC_SERVER_OIDC_ROLES": '{"admins": "admin in *"}',
        }
        place = ("--data", tmp_path / "data", "--port", 0)
        whole = check(*place, CACHESVC_SERVER_OIDC_CLIENT_SECRET="hunter2", **settings)
        assert whole.returncode == 0, whole.stderr
        assert f"{issuer.url}, back to https://cache.example/ui/login/callback" in whole.stdout
        absent = str(tmp_path / "absent")
        issuer.discovery = {}
        for said, secret in (
            ("oidc_client_secret or oidc_client_secret_file is not", {}),
            (f"oidc_client_secret_file {absent}: No such file", {"CLIENT_SECRET_FILE": absent}),
            ("names no place to log in", {"CLIENT_SECRET": "hunter2"}),
        ):
            more = {f"CACHESVC_SERVER_OIDC_{name}": value for name, value in secret.items()}
            done = check(*place, **settings, **more)
            assert done.returncode != 0 and said in done.stderr, done.stderr
            assert "hunter2" not in done.stderr and len(done.stderr.splitlines()) == 1
