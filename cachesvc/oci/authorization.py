"""Answers the challenges of a registry: Basic, or a token of the realm that the registry names.

Source: https://distribution.github.io/distribution/spec/auth/token/. The registry is not trusted: a realm
is an address that it chooses, so `http.links` decides where the realm may be, and it is never one of plain
HTTP where the registry is reached by HTTPS.
"""

from __future__ import annotations

import re
import time
import urllib.parse

from cachesvc_client.http.connection import Pool
from cachesvc_client.http.links import LinkPolicy
from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Forbidden,
    InvalidRequest,
    ProtocolMismatch,
    Unauthenticated,
    Unavailable,
)

from .credentials import CredentialSource

TOKEN_SECONDS = 30.0
"""Seconds within which a realm must answer."""
_MAX_ANSWER_BYTES = 256 << 10
"""Largest number of bytes of a realm's answer."""
_PARAMETER = re.compile(r'([A-Za-z]+)="([^"\\\x00-\x1f]{0,2000})"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")


class Authorization:
    """Makes the ``Authorization`` header for one registry. Keeps the last one that a challenge led to."""

    def __init__(self, origin: Origin, source: CredentialSource, pool: Pool, links: LinkPolicy) -> None:
        self._origin, self._source, self._pool, self._links = origin, source, pool, links
        self.header: str | None = None

    def answer(self, challenge: str | None) -> None:
        """Sets ``header`` as the challenge of a refused request demands.

        Raises ``Unauthenticated`` if there are no credentials or the realm refuses them, and
        ``ProtocolMismatch`` for a challenge that is not understood.
        """
        if (
            self._source.credentials is not None
            and self._origin.scheme == "http"
            and not self._origin.loopback
        ):
            raise InvalidRequest(
                f"{self._origin}: asks for credentials, and none go over plain HTTP to another machine",
                "use HTTPS",
            )
        scheme, _, rest = (challenge or "").partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        if scheme.lower() == "basic":
            self.header = self._basic()
        elif scheme.lower() == "bearer" and parameters.get("realm"):
            self.header = "Bearer " + self._token(parameters)
        else:
            raise ProtocolMismatch(
                f"{self._origin}: status 401, and no challenge that is understood",
                "is it the registry of the reference?",
            )

    def refusal(self) -> Unauthenticated:
        """Returns the error for credentials that are missing or wrong."""
        if self._source.credentials is None:
            return Unauthenticated(
                f"{self._origin}: asks for credentials, and there are none ({self._source.origin})",
                f"docker login {self._origin.netloc}, or --username NAME --password-stdin",
            )
        return Unauthenticated(
            f"{self._origin}: refuses the credentials of {self._source.credentials.username} "
            f"({self._source.origin})",
            f"docker login {self._origin.netloc}, or --username NAME --password-stdin",
        )

    def _basic(self) -> str:
        if self._source.credentials is None:
            raise self.refusal()
        return self._source.credentials.basic

    def _token(self, parameters: dict[str, str]) -> str:
        try:
            realm, path = split_url(parameters["realm"], f"{self._origin}: the realm of its tokens")
        except InvalidRequest as error:
            raise ProtocolMismatch(error.message) from None
        self._links.check_scheme(realm)
        query = urllib.parse.urlencode(
            [(name, parameters[name]) for name in ("service", "scope") if parameters.get(name)]
        )
        path = f"{path or '/'}{'&' if '?' in path else '?'}{query}" if query else path or "/"
        headers = {"Accept-Encoding": "identity", "Host": realm.netloc}
        if self._source.credentials is not None:
            headers["Authorization"] = self._source.credentials.basic
        clock = Clock(time.monotonic() + TOKEN_SECONDS, TOKEN_SECONDS)
        with self._pool.request(realm, "GET", path, headers, None, clock, reuse=True) as response:
            body = response.body(_MAX_ANSWER_BYTES)
            status = response.status
        if status != 200:
            raise self._refused(realm, status)
        return self._read_token(realm, body)

    def _refused(self, realm: Origin, status: int) -> CacheSvcError:
        if status in (400, 401):
            return self.refusal()
        if status == 403:
            return Forbidden(
                f"{realm}: gives no token for this repository", "the account may not do this there"
            )
        if status >= 500 or status in (408, 425, 429):
            return Unavailable(f"{realm}: no token, status {status}")
        return ProtocolMismatch(f"{realm}: no token, status {status}")

    def _read_token(self, realm: Origin, body: bytes) -> str:
        try:
            value = codec.parse_json(body, limit=_MAX_ANSWER_BYTES, what="token")
        except ValueError:
            value = None
        token = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ProtocolMismatch(f"{realm}: its answer holds no token")
        return token
