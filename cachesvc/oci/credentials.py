"""Reads the credentials of a registry where docker's tools keep them: ``config.json``."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cachesvc_client.bundle.seal import strict_base64
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import InvalidRequest

_MAX_BYTES = 1 << 20
"""Largest number of bytes of a configuration that is read."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Holds the name of a user and a password, or a token in its place."""

    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """Returns the value of an ``Authorization`` header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """Holds the credentials of one registry. ``origin``: where they are from, for messages."""

    credentials: Credentials | None
    origin: str


def find_credentials(host: str, environ: Mapping[str, str] | None = None) -> CredentialSource:
    """Returns the credentials for a registry (``host[:port]``) in ``$DOCKER_CONFIG/config.json``, else
    ``~/.docker/config.json``. A process without either is normal.

    Credential helpers are not run: they are programs that a configuration names. Raises ``InvalidRequest``
    with the name of the file for one that cannot be read.
    """
    environ = os.environ if environ is None else environ
    path = _path(environ)
    if path is None or not path.is_file():
        return CredentialSource(None, "no docker configuration")
    value = _read(path)
    auths = value.get("auths", {})
    for name, entry in auths.items() if isinstance(auths, dict) else ():
        if _host(name) == host and isinstance(entry, dict) and entry.get("auth"):
            return CredentialSource(_decode(entry["auth"], f"{path}: auths: {name[:120]}"), str(path))
    helpers = value.get("credHelpers")
    if value.get("credsStore") or (isinstance(helpers, dict) and host in helpers):
        return CredentialSource(None, f"{path} names a credential helper, which is not run")
    return CredentialSource(None, f"{path} has none for {host}")


def _path(environ: Mapping[str, str]) -> Path | None:
    if environ.get("DOCKER_CONFIG"):
        return Path(environ["DOCKER_CONFIG"]) / "config.json"
    return Path(environ["HOME"]) / ".docker" / "config.json" if environ.get("HOME") else None


def _read(path: Path) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            value = codec.parse_json(file.read(_MAX_BYTES + 1), limit=_MAX_BYTES, what=str(path))
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InvalidRequest(str(error), "docker login writes this file") from None
    return value if isinstance(value, dict) else {}


def _host(name: str) -> str:
    """Returns ``host[:port]`` of a key of ``auths``, which may be a URL."""
    return name.partition("://")[2].partition("/")[0] if "://" in name else name.partition("/")[0]


def _decode(auth: object, where: str) -> Credentials:
    try:
        if not isinstance(auth, str):
            raise ValueError
        username, colon, password = strict_base64(auth).decode().partition(":")
        if not colon or not username:
            raise ValueError
    except ValueError:
        raise InvalidRequest(
            f"{where}: auth is not base64 of user:password", "run docker login again"
        ) from None
    return Credentials(username, password)
