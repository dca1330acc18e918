"""Ask the registry that this one mirrors."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachesvc.schema.mirrors import HeadsPage
from cachesvc_client.http.connection import Body
from cachesvc_client.http.exchange import Answer, Exchange
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Forbidden,
    ProtocolMismatch,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES, PackRecord
from cachesvc_client.wire.requests.protocol import WhoAmI, pack_path

CONNECT_SECONDS = 3.0
"""Seconds that a connection to the upstream may take."""
CALL_SECONDS = 10.0
"""Seconds that a call may take, and for which a transfer may be silent."""
TOKEN_SECONDS = 3.0
"""Seconds that the question about a token may take: a request of a service waits for it."""
SILENT_SECONDS = 10.0
"""Seconds after a look of the mirror without an answer for which no one asks, at most: services do not wait
for it each by themselves. The next look that has an answer ends it."""

_MEANWHILE = "what is mirrored is served meanwhile; try again"


class Upstream:
    """One registry that is mirrored. Thread-safe.

    ``token``: the mirror's own, with the role ``read``. Tokens of clients go to ``url`` and nowhere else.
    Raises ``InvalidRequest`` for a malformed address, and for a token that would go over plain HTTP to
    another machine.
    """

    def __init__(
        self, url: str, token: str, root: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``root``: bytes of the pinned root. ``clock``: seconds, monotonic."""
        self.remote = Remote(url, token, timeout=CALL_SECONDS, connect_timeout=CONNECT_SECONDS, retries=1)
        self.root, self._clock, self._silent_until = root, clock, 0.0

    @property
    def url(self) -> str:
        """The address of the registry."""
        return self.remote.url

    def heads(self, after: Digest | None, mark: str | None) -> HeadsPage:
        """Returns a page of the heads behind an entry; an empty one if ``mark`` is still the listing's."""
        fields = {"after": after, "mark": mark}
        query = urllib.parse.urlencode({name: value for name, value in fields.items() if value is not None})
        return self.remote.call("GET", f"/v1/heads?{query}".rstrip("?"), None, HeadsPage)

    def envelope(self, revision: Digest) -> bytes:
        """Returns the envelope of a revision, unchecked. Raises ``NotFound``."""
        return self.remote.raw(f"/v1/revisions/{revision}/envelope", MAX_ENVELOPE_BYTES)

    def pack(self, revision: Digest, pack: PackRecord) -> Iterator[bytes]:
        """Yields exactly as many bytes as the pack has, unchecked. A broken transfer goes on where it
        ended."""
        return self.remote.downloads.download(pack_path(revision), 0, pack.size, pack=pack.digest)

    def whoami(self, secret: str) -> WhoAmI:
        """Asks what a client's token may do. Raises ``Unauthenticated`` if it counts nowhere, and
        ``Unavailable`` if the upstream does not say."""
        try:
            with self._unless_silent(), Remote(self.url, secret, timeout=TOKEN_SECONDS, retries=0) as remote:
                return remote.whoami()
        except Forbidden as error:
            raise Unauthenticated(error.message, error.hint) from None
        except (ProtocolMismatch, TooMany) as error:  # a proxy answers in its place, or it has no time
            raise Unavailable(error.message, error.hint) from None

    def forward(
        self, method: str, path: str, secret: str, body: Body | None, length: int | None, seconds: float
    ) -> Answer:
        """Sends a client's request on, with the client's token, once. Raises the error of the answer, and
        ``Unavailable`` if there is none in ``seconds`` (a transfer: if no more bytes move). That says nothing
        of the upstream: the client chose what it waits for."""
        exchange = Exchange(self.url, secret, timeout=seconds, connect_timeout=CONNECT_SECONDS, retries=0)
        streamed = callable(body)
        deadline = None if streamed else time.monotonic() + seconds
        with self._unless_silent():
            try:
                return exchange.call(
                    method,
                    path,
                    body,
                    deadline=deadline,
                    idempotent=False,
                    length=length,
                    transfer=streamed,
                )
            finally:
                exchange.connections.clear()

    def note_look(self, *, answered: bool) -> None:
        """Notes whether a look of the mirror had an answer. No other call decides that the upstream is
        silent: clients choose how long their own calls take."""
        self._silent_until = 0.0 if answered else self._clock() + SILENT_SECONDS

    @contextmanager
    def _unless_silent(self) -> Iterator[None]:
        """Asks nothing for some seconds after a look without an answer."""
        if self._clock() < self._silent_until:
            raise self.silent("it did not answer a moment ago")
        try:
            yield
        except Unavailable as error:
            raise self.silent(error.message) from None

    def silent(self, why: str) -> Unavailable:
        """Returns the error for an upstream that does not answer."""
        if self.url in why and "does not answer" in why:
            return Unavailable(why, _MEANWHILE)
        return Unavailable(
            f"the registry that this one mirrors, {self.url}, does not answer: {why}",
            _MEANWHILE,
        )


def is_silence(error: CacheSvcError) -> bool:
    """Returns whether an error says that the upstream gave no answer of its own."""
    return error.retry or isinstance(error, ProtocolMismatch)
