"""Splits URLs into origin and path."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass

from ..wire.errors import InvalidRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Origin:
    """Names the end of a connection. Two URLs of one origin have equal ones."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Returns the value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Returns whether the host's name is this machine's; ``Pool`` looks at the address once more after
        connecting."""
        return self.host == "localhost" or is_loopback(self.host)


_PORTS = {"http": 80, "https": 443}
"""Supported schemes and their standard ports."""


def split_url(url: str, what: str) -> tuple[Origin, str]:
    """Returns the origin, and the path with its query. Raises ``InvalidRequest`` that names ``what``."""
    try:
        if not url.isascii() or any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
            raise ValueError
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
            raise ValueError
        origin = Origin(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme])
    except ValueError:
        raise InvalidRequest(
            f"{what}: {without_secrets(url)[:120]!r} is not one", "expected http(s)://host[:port]/…"
        ) from None
    return origin, parts.path + (f"?{parts.query}" if parts.query else "")


def is_loopback(address: str) -> bool:
    """Returns whether an address is of this machine alone; a name is not."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    ipv4 = getattr(ip, "ipv4_mapped", None)
    return (ipv4 or ip).is_loopback


def without_secrets(url: str) -> str:
    """Returns a URL for a message: without user and password, and without the query, which may be a
    signature. The URL may be malformed."""
    return re.sub(r"(?s)\A([A-Za-z][A-Za-z0-9+.-]*://)?.*@", r"\1…@", url.split("?")[0].split("#")[0])


def parse_networks(text: str) -> tuple[Network, ...]:
    """Returns the networks that a text lists with commas, such as ``10.0.0.0/8, fd00::1``. Raises
    ``ValueError`` with what is allowed."""
    try:
        return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(","))
    except ValueError:
        raise ValueError("allowed: addresses and networks with commas, such as 10.0.0.0/8") from None
