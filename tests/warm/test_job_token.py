"""Test that a CI job logs in with its own token, and stays logged in while it compiles."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from cachesvc.warm import job_login
from cachesvc.warm.job_login import JobLogin, logged_in
from cachesvc.warm.job_token import take_source
from cachesvc.warm.spec.variables import choose_variables
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import Forbidden, InvalidRequest, Unauthenticated
from cachesvc_client.wire.names import Namespace
from tests.security.issuer import Issuer

from .conftest import allow_main, command


def test_the_variables_for_a_login_leave_the_environment() -> None:
    means = {"ACTIONS_ID_TOKEN_REQUEST_URL": "https://x", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret"}
    environ = {**means, "CACHESVC_ID_TOKEN": "secret", "MY_JWT": "secret", "PATH": "/bin"}
    for source in ("github", "gitlab", "gitlab:MY_JWT"):
        assert "secret" not in repr(take_source(source, environ))
    assert environ == {"PATH": "/bin"}
    assert choose_variables({**means, "CACHESVC_OIDC": "github", "CACHESVC_ID_TOKEN": "x"}) == {}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("github", "id-token: write"),
        ("gitlab", "id_tokens: {CACHESVC_ID_TOKEN"),
        ("gitlab:MINE", "MINE is not set"),
        ("file:relative", "PATH is absolute"),
        ("jenkins", "github, gitlab"),
    ],
)
def test_a_job_without_a_token_is_one_line(source: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match="--oidc") as raised:
        take_source(source, {})
    assert words in str(raised.value)


def test_the_command_names_what_the_job_lacks(plain_environment: dict[str, str], tmp_path: Path) -> None:
    arguments = command("warm", tmp_path / "warm.toml", "--oidc", "github")
    result = subprocess.run(arguments, env=plain_environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "id-token: write" in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def test_the_token_file_is_read_at_each_login_and_other_text_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = take_source(f"file:{path}", {})
    with pytest.raises(InvalidRequest, match="No such file"):
        source.get("https://registry.example")
    for text in ("one\n", "two"):
        path.write_text(text)
        assert source.get("https://registry.example") == text.strip()
    for text in ("", "a\x1b[2Jb", "x" * 20_000):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="not a token"):
            source.get("https://registry.example")


def test_the_token_of_a_job_is_not_sent_over_plain_http(tmp_path: Path) -> None:
    path = tmp_path / "token"  # The file is absent: a read of it would be another error.
    login = JobLogin(
        take_source(f"file:{path}", {}), "http://registry.example", Namespace("team"), None, "write"
    )
    with pytest.raises(InvalidRequest, match="plain HTTP"):
        login.exchange()


@pytest.mark.servers
def test_a_job_stays_logged_in_while_it_runs(
    registry: dict[str, str], issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = allow_main(registry, issuer)
    url, lines = registry["CACHESVC_URL"], []
    environ = {**os.environ, **issuer.github()}
    login = JobLogin(take_source("github", environ), url, Namespace("team"), None, "write")
    assert not set(issuer.github()) & set(environ)
    monkeypatch.setattr(job_login, "_half_life", lambda _answer: 0.2)
    with logged_in(login, lines.append) as (remote, first):
        assert (first.role, first.lane, remote.whoami().token) == ("write", None, first.token)
        until = time.monotonic() + 20
        while remote.token == first.secret and time.monotonic() < until:
            time.sleep(0.05)
        assert remote.token != first.secret and remote.whoami().role == "write"
    assert lines == []
    with pytest.raises(Forbidden, match="namespace team"):
        JobLogin(login.source, url, Namespace("other"), None, "write").exchange()
    with Remote(url, registry["CACHESVC_TOKEN"]) as admin:
        admin.tell("DELETE", f"/v1/publishers/{rule}")
    with Remote(url, first.secret) as expired_login, pytest.raises(Unauthenticated, match="revoked"):
        until = time.monotonic() + 10
        while time.monotonic() < until:
            expired_login.whoami()
            time.sleep(0.2)
