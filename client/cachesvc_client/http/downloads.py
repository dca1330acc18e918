"""Downloads packs, by a link to their store or from the registry itself, and resumes broken transfers."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Iterator

from ..wire.digest import Digest
from ..wire.errors import (
    CacheSvcError,
    Corrupt,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    Unavailable,
    Untrusted,
)
from ..wire.manifest.records import PackRecord
from ..wire.requests.protocol import ResolvedRevision, pack_path
from .connection import Response
from .exchange import MAX_ERROR_BYTES, Answer, Exchange, quote_header
from .origin import Origin, split_url
from .timed import Clock

_log = logging.getLogger("cachesvc")
MAX_REDIRECTS = 3
"""Largest number of redirects that one request follows."""


class Downloads:
    """Downloads packs over the connections of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def fetch(
        self, revision: ResolvedRevision, pack: PackRecord, offset: int = 0, *, deadline: float | None = None
    ) -> Iterator[bytes]:
        """Yields the bytes of a revision's pack from ``offset``, by the link in the answer.

        Where that fails for any reason (a store that this machine cannot reach, a link that has expired),
        asks the registry itself for the rest. Otherwise does the same as :meth:`download`.
        """
        path = pack_path(revision.revision)
        if self._exchange.locate(revision.pack_url)[0] != self._exchange.origin:
            try:
                for chunk in self.download(
                    revision.pack_url, offset, pack.size, pack=pack.digest, deadline=deadline, retries=0
                ):
                    offset += len(chunk)
                    yield chunk
                return
            except CacheSvcError as error:
                _log.info("%s; asking the registry itself for the pack", error)
        else:
            path = revision.pack_url
        yield from self.download(path, offset, pack.size, pack=pack.digest, deadline=deadline)

    def download(
        self,
        pack_url: str,
        offset: int,
        size: int,
        *,
        pack: Digest | None = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> Iterator[bytes]:
        """Yields the bytes ``offset`` to ``size`` of a pack of ``size`` bytes, in pieces; exactly that many.

        ``pack_url``: a path of the registry, which gets the token, or any other URL, which never does. A
        broken transfer resumes where it stopped, as long as each try brings some bytes. ``pack`` guards a
        resumed transfer (``If-Range``). The caller checks the digest. Raises ``NotFound`` (resolve once
        more), ``Corrupt`` if the other side offers more or other bytes than the request asks for,
        ``Untrusted`` for an address to which a link may not lead (`http.links`), ``Unavailable``.
        """
        origin, path = self._exchange.locate(pack_url)
        self._exchange.links.check_scheme(origin)
        retries = self._exchange.retries if retries is None else retries
        failures = 0
        while offset < size:
            before = offset
            try:
                for chunk in self._range(origin, path, offset, size, pack, deadline):
                    offset += len(chunk)
                    yield chunk
            except CacheSvcError as error:
                failures = 0 if offset > before else failures + 1
                if not error.retry or failures > retries or not self._exchange.pause(failures, 0.0, deadline):
                    raise

    def _range(
        self, origin: Origin, path: str, offset: int, size: int, pack: Digest | None, deadline: float | None
    ) -> Iterator[bytes]:
        """Sends one GET. Follows redirects, without the token, and never from https to http."""
        clock = Clock(deadline, self._exchange.timeout)
        for followed in range(MAX_REDIRECTS + 1):
            headers = self._exchange.headers(origin, token=not followed)
            if offset:
                headers["Range"] = f"bytes={offset}-{size - 1}"
                if pack is not None and origin == self._exchange.origin:  # an S3 ETag is not our digest
                    headers["If-Range"] = f'"{pack}"'
            connections = self._exchange.connections
            with (
                self._exchange.breaker(origin).guard(origin),
                connections.request(origin, "GET", path, headers, None, clock, reuse=True) as response,
            ):
                if response.status in (200, 206):
                    skip = _bytes_to_skip(response, offset, size, origin)
                    self._exchange.breaker(origin).record_answer()
                    yield from response.stream(skip, size - offset)
                    return
                if response.status not in (301, 302, 303, 307, 308):
                    raise self._error(origin, response)
                origin, path = follow_redirect(origin, path, response.headers.get("Location"))
        raise Unavailable(f"{origin}: more than {MAX_REDIRECTS} redirects")

    def _error(self, origin: Origin, response: Response) -> CacheSvcError:
        body = response.body(MAX_ERROR_BYTES)
        if origin == self._exchange.origin:
            try:
                self._exchange.check(Answer(response.status, response.headers, body))
            except CacheSvcError as error:
                return error
        if response.status >= 500 or response.status in (408, 425, 429):
            return Unavailable(f"{origin}: the store answered with status {response.status}")
        if response.status == 416:
            return Corrupt(f"{origin}: the pack there is shorter than the registry says")
        if response.status in (403, 404, 410):  # an expired signature, or collected meanwhile
            return NotFound(
                f"{origin}: the pack is not there (status {response.status})", "resolve once more"
            )
        return ProtocolMismatch(f"{origin}: status {response.status} for a pack")


def _bytes_to_skip(response: Response, offset: int, size: int, origin: Origin) -> int:
    """Returns how many bytes of the answer to skip: none if the other side honoured the range, ``offset`` if
    it sends all again."""
    length = response.length
    if response.status == 206:
        content_range = f"bytes {offset}-{size - 1}/{size}"
        if response.headers.get("Content-Range", "") != content_range:
            offered = quote_header(response.headers.get("Content-Range"))
            raise Corrupt(f"{origin}: asked for {content_range}, offered {offered}")
        expected = size - offset
    else:
        expected = size
    if length is not None and length != expected:
        raise Corrupt(
            f"{origin}: a pack of {size} bytes is expected, {length} of {expected} bytes are offered"
        )
    return 0 if response.status == 206 else offset


def follow_redirect(origin: Origin, path: str, location: str | None) -> tuple[Origin, str]:
    """Returns where a redirect leads. Raises ``ProtocolMismatch`` for what is no URL, and ``Untrusted`` for a
    way from https to http."""
    base = f"{origin}{path}"
    try:
        target, path = split_url(urllib.parse.urljoin(base, location or "").split("#")[0], "redirect")
    except (InvalidRequest, ValueError):
        raise ProtocolMismatch(f"{origin}: a redirect to {quote_header(location)}") from None
    if origin.scheme == "https" and target.scheme == "http":
        raise Untrusted(f"{origin}: redirects from https to {target}")
    return target, path
