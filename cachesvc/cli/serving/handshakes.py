"""Count a connection from its first moment where this server ends TLS: asyncio tells a protocol of it only
after the handshake, for which a client may take its time."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from typing import Any

from .connections import BoundedProtocol

BUFFER_BYTES = 32 << 10
"""Bytes of the buffer of each connection, which it has from its beginning; asyncio's own takes 256 KiB."""


class CountedHandshake(sslproto.SSLProtocol):
    """TLS of one connection, whose handshake has the bounds of its connection."""

    max_size = BUFFER_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        waiting = self._app_protocol
        super().connection_made(transport)
        if isinstance(waiting, BoundedProtocol):
            waiting.handshake_begun(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        waiting: Any = self._app_protocol
        super().connection_lost(exc)
        if isinstance(waiting, BoundedProtocol):
            waiting.handshake_lost()


def count_handshakes() -> None:
    """Have every TLS connection of this process counted. asyncio has no other place to say so."""
    sslproto.SSLProtocol = CountedHandshake  # type: ignore[misc]
