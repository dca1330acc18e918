"""Run uvicorn on a socket until a signal, with a certificate that may be renewed."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from cachesvc.settings import Settings

    from .tls import Certificate

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all addresses of this machine, each with its loopback address."""
MAX_HEAD_BYTES = 16 << 10
"""Bytes of a request's head, at most: each connection may have one in memory."""
_CERTIFICATE_TICKS = 100
"""Ticks of uvicorn between two looks at the certificate's files: ten ticks a second, so ten seconds."""


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound and accepts nothing yet. Raises ``InvalidRequest``, or ``Unavailable``
    if the port is taken."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio turns Nagle's delay off: without, each answer takes 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise InvalidRequest(f"--host {host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}", "choose another with --port"
        ) from None
    return listener


def url_of(listener: socket.socket, scheme: str) -> str:
    """Returns the URL by which this machine reaches the server. A wildcard address becomes loopback: clients
    send no token to a wildcard."""
    host, port = listener.getsockname()[:2]
    host = WILDCARDS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def run(
    application: object,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    ending: Callable[[], None],
    settings: Settings,
    certificate: Certificate | None,
) -> None:
    """Serves until SIGTERM or SIGINT. Calls ``ready`` when requests are accepted, and ``ending`` at the
    signal; requests under way then have ``settings.shutdown_seconds`` to end."""
    import uvicorn

    from .connections import Connections, affordable, protocol_class
    from .handshakes import count_handshakes
    from .proxies import Proxies

    failed: list[CacheSvcError] = []

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            if certificate and self.config.ssl and counter % _CERTIFICATE_TICKS == 0:
                certificate.renew(self.config.ssl)
            return await super().on_tick(counter)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                try:
                    ready()
                except CacheSvcError as error:
                    failed.append(error)
                    self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending()
            await super().shutdown(sockets)

    most = affordable(settings.connections)
    per_address = min(most, settings.address_connections or most)
    proxies = Proxies(settings.proxies)
    count_handshakes()
    config = uvicorn.Config(
        proxies.before(application),
        loop="asyncio",  # whose handshakes are counted
        http=protocol_class(Connections(most, per_address, settings.header_seconds, proxies=proxies)),
        ws="none",  # what upgrades leaves the bounds of connections
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        proxy_headers=False,  # uvicorn believes a client whose address is in a proxy's network
        backlog=min(2048, max(64, most // 4)),  # as many are accepted before the first is judged
        log_level="error",  # a stranger writes no line with each request that is none
        log_config=None,  # uvicorn logs where this program logs
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=settings.shutdown_seconds,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    # uvicorn sends itself the signal again at its end: for this program that is a normal end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = Server(config)
    server.run([listener])
    if failed:
        raise failed[0]
    if not server.started:
        raise Unavailable("the server did not start", "see the log above")
