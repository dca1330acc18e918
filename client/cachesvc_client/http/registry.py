"""Calls the routes of a registry, with a method for each."""

from __future__ import annotations

import email.utils
import itertools
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..bundle.file import bundle_head
from ..wire import codec
from ..wire.claims import ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest
from ..wire.digest import Digest
from ..wire.errors import ClaimLost, NotFound, ProtocolMismatch
from ..wire.names import Name, Namespace
from ..wire.peers import PeersAnswer, PeersRequest
from ..wire.protocol import (
    AGE_HEADER,
    ANSWER_SECONDS,
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    EntrySummary,
    InfoAnswer,
    NameSummary,
    ResolveAnswer,
    ResolveRequest,
    StoredAnswer,
    TrustAnswer,
    UploadAnswer,
    UploadRequest,
    WhoAmI,
)
from ..wire.reports import ReportAnswer, ReportRequest
from .downloads import Downloads
from .exchange import MAX_ANSWER_BYTES, Exchange
from .origin import Network
from .uploads import file_chunks

R = TypeVar("R")

MAX_RESOLVE_BYTES = 192 << 20
"""Largest number of bytes of a resolve's answer, which carries whole envelopes."""
RETRIES = 2
"""Number of tries after the first one."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Describes a registry that answers, for people. ``skew``: this machine's clock minus the registry's, in
    seconds (the ``Date`` header has whole ones); ``None`` if the registry sent none."""

    info: InfoAnswer
    whoami: WhoAmI | None
    seconds: float
    skew: float | None


class Remote:
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
        self._exchange = Exchange(
            url,
            token,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            allow_links=allow_links,
            paced=paced,
        )
        self.downloads = Downloads(self._exchange)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections. The object may be used again."""
        self._exchange.connections.clear()

    @property
    def url(self) -> str:
        """Returns the registry's URL, without a slash at its end."""
        return self._exchange.url

    @property
    def timeout(self) -> float:
        """Returns the seconds that a call may take in all."""
        return self._exchange.timeout

    @property
    def token(self) -> str | None:
        """Returns the token that the next call sends."""
        return self._exchange.token

    def replace_token(self, token: str | None) -> None:
        """Sends another token from the next call on, such as one that lives longer."""
        self._exchange.replace_token(token)

    @property
    def identity(self) -> Digest:
        """Returns the digest of registry and token, for data that only clients with the same rights may
        share."""
        return self._exchange.identity

    # Calls, one for each route.

    def info(self, deadline: float | None = None) -> InfoAnswer:
        """Asks whether this is a registry, and of which version."""
        return self.call("GET", "/v1/info", None, InfoAnswer, deadline=deadline)

    def whoami(self, deadline: float | None = None) -> WhoAmI:
        """Asks about the token in use. Raises ``Unauthenticated`` if the registry does not know it."""
        return self.call("GET", "/v1/whoami", None, WhoAmI, deadline=deadline)

    def probe(self, deadline: float | None = None) -> Probe:
        """Calls ``info`` and, with a token, ``whoami``, and measures the time of one call."""
        began = time.monotonic()
        answer = self._exchange.call("GET", "/v1/info", None, deadline=deadline, idempotent=True)
        seconds, now = time.monotonic() - began, time.time()
        date = answer.headers.get("Date")
        date_fields = email.utils.parsedate_tz(date) if date else None
        skew = now - seconds / 2 - email.utils.mktime_tz(date_fields) if date_fields else None
        info = self._parse(InfoAnswer, answer.body, MAX_ANSWER_BYTES)
        return Probe(info, self.whoami(deadline) if self._exchange.has_token else None, seconds, skew)

    def resolve(self, request: ResolveRequest, deadline: float | None = None) -> ResolveAnswer:
        """Asks for the revisions that fit. Their envelopes are not checked yet."""
        return parse_resolved(self.resolve_bytes(request, deadline)[0])

    def resolve_bytes(
        self, request: ResolveRequest, deadline: float | None = None, limit: int = MAX_RESOLVE_BYTES
    ) -> tuple[bytes, float]:
        """Returns the bytes of the answer, ``limit`` at most, and their age, for the node's cache of answers;
        ``parse_resolved`` reads them.

        The age: seconds since the registry read its index, at most. An answer of a registry that sends no
        age (an older version) is as old as a registry's answer may be.
        """
        body, began = codec.canonical(request), time.monotonic()
        answer = self._exchange.call(
            "POST", "/v1/resolve", body, deadline=deadline, idempotent=True, limit=limit
        )
        text = answer.headers.get(AGE_HEADER, "") or ""
        in_registry = float(text) if text.isascii() and text.isdigit() and len(text) < 10 else ANSWER_SECONDS
        return answer.body, time.monotonic() - began + in_registry

    def trust_update(
        self, root: int, snapshot: int, targets: int, deadline: float | None = None
    ) -> dict[str, bytes]:
        """Asks for the trust metadata that a client with these versions lacks; returns the files by name,
        unchecked."""
        path = f"/v1/trust/update?root={root}&snapshot={snapshot}&targets={targets}"
        answer = self.call("GET", path, None, TrustAnswer, deadline=deadline)
        return {name: text.encode("utf-8", "surrogatepass") for name, text in answer.files.items()}

    def trust_file(self, name: str, limit: int, deadline: float | None = None) -> bytes:
        """Returns one file of the trust metadata, of ``limit`` bytes at most, unchecked."""
        path = f"/v1/trust/{urllib.parse.quote(name, safe='')}"
        return self._exchange.call("GET", path, None, deadline=deadline, idempotent=True, limit=limit).body

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

    def peers(self, request: PeersRequest, deadline: float | None = None) -> PeersAnswer:
        """Says which packs this agent of a node can give, and asks where it finds others. Raises ``NotFound``
        from a registry that does not help with that."""
        return self.call("POST", "/v1/peers", request, PeersAnswer, deadline=deadline)

    def report(self, request: ReportRequest, deadline: float | None = None) -> ReportAnswer:
        """Reports the outcome of a start; never sends it twice. Raises ``Forbidden`` for a token that only
        reads."""
        return self.call("POST", "/v1/reports", request, ReportAnswer, deadline=deadline, idempotent=False)

    def begin_upload(self, request: UploadRequest, deadline: float | None = None) -> UploadAnswer:
        """Takes a lease. ``abort`` gives it back; otherwise it ends by itself."""
        return self.call("POST", "/v1/uploads", request, UploadAnswer, deadline=deadline, idempotent=False)

    def put_pack(
        self, upload: UploadAnswer, pack: Path | BinaryIO, size: int, deadline: float | None = None
    ) -> StoredAnswer:
        """Streams ``size`` bytes from a file (or from the position of an open one); memory does not grow with
        the size. A retry begins at the start, as the registry allows. Raises ``Corrupt`` if the file ends
        early."""
        if not upload.pack_path.startswith("/") or upload.pack_path.startswith("//"):
            raise ProtocolMismatch(f"{self._exchange.origin}: an upload goes to the registry itself")
        start = 0 if isinstance(pack, Path) else pack.tell()
        answer = self._exchange.call(
            "PUT",
            upload.pack_path,
            lambda: file_chunks(pack, start, size),
            deadline=deadline,
            idempotent=True,
            length=size,
            transfer=True,
        )
        return self._parse(StoredAnswer, answer.body, MAX_ANSWER_BYTES)

    def put_bundle(
        self,
        request: BundleRequest,
        envelope: bytes,
        pack: Path | BinaryIO,
        size: int,
        deadline: float | None = None,
    ) -> CommitAnswer:
        """Does ``begin_upload``, ``put_pack`` and ``commit`` in one request. A retry sends the whole request
        again, which is a success. Raises ``NotFound`` from a registry that knows only the three."""
        start = 0 if isinstance(pack, Path) else pack.tell()
        head = bundle_head(envelope)
        answer = self._exchange.call(
            "POST",
            f"/v1/bundles?{_query(request)}",
            lambda: itertools.chain([head], file_chunks(pack, start, size)),
            deadline=deadline,
            idempotent=True,
            length=len(head) + size,
            transfer=True,
        )
        return self._parse(CommitAnswer, answer.body, MAX_ANSWER_BYTES)

    def claim(self, request: ClaimRequest, deadline: float | None = None) -> ClaimAnswer:
        """Takes a claim, or waits for it as long as the request says; the ``deadline`` must be later than
        that."""
        return self.call("POST", "/v1/claims", request, ClaimAnswer, deadline=deadline)

    def renew_claim(self, claim: ClaimRef, deadline: float | None = None) -> ClaimAnswer:
        """Says that the holder still compiles. Raises ``ClaimLost`` if the claim has another holder."""
        return self.call("POST", "/v1/claims/renew", claim, ClaimAnswer, deadline=deadline)

    def release_claim(self, request: ClaimRelease, deadline: float | None = None) -> None:
        """Gives a claim back. A claim that is over is a success."""
        with suppress(ClaimLost):
            self.tell("POST", "/v1/claims/release", request, deadline)

    def commit(self, upload: str, request: CommitRequest, deadline: float | None = None) -> CommitAnswer:
        """Makes the uploaded revision the head. May be sent twice: the same manifest again is a success."""
        path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}/commit"
        return self.call("POST", path, request, CommitAnswer, deadline=deadline)

    def abort(self, upload: str, deadline: float | None = None) -> None:
        """Gives a lease back. An upload that does not exist any more is a success."""
        with suppress(NotFound):
            path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}"
            self._exchange.call("DELETE", path, None, deadline=deadline, idempotent=True)

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
        answer = self._exchange.call(method, path, body, deadline=deadline, idempotent=idempotent)
        return self._parse(answer_type, answer.body, MAX_ANSWER_BYTES)

    def names(self, namespace: Namespace, limit: int = MAX_RESOLVE_BYTES) -> tuple[NameSummary, ...]:
        """Lists the names of a namespace's trunk with their tags; reads ``limit`` bytes at most."""
        return self.rows(f"/v1/namespaces/{namespace}/names?trunk=true", NameSummary, limit=limit)

    def rows(
        self, path: str, item: type[R], deadline: float | None = None, limit: int = MAX_RESOLVE_BYTES
    ) -> tuple[R, ...]:
        """Sends a GET whose answer is a list of records, of ``limit`` bytes at most. Raises as ``call``
        does."""
        answer = self._exchange.call("GET", path, None, deadline=deadline, idempotent=True, limit=limit)
        try:
            rows = codec.parse_json(answer.body, limit=limit, what="the listing")
            if not isinstance(rows, list):
                raise ValueError("the listing: a list is expected")
            return tuple(codec.build(item, row, f"row {index}") for index, row in enumerate(rows))
        except ValueError as error:
            raise ProtocolMismatch(f"{self._exchange.origin}: {error}", _OTHER_VERSION) from None

    def tell(
        self, method: str, path: str, record: object | None = None, deadline: float | None = None
    ) -> None:
        """Sends a request whose answer has no body. It may be sent twice. Raises as ``call`` does."""
        body = None if record is None else codec.canonical(record)
        self._exchange.call(method, path, body, deadline=deadline, idempotent=True)

    def raw(self, path: str, limit: int, deadline: float | None = None) -> bytes:
        """Returns the exact bytes of a GET's answer, at most ``limit`` of them. Raises as ``call`` does."""
        return self._exchange.call("GET", path, None, deadline=deadline, idempotent=True, limit=limit).body

    def _parse(self, record: type[R], body: bytes, limit: int) -> R:
        try:
            return _record(record, body, limit)
        except ProtocolMismatch as error:
            raise ProtocolMismatch(f"{self._exchange.origin}: {error.message}", error.hint) from None


def _query(request: BundleRequest) -> str:
    fields: dict[str, object] = {name: getattr(request, name) for name in _QUERY_FIELDS}
    if request.claim is not None:
        fields |= {"claim": request.claim.key, "holder": request.claim.holder, "fence": request.claim.fence}
    return urllib.parse.urlencode({name: value for name, value in fields.items() if value is not None})


_QUERY_FIELDS = ("namespace", "name", "lane", "head", "deed")
"""Fields of a `BundleRequest` that its query carries by their own names."""


def parse_resolved(raw: bytes) -> ResolveAnswer:
    """Parses the bytes of ``Remote.resolve_bytes``. Raises ``ProtocolMismatch``."""
    return _record(ResolveAnswer, raw, MAX_RESOLVE_BYTES)


_OTHER_VERSION = "client and registry may be of different versions; is it a registry?"
"""Hint of the error for an answer that does not parse."""


def _record(record: type[R], body: bytes, limit: int) -> R:
    try:
        return codec.build(record, codec.parse_json(body, limit=limit, what="the answer"))
    except ValueError as error:
        raise ProtocolMismatch(str(error), _OTHER_VERSION) from None
