"""A blob store in a bucket of Google Cloud Storage: ``gs://BUCKET[/PREFIX]``.

Google's own client moves the bytes and finds the credentials. HMAC keys are not read: requests carry a token
of the identity that the process runs as, and links are signed with its key, or by IAM where it has none.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import google.auth
import google_crc32c
import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth import iam
from google.auth.credentials import Signing, with_scopes_if_required
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2 import service_account

from cachesvc.blobs.cloud import (
    CLOUD_HINT,
    Exists,
    Stream,
    compare_clocks,
    host_and_path,
    one_line,
    prove_condition,
)
from cachesvc.blobs.store import CHUNK_BYTES, BlobFacts, Unusable, checked_key, clipped, missing
from cachesvc_client.wire.errors import CacheSvcError, NotFound, RangeInvalid, Unavailable

PART_BYTES = 12 << 20
"""Bytes of a request of a put; objects below it need one. A put needs memory for three parts."""
READ_BYTES = 16 << 20
"""Bytes of one request of a read, which are in memory twice at once."""
CONNECTIONS = 64
_MARK = "cachesvc"
"""Metadata of an object: which put wrote it."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""What the client asks for by itself does not reach to IAM, which signs links."""
_CALL = {
    "timeout": (5, 60),
    # Three attempts within seconds: a registry repeats reads itself, and says early that it waits.
    "retry": DEFAULT_RETRY.with_delay(initial=1, maximum=4, multiplier=2).with_timeout(6),
}


def open_url(url: str) -> GoogleBlobStore:
    """Return the store of a URL."""
    # Else the client asks for the bucket's own metadata, by another right, for traces.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return GoogleBlobStore(*host_and_path(url))


class GoogleBlobStore:
    """A `cachesvc.blobs.store.BlobStore` under ``prefix`` of an existing bucket, with links: signed URLs of
    version 4.

    Parts of puts that broke off are visible to nobody, and Google removes them after a week.
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        if not bucket:
            raise Unusable("gs:// names no bucket", "write gs://BUCKET/PREFIX")
        self._name = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        with self._own_errors(""):
            self._credentials = _credentials()
            session = AuthorizedSession(self._credentials)
            session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
            session.hooks["response"].append(self._keep_date)
            # The client wants a project for what concerns buckets alone.
            client = storage.Client(project=None, credentials=self._credentials, _http=session)
            self._bucket = client.bucket(bucket)
        self._date = ""
        self._lock = threading.Lock()
        self._signs: Signing | None = None
        self._proven = False

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        self._blob(key)
        if not self._proven:  # a registry puts an object at its start; a check alone changes nothing
            prove_condition(self, self._write, f"bucket {self._name}", "ifGenerationMatch=0")
            self._proven = True
        return self._write(key, chunks)

    def _write(self, key: str, chunks: Iterable[bytes]) -> int:
        blob, mark, stream = self._blob(key), secrets.token_hex(16), Stream(chunks)
        blob.metadata, blob.chunk_size = {_MARK: mark}, PART_BYTES
        size = stream.ahead(PART_BYTES)
        # The client sends a CRC32C with the bytes, or the last of them; Google stores nothing that differs.
        promise = {"if_generation_match": 0, "checksum": "crc32c", **_CALL}
        try:
            with self._own_errors(key):
                blob.upload_from_file(stream, size=size if size < PART_BYTES else None, **promise)
                return int(blob.size or 0)  # the testbench leaves zeros out
        except CacheSvcError as refusal:
            if stream.broken:
                raise stream.broken from None
            if isinstance(refusal, Unusable):
                raise
            return self._own(key, mark, refusal)

    def _own(self, key: str, mark: str, refusal: CacheSvcError) -> int:
        """Return the size of the object if this put wrote it, and the answer was lost. Raise if there is
        none, or another put's."""
        blob = self._blob(key)
        try:
            with self._own_errors(key):
                blob.reload(**_CALL)
                size, its = int(blob.size or 0), dict(blob.metadata or {}).get(_MARK)
        except CacheSvcError:
            raise refusal from None
        if its != mark:
            raise Exists(f"object {key} exists: another put wrote it, which is kept") from None
        return size

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        blob = self._blob(key)
        if start < 0 or (length is not None and length <= 0):
            clipped(key, self.size(key), start, length)
            return iter(())
        try:
            return self._read(key, blob, start, length, self._part(key, blob, start, length))
        except RangeInvalid:
            if start or self.size(key):
                raise
            return iter(())  # an empty object

    def size(self, key: str) -> int:
        blob = self._blob(key)
        with self._own_errors(key):
            blob.reload(**_CALL)
            return int(blob.size or 0)

    def delete(self, key: str) -> None:
        blob = self._blob(key)
        with contextlib.suppress(NotFound), self._own_errors(key):
            blob.delete(**_CALL)

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        with self._own_errors(""):
            for blob in self._bucket.list_blobs(
                prefix=self._prefix + prefix, fields="items(name,size),nextPageToken", **_CALL
            ):
                yield BlobFacts(blob.name[len(self._prefix) :], int(blob.size or 0))

    def check(self) -> None:
        with self._own_errors(""):
            next(iter(self._bucket.list_blobs(prefix=self._prefix, max_results=1, **_CALL)), None)
        compare_clocks(f"bucket {self._name}", self._date)

    def link(self, key: str, seconds: int) -> str:
        blob = self._blob(key)
        with self._own_errors(key):
            return str(
                blob.generate_signed_url(
                    version="v4", expiration=datetime.timedelta(seconds=seconds), credentials=self._signer()
                )
            )

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._prefix + checked_key(key))

    def _part(self, key: str, blob: Any, start: int, length: int | None) -> bytes:
        """Return the next bytes of a read. After the first ones, ``blob`` names the generation that they are
        of."""
        end = start + min(READ_BYTES, READ_BYTES if length is None else length) - 1
        with self._own_errors(key):
            return bytes(
                blob.download_as_bytes(
                    start=start, end=end, single_shot_download=True, checksum=None, **_CALL
                )
            )

    def _read(self, key: str, blob: Any, start: int, length: int | None, part: bytes) -> Iterator[bytes]:
        checksum = google_crc32c.Checksum() if not start and length is None else None
        while part:
            if checksum:
                checksum.update(part)
            view = memoryview(part)
            for begin in range(0, len(view), CHUNK_BYTES):
                yield bytes(view[begin : begin + CHUNK_BYTES])
            start, length = start + len(part), None if length is None else length - len(part)
            if len(part) < READ_BYTES or length == 0:
                break
            del view, part  # a third of the memory
            try:
                part = self._part(key, blob, start, length)
            except RangeInvalid:  # the parts end with the object
                break
        if checksum and blob.crc32c not in (None, base64.b64encode(checksum.digest()).decode()):
            raise Unavailable(f"object {key}: what was read has not the CRC32C that the store tells")

    def _signer(self) -> Signing:
        """Return what signs links: a key of a service account, or IAM in its name."""
        if isinstance(self._credentials, Signing):
            return self._credentials
        with self._lock:
            if self._signs is None:
                request = functools.partial(Request(), timeout=10)
                if not self._credentials.valid:
                    self._credentials.refresh(request)  # a metadata server tells the account with the token
                account = getattr(self._credentials, "service_account_email", None) or ""
                if "@" not in account:
                    raise Unusable(f"bucket {self._name}: no service account signs links", _SIGNER)
                signer = iam.Signer(request, self._credentials, account)
                self._signs = service_account.Credentials(signer, account, "")
            return self._signs

    def _keep_date(self, answer: requests.Response, **_: Any) -> None:
        self._date = answer.headers.get("Date", "")

    @contextlib.contextmanager
    def _own_errors(self, key: str) -> Iterator[None]:
        """Turn the client's errors into those of ``cachesvc_client.wire.errors``."""
        try:
            yield
        except CacheSvcError:
            raise
        except Exception as error:  # noqa: BLE001 - the client reads answers without care
            raise self._own_error(key, error) from None

    def _own_error(self, key: str, error: BaseException) -> CacheSvcError:
        if isinstance(error, RetryError) and error.cause:
            error = error.cause
        place = f"bucket {self._name}"
        if isinstance(error, GoogleAPICallError):
            return self._own_refusal(key, error)
        if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
            return Unusable(f"{place}: no token: {one_line(error)}", _IDENTITY)
        if isinstance(error, DataCorruption):  # the client has removed it
            return Unavailable(f"object {key}: {one_line(error)}")
        if "signBlob API" in str(error):
            return Unusable(f"{place}: IAM signs no links: {one_line(error)}", _SIGNER)
        if isinstance(error, TransportError | requests.RequestException | urllib3.exceptions.HTTPError):
            return Unavailable(f"{place}: {one_line(error)}", "is *.googleapis.com reachable from here?")
        if not key and isinstance(error, ValueError):  # the client refuses a name or a file
            return Unusable(f"{place}: {one_line(error)}", "fix packs_url, or the identity's file")
        return Unavailable(f"{place}: an answer makes no sense: {one_line(error)}", CLOUD_HINT)

    def _own_refusal(self, key: str, error: GoogleAPICallError) -> CacheSvcError:
        status = int(error.code or 0)
        if status == 404 and key:
            try:
                self.check()  # is it the object that does not exist, or the bucket?
            except Unavailable as its:
                return its
            return missing(key)
        if status == 412:
            return Exists(f"object {key}: refused: {_words(error)}")
        if status == 416:
            return RangeInvalid(f"object {key}: range")
        message = f"bucket {self._name}: refused: {status} {_words(error)}"
        if status == 400 and key:  # bytes that do not fit to their checksum, for one
            return Unavailable(message)
        return Unusable(message, _HINTS[status]) if status in _HINTS else Unavailable(message)


_RIGHTS = "the identity needs the role Storage Object User (roles/storage.objectUser) on the bucket"
_IDENTITY = (
    "run with a workload identity, or name a service account's key or a federation's configuration in "
    "GOOGLE_APPLICATION_CREDENTIALS"
)
_SIGNER = (
    "the identity has to be a service account with the role Service Account Token Creator on itself; or set "
    'downloads = "registry"'
)
_HINTS = {
    400: "fix packs_url",
    401: "Google knows no such identity; " + _IDENTITY,
    403: _RIGHTS,
    404: "create the bucket, or fix packs_url",
}
"""Hints by the status of a refusal."""


def _words(error: GoogleAPICallError) -> str:
    """Return what Google says, without the request that the client puts before it."""
    with contextlib.suppress(Exception):
        return one_line(error.response.json()["error"]["message"])
    return one_line(error)


def _credentials() -> Any:
    """Return the credentials of this process: of ``GOOGLE_APPLICATION_CREDENTIALS``, of ``gcloud``, or of a
    metadata server."""
    # What it would log, in lines for each attempt, is in the error.
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    # With scopes at once, it would ask the network for a project that nobody needs.
    return with_scopes_if_required(google.auth.default()[0], [_SCOPE])
