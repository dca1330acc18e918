"""Check and renew the certificate of ``cachesvc serve``."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest

_log = logging.getLogger("cachesvc.serve")


@dataclass
class Certificate:
    """A certificate chain and its key (PEM). Raises ``InvalidRequest`` that names unusable files."""

    chain: Path
    key: Path
    _seen: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._check()
        self._seen = self._modified()

    def renew(self, context: ssl.SSLContext) -> None:
        """Loads the files for new connections if they have changed and are whole; else keeps the old ones."""
        try:
            now = self._modified()
            if now == self._seen:
                return
            self._check()
            context.load_cert_chain(self.chain, self.key)
        except CacheSvcError as error:  # a half-written file: the next call sees it whole
            _log.warning("%s; the certificate from before stays", error)
            return
        self._seen = now
        _log.info("loaded the certificate in %s", self.chain)

    def _check(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key)
        except ssl.SSLError as error:
            raise InvalidRequest(
                f"tls_certificate {self.chain}, tls_key {self.key}: {error.reason or error}",
                "a PEM certificate chain and the PEM key of its first certificate",
            ) from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _modified(self) -> tuple[int, ...]:
        try:
            return tuple(path.stat().st_mtime_ns for path in (self.chain, self.key))
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(
            f"tls_certificate {self.chain}, tls_key {self.key}: {error.strerror or error}",
            "both must be readable by the server",
        )
