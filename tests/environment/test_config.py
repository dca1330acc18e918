"""Test how variables override the login file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.login import Login, RegistryLogin, login, login_path
from cachesvc_client.config.settings import Config
from cachesvc_client.config.urls import registry_url
from cachesvc_client.wire.errors import InvalidRequest, StorageFull, Unauthenticated, Unavailable

KEY = SigningKey.generate().public
OTHER = SigningKey.generate().public
URL = "https://cache.example"


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def store(home, **more):
    Login({URL: RegistryLogin("stored", (KEY,), "/keys/signing.key")}, default=URL).write(home)
    return {**home, **more}


def test_without_settings_nothing_is_set():
    assert Config.read({}) == Config()


def test_all_variables_are_read():
    config = Config.read(
        {
            "CACHESVC_URL": "HTTPS://Cache.Example:443/x/".replace("HTTPS", "https"),
            "CACHESVC_TOKEN": "csv_1",
            "CACHESVC_NAME": "team/bert:v1, team/vit",
            "CACHESVC_BUNDLE": "/bundles",
            "CACHESVC_TAG_FALLBACK": "latest",
            "CACHESVC_LANE": "pr-1",
            "CACHESVC_MODE": "readwrite",
            "CACHESVC_DEADLINE": "2.5",
            "CACHESVC_STRICT": "1",
            "CACHESVC_TRUSTED_KEYS": f"{KEY},{OTHER}",
            "CACHESVC_STORE": "/var/cache/x",
            "CACHESVC_SIGNING_KEY": "/keys/k",
        }
    )
    assert config.url == "https://cache.example/x"
    assert list(map(str, config.names)) == ["team/bert:v1", "team/vit:latest"]
    assert (config.tag_fallback, config.lane, config.mode, config.deadline) == (
        ("latest",),
        "pr-1",
        "readwrite",
        2.5,
    )
    assert (config.strict, config.trusted_keys) == (True, (KEY, OTHER))
    assert (config.store, config.signing_key) == (Path("/var/cache/x"), Path("/keys/k"))
    assert config.bundle == Path("/bundles")
    assert "csv_1" not in repr(config)


def test_a_relative_bundle_begins_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Config.read({"CACHESVC_BUNDLE": "image/one.cachesvc"}).bundle == tmp_path / "image/one.cachesvc"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("CACHESVC_URL", "cache.example", "http"),
        ("CACHESVC_URL", "https://user:pw@host", "without user"),
        ("CACHESVC_URL", "https://host:99999", "port"),
        ("CACHESVC_NAME", "bert", "namespace/name"),
        ("CACHESVC_NAME", "team/bert,,", "namespace/name"),
        ("CACHESVC_BUNDLE", "bund\0les", "absolute"),
        ("CACHESVC_LANE", "PR 1", "lane"),
        ("CACHESVC_MODE", "write", "read, readwrite, off"),
        ("CACHESVC_DEADLINE", "-1", "0 to 3600"),
        ("CACHESVC_DEADLINE", "nan", "0 to 3600"),
        ("CACHESVC_DEADLINE", "ten", "0 to 3600"),
        ("CACHESVC_STRICT", "maybe", "1 or 0"),
        ("CACHESVC_TRUSTED_KEYS", "ed25519:abc", "public key"),
        ("CACHESVC_STORE", "relative", "absolute"),
        ("CACHESVC_TAG_FALLBACK", "a b", "tag"),
    ],
)
def test_a_malformed_value_names_its_variable_and_what_is_allowed(name, value, allowed):
    with pytest.raises(InvalidRequest) as error:
        Config.read({name: value})
    assert str(error.value).startswith(f"{name}:")
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)


def test_a_malformed_token_is_not_shown():
    with pytest.raises(InvalidRequest) as error:
        Config.read({"CACHESVC_TOKEN": "se cret"})
    assert "se cret" not in str(error.value)


def test_empty_variables_count_as_unset(home):
    assert Config.read(store(home, CACHESVC_URL="", CACHESVC_TOKEN=" ")).token == "stored"


def test_a_login_counts_for_its_own_registry_only(home):
    config = Config.read(store(home))
    assert (config.url, config.token, config.trusted_keys) == (URL, "stored", (KEY,))
    assert config.signing_key == Path("/keys/signing.key")
    other = Config.read(store(home, CACHESVC_URL="https://other.example"))
    assert (other.token, other.trusted_keys, other.signing_key) == (None, (), None)
    same = Config.read(store(home, CACHESVC_URL=URL + "/", CACHESVC_TRUSTED_KEYS=OTHER))
    assert (same.token, same.trusted_keys) == ("stored", (OTHER,))


def test_the_login_file_is_private_and_whole(home):
    store(home)
    path = login_path(home)
    assert path == Path(home["HOME"], ".config/cachesvc/login.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text())["format"] == "cachesvc.login/1"
    assert login_path({"XDG_CONFIG_HOME": "/x", **home}) == Path("/x/cachesvc/login.json")
    assert login_path({"XDG_CONFIG_HOME": "relative", **home}) == path


def test_a_missing_home_is_no_error():
    assert login_path({}) is None
    assert Config.read({"HOME": "/nonexistent"}) == Config()
    with pytest.raises(InvalidRequest, match="no home"):
        Login().write({})


def test_a_login_file_that_others_may_write_is_refused(home):
    store(home)
    os.chmod(login_path(home), 0o622)
    with pytest.raises(InvalidRequest, match="others may read or write it"):
        Config.read(home)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"format":"cachesvc.login/9"}', '{"registries":{"x":{"token":1}}}'),
        # tests/security/fuzz found these values, which an earlier version accepted.
        '{"default":"file:///etc"}',
        '{"registries":{"x":{"token":"a\\r\\nHost: b"}}}',
        '{"registries":{"x":{"signing_key":"/a\\u0000b"}}}',
    ],
)
def test_a_malformed_login_file_is_named(home, text):
    store(home)
    login_path(home).write_text(text)
    with pytest.raises(InvalidRequest, match=r"login\.json"):
        Config.read(home)


def test_a_login_file_that_cannot_be_written_is_an_error(home, tmp_path):
    (tmp_path / ".config").write_text("a file")
    with pytest.raises(StorageFull, match=r"login\.json"):
        store(home)


@pytest.mark.parametrize(
    ("url", "spelling"),
    [
        ("http://127.0.0.1:8750/", "http://127.0.0.1:8750"),
        ("https://Host.Example:443", "https://host.example"),
        ("http://[::1]:80/a/b//", "http://[::1]/a/b"),
    ],
)
def test_each_registry_has_one_spelling(url, spelling):
    assert registry_url(url) == spelling
    assert registry_url(spelling) == spelling


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "https://", "https://x?y", "https://x#y", "https://a b", "https://x/\n", "https://-x"],
)
def test_malformed_urls_are_refused(url):
    with pytest.raises(ValueError, match="allowed"):
        registry_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8750", "did you mean http://127.0.0.1:8750?"),
        ("cache.example.com", "did you mean https://cache.example.com?"),
        ("http://127.0.0.1:87500", "a port is at most 65535"),
        ("https://cache.example.com/ui/", "leave /ui out: it is the web page"),
        ("https://cache.example.com/v1", "leave /v1 out: clients add it"),
    ],
)
def test_a_malformed_url_is_told_what_is_wrong_with_it(url, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        registry_url(url)


def test_login_asks_the_registry_before_it_writes(home, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "http"))
    from hostile_servers import INFO, answer, serve

    who = {"token": "t1", "role": "read", "namespace": "team"}
    wrong = {"error": {"code": "unauthenticated", "message": "no such token", "hint": ""}}
    absent = {"error": {"code": "not_found", "message": "there is no such path", "hint": ""}}

    def handler(sock, request):
        if request.path == "/v1/info":
            return answer(sock, INFO)
        if request.path.startswith("/v1/trust/"):
            return answer(sock, absent, 404)  # as a registry before trust metadata does
        return (
            answer(sock, who)
            if request.headers["authorization"] == "Bearer right"
            else answer(sock, wrong, 401)
        )

    key = tmp_path / "key"
    SigningKey.generate().save(key)
    with serve(handler) as server:
        path, probe, _ = login(server.url + "/", "right", (KEY,), key, home)
        assert probe.whoami.role == "read"
        written = path.read_bytes()
        for arguments, error in (
            ((server.url, "wrong"), Unauthenticated),
            ((server.url, "right", ("ed25519:no",)), InvalidRequest),
            ((server.url, "right", (), tmp_path / "absent"), InvalidRequest),
            (("http://127.0.0.1:9", "right"), Unavailable),
            (("http://registry.example", "right"), InvalidRequest),
            (("nonsense", "right"), InvalidRequest),
        ):
            with pytest.raises(error):
                login(*arguments, environ=home)
            assert path.read_bytes() == written
        config = Config.read(home)
        assert (config.url, config.token, config.trusted_keys, config.signing_key) == (
            server.url,
            "right",
            (KEY,),
            key,
        )
        login(server.url, "right", environ=home)  # A value that is not named again is kept.
        assert Config.read(home) == config


def test_an_impossible_path_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="CACHESVC_STORE"):
        Config.read({"HOME": "/home/x", "CACHESVC_STORE": "/store\0"})


@pytest.mark.parametrize("name", ["CACHESVC_TOKEN", "CACHESVC_SIGNER", "CACHESVC_SIGNING_KEY"])
def test_a_message_does_not_show_a_key_that_stands_where_its_file_belongs(name: str) -> None:
    secret = "ed25519-private:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
    with pytest.raises(InvalidRequest) as failure:
        Config.read({name: f"{secret} x"})
    assert name in str(failure.value) and secret not in str(failure.value)
