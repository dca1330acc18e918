from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc.settings import Settings, ignored_line, read_settings
from cachesvc_client.wire.errors import InvalidRequest

LOGIN = """oidc_issuer = "https://i.example"
public_url = "https://c.example"
oidc_client_id = "cachesvc"
oidc_client_secret = "hunter2"
"""
ROLES = "[oidc_roles]\nadmins = 'admin in *'"


def test_defaults_serve_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = read_settings()
    assert settings == Settings()
    assert (settings.host, settings.port, settings.database, settings.bucket) == ("127.0.0.1", 8750, "", "")
    assert settings.data == tmp_path / "cachesvc-data"


def test_the_command_line_wins_over_variables_and_these_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cachesvc.toml"
    file.write_text('port = 1\nhost = "::1"\nkeep_days = 3\nlease_seconds = 100\n')
    monkeypatch.setenv("CACHESVC_SERVER_PORT", "2")
    monkeypatch.setenv("CACHESVC_SERVER_KEEP_DAYS", "4")
    monkeypatch.setenv("CACHESVC_SERVER_BUCKET", "")
    settings = read_settings(file, port=3, host=None)
    assert (settings.port, settings.host, settings.keep_days, settings.lease_seconds) == (3, "::1", 4, 100)


@pytest.mark.parametrize(
    ("text", "variables", "arguments", "words"),
    [
        ("port = 70000", {}, {}, ["cachesvc.toml: port", "65535", "70000"]),
        ("prot = 1", {}, {}, ["cachesvc.toml: prot", "no such setting", "port"]),
        ("port = ", {}, {}, ["cachesvc.toml"]),
        (
            "",
            {"CACHESVC_SERVER_LEASE_SECONDS": "soon"},
            {},
            ["CACHESVC_SERVER_LEASE_SECONDS", "integer", "soon"],
        ),
        (
            "lease_seconds = 100",
            {"CACHESVC_SERVER_LEASE_SECONDS": "1"},
            {},
            ["CACHESVC_SERVER_LEASE_SECONDS", "60"],
        ),
        ("", {"CACHESVC_SERVER_DATABASE": "mysql://x"}, {}, ["CACHESVC_SERVER_DATABASE", "postgresql"]),
        ("", {}, {"port": -1}, ["--port", "-1"]),
        ("", {"CACHESVC_SERVER_REDIS": "host:6379"}, {}, ["CACHESVC_SERVER_REDIS", "redis"]),
        ('downloads = "cdn"', {}, {}, ["cachesvc.toml: downloads", "'store'", "'registry'"]),
        (
            'bucket = "b"\nlink_seconds = 8000',
            {"CACHESVC_SERVER_GRACE_SECONDS": "8000"},
            {},
            ["grace_seconds: 8000", "link_seconds, 8000", "downloads"],
        ),
        ('keep_bytes = "much"', {}, {}, ["cachesvc.toml: keep_bytes", "much"]),
        ("unused_days = 0", {}, {}, ["cachesvc.toml: unused_days", "1"]),
        ("quota_bytes = -1", {}, {}, ["cachesvc.toml: quota_bytes", "-1"]),
        ("", {"CACHESVC_SERVER_FIRST_TOKEN": "csv_short"}, {}, ["CACHESVC_SERVER_FIRST_TOKEN"]),
        ('bucket_prefix = "eu"', {}, {}, ["bucket_prefix", "bucket is not"]),
        ("gc_seconds = 5", {}, {}, ["cachesvc.toml: gc_seconds", "0 for never", "5"]),
        (
            "keep_byte = 1",
            {},
            {},
            ["keep_byte: there is no such setting", "did you mean keep_bytes?"],
        ),
        (
            "",
            {"CACHESVC_SERVER_KEEP_BYTES": "abc"},
            {},
            ["keep_bytes (CACHESVC_SERVER_KEEP_BYTES): 'abc' is no size", "such as 200GiB"],
        ),
        (
            "",
            {"CACHESVC_SERVER_KEEPBYTES": "3"},
            {},
            [
                "CACHESVC_SERVER_KEEPBYTES: there is no such setting",
                "did you mean CACHESVC_SERVER_KEEP_BYTES?",
            ],
        ),
        (
            "",
            {"CACHESVC_KEEP_BYTES": "3"},
            {},
            ["CACHESVC_KEEP_BYTES: there is no such setting", "did you mean CACHESVC_SERVER_KEEP_BYTES?"],
        ),
        ('tls_key = "/k"', {}, {}, ["tls_certificate", "without the other"]),
        (
            'oidc_issuer = "https://i.example"\npublic_url = "https://c.example"',
            {},
            {},
            [
                "oidc_issuer: is set, and oidc_client_id, oidc_roles, "
                "oidc_client_secret or oidc_client_secret_file are not"
            ],
        ),
        ("oidc_session_seconds = 600", {}, {}, ["oidc_session_seconds: is set", "oidc_issuer", "are not"]),
        (f"{LOGIN}\n{ROLES}\n", {"CACHESVC_SERVER_WEB_PAGE": "false"}, {}, ["web_page is off"]),
        (f'{LOGIN}oidc_client_secret_file = "f"\n{ROLES}', {}, {}, ["both are set"]),
        (f'{LOGIN}oidc_scopes = "email"\n{ROLES}', {}, {}, ["oidc_scopes: openid is one of them"]),
        (f"{LOGIN}[oidc_roles]\na = 'owner in team'", {}, {}, ["oidc_roles", "admin in NAMESPACE", "owner"]),
        (f"{LOGIN}[oidc_roles]\na = 'read in A/b'", {}, {}, ["oidc_roles: not a namespace"]),
        (f"{LOGIN}[oidc_roles]\na = 3", {}, {}, ["oidc_roles: 'a': a text such as"]),
        (LOGIN, {"CACHESVC_SERVER_OIDC_ROLES": "admins"}, {}, ["OIDC_ROLES", "a JSON object, such as"]),
        ('public_url = "http://c.example"', {}, {}, ["public_url: expected https://"]),
        ('public_url = "https://c.example/x"', {}, {}, ["public_url: expected no path"]),
        ('oidc_issuer = "i.example"', {}, {}, ["oidc_issuer: expected http(s)://host"]),
        ('oidc_issuer = "http://i.example"', {}, {}, ["oidc_issuer: expected https://"]),
    ],
)
def test_a_bad_setting_is_named_with_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    variables: dict,
    arguments: dict,
    words: list[str],
) -> None:
    file = tmp_path / "cachesvc.toml"
    file.write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as error:
        read_settings(file, **arguments)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_variables_that_kubernetes_sets_beside_a_service_are_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pod beside a service of the name ``cachesvc`` or ``cachesvc-server`` has these."""
    for service in ("CACHESVC", "CACHESVC_SERVER", "CACHESVC_SERVER_2"):
        monkeypatch.setenv(f"{service}_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv(f"{service}_SERVICE_PORT", "80")
        monkeypatch.setenv(f"{service}_SERVICE_PORT_HTTP", "80")
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:80")
        monkeypatch.setenv(f"{service}_PORT_80_TCP", "tcp://10.0.0.1:80")
        monkeypatch.setenv(f"{service}_PORT_80_TCP_ADDR", "10.0.0.1")
    assert read_settings() == Settings()
    monkeypatch.setenv("CACHESVC_PORT", "9000")
    with pytest.raises(InvalidRequest, match="did you mean CACHESVC_SERVER_PORT"):
        read_settings()


def test_settings_that_belong_together_may_come_from_two_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cachesvc.toml"
    file.write_text('bucket = "b"\ngrace_seconds = 9000\n')
    monkeypatch.setenv("CACHESVC_SERVER_LINK_SECONDS", "8000")
    settings = read_settings(file)
    assert (settings.grace_seconds, settings.link_seconds) == (9000, 8000)


@pytest.mark.parametrize("value", ["tcp://10.0.0.1:80", "udp://[fd00::1]:53"])
def test_a_port_that_kubernetes_sets_leaves_the_file_its_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    file = tmp_path / "cachesvc.toml"
    file.write_text("port = 9000")
    monkeypatch.setenv("CACHESVC_SERVER_PORT", value)
    assert (read_settings(file).port, read_settings(file, port=3).port, read_settings().port) == (
        9000,
        3,
        8750,
    )
    line = ignored_line()
    assert line is not None and value in line
    monkeypatch.setenv("CACHESVC_SERVER_PORT", "80x")
    assert ignored_line() is None
    with pytest.raises(InvalidRequest, match="CACHESVC_SERVER_PORT"):
        read_settings(file)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgres+psycopg"])
def test_each_form_of_the_database_url_names_postgresql(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("CACHESVC_SERVER_DATABASE", f"{scheme}://me:postgres://x@host/name?sslmode=require")
    assert read_settings().database == "postgresql://me:postgres://x@host/name?sslmode=require"


@pytest.mark.parametrize("name", ["database", "redis", "first_token", "online_key"])
def test_a_value_that_holds_a_password_is_not_printed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"CACHESVC_SERVER_{name.upper()}", "mysql://me:hunter2@host")
    with pytest.raises(InvalidRequest, match=name) as error:
        read_settings()
    assert "hunter2" not in str(error.value)


def test_a_login_at_a_provider_has_its_roles_from_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cachesvc.toml"
    file.write_text(f"{LOGIN}{ROLES}\nml = ['read in team', 'admin in lab']")
    settings = read_settings(file)
    assert settings.oidc_roles == {"admins": ["admin in *"], "ml": ["read in team", "admin in lab"]}
    assert (settings.oidc_claim, settings.oidc_session_seconds) == ("groups", 3600)
    file.write_text(LOGIN)
    monkeypatch.setenv("CACHESVC_SERVER_OIDC_ROLES", '{"a": "read in team"}')
    monkeypatch.setenv("CACHESVC_SERVER_PUBLIC_URL", "https://C.example:443/")
    settings = read_settings(file)
    assert (settings.oidc_roles, settings.public_url) == ({"a": ["read in team"]}, "https://c.example")


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.toml: No such file"):
        read_settings(tmp_path / "none.toml")
