"""Fuzzes the login file and the ``CACHESVC_*`` variables."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packing import KEY

from cachesvc_client.config.login import Login
from cachesvc_client.config.settings import Config
from cachesvc_client.wire.errors import InvalidRequest

from .choices import TEXTS, json_bytes, mutate, mutate_bytes
from .parsers import Check, Parser, described

URL = "https://cache.example:8443/team"
LOGIN = {
    "format": "cachesvc.login/1",
    "default": URL,
    "registries": {
        URL: {
            "token": "csv_" + "a" * 43,
            "trusted_keys": [str(KEY.public), f"team={KEY.public}"],
            "signing_key": "/home/user/signing.key",
        },
        "http://127.0.0.1:8000": {},
    },
}
GOOD = {
    "CACHESVC_URL": URL,
    "CACHESVC_TOKEN": "csv_token",
    "CACHESVC_NAME": "team/bert:v2,team/gpt",
    "CACHESVC_BUNDLE": "/srv/bundle.cachesvc",
    "CACHESVC_TAG_FALLBACK": "stable,latest",
    "CACHESVC_LANE": "pr-1",
    "CACHESVC_MODE": "read",
    "CACHESVC_DEADLINE": "2.5",
    "CACHESVC_STRICT": "1",
    "CACHESVC_TRUSTED_KEYS": f"team={KEY.public} *={KEY.public}",
    "CACHESVC_STORE": "/var/cache/cachesvc",
    "CACHESVC_SIGNING_KEY": "~/signing.key",
    "CACHESVC_CANARY": "0",
    "CACHESVC_REPORT": "off",
    "CACHESVC_REQUIRE": "builder=https://github.com/org/app/*, ref=refs/heads/main",
}
MODES = (0o600, 0o600, 0o644, 0o640, 0o620, 0o602, 0o666, 0o777)
VALUES = ("nan", "inf", "-0", "1e999", "http://u:p@h/", "https://h:99999", "http://[::1", "~", "read,write")


@contextmanager
def open_login(folder: Path) -> Iterator[Check]:
    """Yields the check of login files."""
    path = folder / "cachesvc/login.json"
    path.parent.mkdir()
    environ = {"XDG_CONFIG_HOME": str(folder)}

    def one(choose: random.Random) -> str:
        value: Any = mutate(choose, LOGIN) if choose.randint(0, 7) else LOGIN
        data, mode = json_bytes(choose, value), choose.choice(MODES)
        path.write_bytes(data)
        path.chmod(mode)
        try:
            login = Login.read(environ)
        except InvalidRequest as error:
            return described(error)
        assert not mode & 0o022, "a file that others may write says whom to trust"
        assert login.format == "cachesvc.login/1"
        for stored in login.registries.values():
            assert all(key.key for key in stored.trusted_keys)
        json.loads(data)  # what was accepted is JSON for other readers too
        return _read(environ)

    yield one


@contextmanager
def open_config(folder: Path) -> Iterator[Check]:
    """Yields the check of variables."""

    def one(choose: random.Random) -> str:
        environ = {"HOME": str(folder), **GOOD}
        for name in choose.sample(sorted(GOOD), choose.randint(1, 3)):
            kind = choose.randint(0, 3)
            if kind == 0:
                environ[name] = choose.choice((*TEXTS, *VALUES))
            elif kind == 1:
                environ[name] = GOOD[choose.choice(sorted(GOOD))]
            else:
                environ[name] = mutate_bytes(choose, GOOD[name].encode()).decode(errors="surrogateescape")
        return _read(environ)

    yield one


def _read(environ: dict[str, str]) -> str:
    try:
        config = Config.read(environ)
    except InvalidRequest as error:
        return described(error)
    if config.url is not None:
        assert config.url.startswith(("http://", "https://")) and "@" not in config.url, config.url
        assert config.url.isascii() and config.url.isprintable() and " " not in config.url, config.url
    if config.token is not None:
        assert 0 < len(config.token) <= 512
        assert all("!" <= char <= "~" for char in config.token), "a token that breaks a header"
    assert math.isfinite(config.deadline) and 0 <= config.deadline <= 3600, "deadline"
    for path in (config.bundle, config.store, config.signing_key):
        assert path is None or "\0" not in str(path), "a path that open() raises ValueError for"
    for path in (config.bundle, config.store):
        assert path is None or path.is_absolute(), "a relative path"
    for name in config.names:
        assert "/" not in name.namespace and ".." not in str(name).split("/"), "name"
    return "accepted"


PARSERS = (Parser("login", open_login, 9), Parser("config", open_config, 9))
