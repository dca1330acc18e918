"""Decides where the links in a registry's answers may lead.

A link leads to the store that has the packs. A registry that was taken over could name any address instead,
and have each service send a request into its own machine or network. So a link leads to a public address, to
an address of the same kind as the registry's own, or where CACHESVC_ALLOW_LINKS says.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from ..wire.errors import Untrusted
from .origin import Network, Origin
from .proxy import proxy_for

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses that are assigned as global unicast ones (RFC 4291)."""
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
"""IPv6 addresses of documents (RFC 9637), which older Pythons do not know."""
_METADATA = (ipaddress.IPv4Network("168.63.129.16/32"), ipaddress.IPv4Network("192.0.0.0/24"))
"""Addresses at which clouds answer their own machines (Azure, Oracle), and which are no link-local ones."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses whose last 32 bits are an IPv4 address (RFC 6052)."""


class LinkPolicy:
    """Decides for the links of one registry. ``allowed``: networks to which links may lead in any case."""

    def __init__(self, registry: Origin, allowed: Sequence[Network] = ()) -> None:
        self._registry = registry
        self._allowed = tuple(allowed)
        self._peers: set[str] = set()

    def record_peer(self, origin: Origin, address: str) -> None:
        """Records an address at which the registry was reached; does nothing for another origin."""
        if origin == self._registry:
            self._peers.add(address)

    def check_scheme(self, origin: Origin) -> None:
        """Raises ``Untrusted`` for plain HTTP where the registry is reached over HTTPS."""
        if self._registry.scheme == "https" and origin.scheme == "http":
            raise Untrusted(f"{self._registry}: links from https to {origin}")

    def check_literal(self, origin: Origin) -> None:
        """Raises ``Untrusted`` if the origin is written as an address that is not permitted: for a proxy,
        which searches names itself."""
        try:
            address = socket.inet_ntoa(socket.inet_aton(origin.host))  # also 2130706433 and 0x7f.1
        except OSError:
            address = origin.host
        try:
            ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return
        self._require(origin, [address])

    def permitted(self, origin: Origin, addresses: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Returns the rows of ``getaddrinfo`` to which a connection may be made.

        Raises ``Untrusted`` if none is permitted. The registry itself may have any address.
        """
        if origin == self._registry:
            return addresses
        return [row for row in addresses if self._permits(str(row[4][0]))] or self._require(
            origin, [str(row[4][0]) for row in addresses]
        )

    def _require(self, origin: Origin, addresses: list[str]) -> list[tuple[Any, ...]]:
        refused = [address for address in addresses if not self._permits(address)]
        if origin != self._registry and refused:
            raise Untrusted(
                f"{self._registry}: links to {origin}, the {address_kind(refused[0])} address {refused[0]}",
                f"if that is right, set CACHESVC_ALLOW_LINKS={refused[0]}",
            )
        return []

    def _permits(self, address: str) -> bool:
        written, reached = ipaddress.ip_address(address.partition("%")[0]), _address(address)
        if any(written in network or reached in network for network in self._allowed):
            return True
        kind = address_kind(address)
        return kind == "public" or kind in self._registry_kinds()

    def _registry_kinds(self) -> set[str]:
        """Returns the kinds of the registry's addresses: of those that answered, else the one kind that its
        name has. The addresses behind a proxy are not known."""
        if self._peers:
            return {address_kind(peer) for peer in self._peers}
        if proxy_for(self._registry) is not None:
            return set()
        try:
            rows = socket.getaddrinfo(self._registry.host, self._registry.port, type=socket.SOCK_STREAM)
        except OSError:
            return set()
        kinds = {address_kind(str(row[4][0])) for row in rows}
        return kinds if len(kinds) == 1 else set()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the address that a connection reaches: the IPv4 address inside an IPv6 one."""
    ip = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def address_kind(text: str) -> str:
    """Returns ``public``, ``loopback``, ``link-local`` or ``private``."""
    ip = _address(text)
    if ip.is_loopback or ip.is_unspecified:  # Linux connects 0.0.0.0 to this machine
        return "loopback"
    if ip.is_link_local or any(ip in network for network in _METADATA):
        return "link-local"
    if ip.is_multicast or not ip.is_global:
        return "private"
    # What Python takes for global beside 2000::/3 are forms that networks translate, and site-local ones.
    return "private" if ip.version == 6 and (ip not in _UNICAST or ip in _EXAMPLES) else "public"
