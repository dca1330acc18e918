"""Calls the routes of a registry, with a method for each."""

from __future__ import annotations

import email.utils
import time
import urllib.parse
from dataclasses import dataclass

from ..wire import codec
from ..wire.digest import Digest
from ..wire.names import Name
from ..wire.requests.protocol import (
    AGE_HEADER,
    ANSWER_SECONDS,
    EntrySummary,
    InfoAnswer,
    ResolveAnswer,
    ResolveRequest,
    WhoAmI,
)
from ..wire.requests.reports import ReportAnswer, ReportRequest
from .calls import MAX_RESOLVE_BYTES, Calls, parse_record


@dataclass(frozen=True, slots=True)
class Probe:
    """Describes a registry that answers, for people. ``skew``: this machine's clock minus the registry's, in
    seconds (the ``Date`` header has whole ones); ``None`` if the registry sent none."""

    info: InfoAnswer
    whoami: WhoAmI | None
    seconds: float
    skew: float | None


class Remote(Calls):
    """Calls one registry: a method for each route that a service or a command asks. `uploads.Uploads` and
    `claims.Claims` have those that change something.

    Thread-safe, see `Calls`.
    """

    def info(self, deadline: float | None = None) -> InfoAnswer:
        """Asks whether this is a registry, and of which version."""
        return self.call("GET", "/v1/info", None, InfoAnswer, deadline=deadline)

    def whoami(self, deadline: float | None = None) -> WhoAmI:
        """Asks about the token in use. Raises ``Unauthenticated`` if the registry does not know it."""
        return self.call("GET", "/v1/whoami", None, WhoAmI, deadline=deadline)

    def probe(self, deadline: float | None = None) -> Probe:
        """Calls ``info`` and, with a token, ``whoami``, and measures the time of one call."""
        began = time.monotonic()
        answer = self.exchange.call("GET", "/v1/info", None, deadline=deadline, idempotent=True)
        seconds, now = time.monotonic() - began, time.time()
        date = answer.headers.get("Date")
        date_fields = email.utils.parsedate_tz(date) if date else None
        skew = now - seconds / 2 - email.utils.mktime_tz(date_fields) if date_fields else None
        info = self.parse(InfoAnswer, answer.body)
        return Probe(info, self.whoami(deadline) if self.exchange.has_token else None, seconds, skew)

    def resolve(self, request: ResolveRequest, deadline: float | None = None) -> ResolveAnswer:
        """Asks for the revisions that fit. Their envelopes are not checked yet."""
        return parse_resolved(self.resolve_bytes(request, deadline)[0])

    def resolve_bytes(
        self, request: ResolveRequest, deadline: float | None = None, limit: int = MAX_RESOLVE_BYTES
    ) -> tuple[bytes, float]:
        """Returns the bytes of the answer, ``limit`` at most, and their age, for the node's cache of answers;
        ``parse_resolved`` reads them.

        The age: seconds since the registry read its index, at most. An answer without an age is as old as a
        registry's answer may be.
        """
        body, began = codec.canonical(request), time.monotonic()
        answer = self.exchange.call(
            "POST", "/v1/resolve", body, deadline=deadline, idempotent=True, limit=limit
        )
        text = answer.headers.get(AGE_HEADER, "") or ""
        in_registry = float(text) if text.isascii() and text.isdigit() and len(text) < 10 else ANSWER_SECONDS
        return answer.body, time.monotonic() - began + in_registry

    def entries(
        self,
        name: Name,
        deadline: float | None = None,
        limit: int = MAX_RESOLVE_BYTES,
        trunk: bool = False,
    ) -> tuple[EntrySummary, ...]:
        """Lists the entries under a name and tag, all or the trunk's; reads ``limit`` bytes at most."""
        of_trunk = {"trunk": "true"} if trunk else {}
        query = urllib.parse.urlencode({"name": name.name, "tag": name.tag, **of_trunk})
        path = f"/v1/namespaces/{name.namespace}/entries?{query}"
        return self.rows(path, EntrySummary, deadline, limit)

    def entry(self, entry: Digest, deadline: float | None = None) -> EntrySummary:
        """Asks for the head of one entry. Raises ``NotFound`` if the entry has none."""
        return self.call("GET", f"/v1/entries/{entry}", None, EntrySummary, deadline=deadline)

    def report(self, request: ReportRequest, deadline: float | None = None) -> ReportAnswer:
        """Reports the outcome of a start; never sends it twice. Raises ``Forbidden`` for a token that only
        reads."""
        return self.call("POST", "/v1/reports", request, ReportAnswer, deadline=deadline, idempotent=False)


def parse_resolved(raw: bytes) -> ResolveAnswer:
    """Parses the bytes of ``Remote.resolve_bytes``. Raises ``ProtocolMismatch``."""
    return parse_record(ResolveAnswer, raw, MAX_RESOLVE_BYTES)
