"""Sends a request of a registry's routes and reads the record in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..wire import codec
from ..wire.digest import Digest
from ..wire.errors import ProtocolMismatch
from .downloads import Downloads
from .exchange import MAX_ANSWER_BYTES, Exchange
from .origin import Network

R = TypeVar("R")
S = TypeVar("S")

MAX_RESOLVE_BYTES = 192 << 20
"""Largest number of bytes of a resolve's answer, which carries whole envelopes."""
RETRIES = 2
"""Number of tries after the first one."""
_OTHER_VERSION = "client and registry may be of different versions; is it a registry?"
"""Hint of the error for an answer that does not parse."""


class Calls:
    """Calls one registry. Thread-safe; after a fork the child opens connections of its own.

    ``timeout``: seconds in all for one call, retries included, unless the call has a ``deadline`` (a value of
    ``time.monotonic()``). A transfer of packs has no such limit: it fails when no byte moved for ``timeout``
    seconds. The system searches host names, and nothing can interrupt it. ``downloads``: see `Downloads`.
    ``allow_links``: networks to which links may lead in any case, see `http.links`. ``paced``: the caller
    pauses between its calls by itself, so that they go on, however many have failed.

    Raises ``InvalidRequest`` for a malformed URL and for a token that would go over plain HTTP to another
    machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 10.0,
        connect_timeout: float = 3.0,
        retries: int = RETRIES,
        allow_links: Sequence[Network] = (),
        paced: bool = False,
    ) -> None:
        self.exchange = Exchange(
            url,
            token,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            allow_links=allow_links,
            paced=paced,
        )
        self.downloads = Downloads(self.exchange)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections. The object may be used again."""
        self.exchange.connections.clear()

    @property
    def url(self) -> str:
        """Returns the registry's URL, without a slash at its end."""
        return self.exchange.url

    @property
    def timeout(self) -> float:
        """Returns the seconds that a call may take in all."""
        return self.exchange.timeout

    @property
    def token(self) -> str | None:
        """Returns the token that the next call sends."""
        return self.exchange.token

    def replace_token(self, token: str | None) -> None:
        """Sends another token from the next call on, such as one that lives longer."""
        self.exchange.replace_token(token)

    @property
    def identity(self) -> Digest:
        """Returns the digest of registry and token, for data that only clients with the same rights may
        share."""
        return self.exchange.identity

    def call(
        self,
        method: str,
        path: str,
        record: object | None,
        answer_type: type[R],
        *,
        deadline: float | None = None,
        idempotent: bool = True,
    ) -> R:
        """Sends one request with a record as its body (or without one), and returns the record in the answer.

        Raises the ``CacheSvcError`` of the registry's answer, ``Unavailable`` if there is no answer in time,
        ``ProtocolMismatch`` if the answer is not of this version, or not of a registry.
        """
        body = None if record is None else codec.canonical(record)
        answer = self.exchange.call(method, path, body, deadline=deadline, idempotent=idempotent)
        return self.parse(answer_type, answer.body)

    def rows(
        self, path: str, item: type[R], deadline: float | None = None, limit: int = MAX_RESOLVE_BYTES
    ) -> tuple[R, ...]:
        """Sends a GET whose answer is a list of records, of ``limit`` bytes at most. Raises as ``call``
        does."""
        answer = self.exchange.call("GET", path, None, deadline=deadline, idempotent=True, limit=limit)
        try:
            rows = codec.parse_json(answer.body, limit=limit, what="the listing")
            if not isinstance(rows, list):
                raise ValueError("the listing: a list is expected")
            return tuple(codec.build(item, row, f"row {index}") for index, row in enumerate(rows))
        except ValueError as error:
            raise ProtocolMismatch(f"{self.exchange.origin}: {error}", _OTHER_VERSION) from None

    def tell(
        self, method: str, path: str, record: object | None = None, deadline: float | None = None
    ) -> None:
        """Sends a request whose answer has no body. It may be sent twice. Raises as ``call`` does."""
        body = None if record is None else codec.canonical(record)
        self.exchange.call(method, path, body, deadline=deadline, idempotent=True)

    def raw(self, path: str, limit: int, deadline: float | None = None) -> bytes:
        """Returns the exact bytes of a GET's answer, at most ``limit`` of them. Raises as ``call`` does."""
        return self.exchange.call("GET", path, None, deadline=deadline, idempotent=True, limit=limit).body

    def parse(self, record: type[R], body: bytes, limit: int = MAX_ANSWER_BYTES) -> R:
        """Return the record in an answer's body. Raise ``ProtocolMismatch``, which names the registry."""
        try:
            return parse_record(record, body, limit)
        except ProtocolMismatch as error:
            raise ProtocolMismatch(f"{self.exchange.origin}: {error.message}", error.hint) from None


def parse_record(record: type[R], body: bytes, limit: int) -> R:
    try:
        return codec.build(record, codec.parse_json(body, limit=limit, what="the answer"))
    except ValueError as error:
        raise ProtocolMismatch(str(error), _OTHER_VERSION) from None
