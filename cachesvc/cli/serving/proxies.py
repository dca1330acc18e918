"""Read the address of a client from what the proxy that connects for it says."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

_HEADER = b"x-forwarded-for"


class Proxies:
    """The proxies that the operator names, as addresses or networks."""

    def __init__(self, named: Iterable[str]) -> None:
        self._networks = [ip_network(one) for one in named]

    def has(self, address: str) -> bool:
        """Return whether one of them has this address."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped  # as where this server listens for both versions
        return any(found in network for network in self._networks)

    def before(self, application: Any) -> Any:
        """Return an application that sees the address of a client in the place of its proxy's.

        Only the last address of ``X-Forwarded-For`` counts: what the proxy itself has seen. Those before it
        are another's words, also where they are like a proxy's: a client may have an address of its network.
        """

        async def forwarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["client"] and self.has(scope["client"][0]):
                lines = [value for name, value in scope["headers"] if name == _HEADER]
                last = lines[-1].decode("latin-1").rpartition(",")[2].strip() if lines else ""
                with suppress(ValueError):  # else the proxy's own address stays
                    scope["client"] = (str(ip_address(last)), 0)
            await application(scope, receive, send)

        return forwarded
