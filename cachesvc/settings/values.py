"""Check and convert the values of single settings."""

from __future__ import annotations

import json
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from pydantic_settings import (
    EnvSettingsSource,
)

from cachesvc.domain.people import parse_grant
from cachesvc_client.http.origin import split_url
from cachesvc_client.wire.durations import parse_duration
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Namespace

SERVICE_PORT = re.compile(r"(tcp|udp|sctp)://[^/]*")
"""Matches what Kubernetes sets ``CACHESVC_SERVER_PORT`` to, in the pods beside a service ``cachesvc-server``
(https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables)."""
_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+psycopg)?(?=://)")
"""Matches the schemes with which people write the URL of PostgreSQL; libpq takes the first two."""


class Variables(EnvSettingsSource):
    """Reads the variables, less the one that Kubernetes sets."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        if SERVICE_PORT.fullmatch(str(values.get("port", ""))):
            del values["port"]
        return values


def postgresql_url(url: str) -> str:
    """Return the URL with the scheme that SQLAlchemy has; its message must not hold the password."""
    if url and not _POSTGRESQL.match(url):
        raise ValueError("expected postgresql://user:password@host/name, or postgres://…")
    return _POSTGRESQL.sub("postgresql", url, count=1)


def absolute_path(path: Path) -> Path:
    return path.expanduser().absolute()


def zero_or_ten(seconds: int) -> int:
    if seconds != 0 and seconds < 10:
        raise ValueError("10 or more, or 0 for never")
    return seconds


def encrypted_url(url: str) -> str:
    if url:
        try:
            origin, _ = split_url(url, "the address")
        except InvalidRequest as error:
            raise ValueError(error.hint) from None
        if origin.scheme != "https" and not origin.loopback:
            raise ValueError("expected https://…, or http on loopback")
    return url


def origin_url(url: str) -> str:
    if not url:
        return url
    origin, path = split_url(encrypted_url(url), "the address")
    if path.strip("/"):
        raise ValueError("expected no path, such as https://cache.example: the page is at /ui there")
    return str(origin)


def scope_list(scopes: str) -> str:
    if "openid" not in scopes.split():
        raise ValueError("openid is one of them: without it there is no ID token")
    return " ".join(scopes.split())


def networks(value: Any) -> Any:
    """Return networks of addresses: a list of the file, or the text of a variable."""
    listed = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError("addresses or networks, such as 10.0.0.7 or 10.1.0.0/16")
    found = [ip_network(one) for one in listed]
    if any(not network.prefixlen for network in found):
        raise ValueError("not every address: then whatever a client writes into a header would count")
    return [str(network) for network in found]


def roles_by_value(value: Any) -> Any:
    """Returns the roles by the claim's values: a table of the file, or the JSON of a variable."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError('a JSON object, such as {"cache-admins": "admin in *"}') from None
    if not isinstance(value, dict):
        raise ValueError('a table, such as {"cache-admins": "admin in *"}')
    roles = {}
    for name, grants in value.items():
        listed = [grants] if isinstance(grants, str) else grants
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ValueError(f"{name[:80]!r}: a text such as 'read in team', or a list of them")
        roles[name] = [str(parse_grant(one)) for one in listed]
    return roles


def ages_by_namespace(value: Any) -> Any:
    """Return seconds by namespace: a table of the file, or the text of a variable."""
    if isinstance(value, str):
        value = dict(part.partition("=")[::2] for part in value.replace(",", " ").split())
    if not isinstance(value, dict) or not all(isinstance(age, str) for age in value.values()):
        raise ValueError("ages by namespace, such as *=180d, team=30d")
    return {
        place if place == "*" else Namespace(place): int(parse_duration(age)) for place, age in value.items()
    }
