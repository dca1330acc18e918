"""Says at which address an agent gives packs, and to which addresses it goes for some."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from cachesvc_client.http.links import address_kind
from cachesvc_client.http.origin import Network


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Holds what an operator named. ``address``: an IP address of this machine, at which packs are given.
    ``port``: the same one for all agents. ``networks``: where peers may be."""

    address: str
    port: int
    networks: tuple[Network, ...]

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for an address to which this agent itself would not go."""
        if not 0 < self.port < 65536:
            raise ValueError("port: 1 to 65535, the same for all agents")
        if not self.permits(self.address):
            raise ValueError(f"{self.address} is in none of the networks of peers, {self.network_text}")

    @property
    def network_text(self) -> str:
        """Returns the networks for people."""
        return ", ".join(map(str, self.networks))

    def permits(self, address: str) -> bool:
        """Returns whether a peer may have this address.

        A loopback or link-local address, such as that of a cloud's metadata service, is permitted only by a
        network that is all loopback or all link-local: so ``0.0.0.0/0`` does not permit it.
        """
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        if ip.is_unspecified or ip.is_multicast:
            return False
        kind = address_kind(address)
        local = kind in ("loopback", "link-local")
        return any(
            ip in network and (not local or kind == _kind_of_all(network)) for network in self.networks
        )


def _kind_of_all(network: Network) -> str:
    """Returns the kind of all addresses of a network that are loopback or link-local; else ``mixed``."""
    return "loopback" if network.is_loopback else "link-local" if network.is_link_local else "mixed"
