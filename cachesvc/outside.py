"""Decide to which addresses the registry connects where someone else than its operator named them.

An administrator of a namespace names receivers of events and issuers of tokens; the issuer's document names
further addresses. Without this the registry would send their requests into its own machine and network. Every
connection is made to an address that was checked: its name is not looked up again.
"""

from __future__ import annotations

from typing import Any

from cachesvc_client.http.links import LinkPolicy, address_kind
from cachesvc_client.http.origin import Origin
from cachesvc_client.wire.errors import Untrusted

_HINT = "the operator allows it by the setting private_addresses"


class Destinations(LinkPolicy):
    """Permits public addresses alone; with ``private`` every address, also loopback and link-local ones."""

    def __init__(self, *, private: bool = False) -> None:
        super().__init__(Origin("https", "", 443))
        self._private = private

    def check(self, origin: Origin) -> None:
        """Raises ``Untrusted`` for an origin that is written as an address which is not permitted. A name is
        looked up at each connection."""
        if origin.loopback and not self._private:
            raise Untrusted(f"{origin.host} is this machine, to which nothing is sent", _HINT)
        self.check_literal(origin)

    def permitted(self, origin: Origin, addresses: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Returns ``addresses`` if all of them are permitted. Raises ``Untrusted``."""
        return self._require(origin, [str(row[4][0]) for row in addresses]) or addresses

    def _require(self, origin: Origin, addresses: list[str]) -> list[tuple[Any, ...]]:
        for address in addresses:
            kind = address_kind(address)
            if kind != "public" and not self._private:
                raise Untrusted(
                    f"{origin.host} is the {kind} address {address}, to which nothing is sent", _HINT
                )
        return []
