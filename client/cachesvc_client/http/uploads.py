"""Uploads a revision: its pack is read from a file while it is sent."""

from __future__ import annotations

import itertools
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..bundle.file import bundle_head
from ..wire.errors import Corrupt, NotFound, ProtocolMismatch, StorageFull
from ..wire.requests.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    StoredAnswer,
    UploadAnswer,
    UploadRequest,
)
from .calls import Calls
from .timed import CHUNK

_QUERY_FIELDS = ("namespace", "name", "lane", "head", "deed")
"""Fields of a `BundleRequest` that its query carries by their own names."""


class Uploads:
    """The routes by which a revision comes to one registry."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def begin(self, request: UploadRequest, deadline: float | None = None) -> UploadAnswer:
        """Takes a lease. ``abort`` gives it back; otherwise it ends by itself."""
        return self._calls.call(
            "POST", "/v1/uploads", request, UploadAnswer, deadline=deadline, idempotent=False
        )

    def put_pack(
        self, upload: UploadAnswer, pack: Path | BinaryIO, size: int, deadline: float | None = None
    ) -> StoredAnswer:
        """Streams ``size`` bytes from a file (or from the position of an open one); memory does not grow with
        the size. A retry begins at the start, as the registry allows. Raises ``Corrupt`` if the file ends
        early."""
        if not upload.pack_path.startswith("/") or upload.pack_path.startswith("//"):
            raise ProtocolMismatch(f"{self._calls.exchange.origin}: an upload goes to the registry itself")
        start = 0 if isinstance(pack, Path) else pack.tell()
        answer = self._calls.exchange.call(
            "PUT",
            upload.pack_path,
            lambda: file_chunks(pack, start, size),
            deadline=deadline,
            idempotent=True,
            length=size,
            transfer=True,
        )
        return self._calls.parse(StoredAnswer, answer.body)

    def put_bundle(
        self,
        request: BundleRequest,
        envelope: bytes,
        pack: Path | BinaryIO,
        size: int,
        deadline: float | None = None,
    ) -> CommitAnswer:
        """Does ``begin``, ``put_pack`` and ``commit`` in one request. A retry sends the whole request
        again, which is a success."""
        start = 0 if isinstance(pack, Path) else pack.tell()
        head = bundle_head(envelope)
        answer = self._calls.exchange.call(
            "POST",
            f"/v1/bundles?{_query(request)}",
            lambda: itertools.chain([head], file_chunks(pack, start, size)),
            deadline=deadline,
            idempotent=True,
            length=len(head) + size,
            transfer=True,
        )
        return self._calls.parse(CommitAnswer, answer.body)

    def commit(self, upload: str, request: CommitRequest, deadline: float | None = None) -> CommitAnswer:
        """Makes the uploaded revision the head. May be sent twice: the same manifest again is a success."""
        path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}/commit"
        return self._calls.call("POST", path, request, CommitAnswer, deadline=deadline)

    def abort(self, upload: str, deadline: float | None = None) -> None:
        """Gives a lease back. An upload that does not exist any more is a success."""
        with suppress(NotFound):
            path = f"/v1/uploads/{urllib.parse.quote(upload, safe='')}"
            self._calls.exchange.call("DELETE", path, None, deadline=deadline, idempotent=True)


def _query(request: BundleRequest) -> str:
    fields: dict[str, object] = {name: getattr(request, name) for name in _QUERY_FIELDS}
    if request.claim is not None:
        fields |= {"claim": request.claim.key, "holder": request.claim.holder, "fence": request.claim.fence}
    return urllib.parse.urlencode({name: value for name, value in fields.items() if value is not None})


def file_chunks(pack: Path | BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Yields ``size`` bytes of a file, or of an open file from ``start``. Raises ``Corrupt`` if the file ends
    early and ``StorageFull`` if it cannot be read."""
    try:
        if isinstance(pack, Path):
            with open(pack, "rb") as file:
                yield from _exactly(file, size)
        else:
            pack.seek(start)
            yield from _exactly(pack, size)
    except OSError as error:
        raise StorageFull(f"{pack if isinstance(pack, Path) else 'the pack'}: {error.strerror}") from None


def _exactly(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            raise Corrupt(f"the pack ends {size} bytes early")
        size -= len(chunk)
        yield chunk
