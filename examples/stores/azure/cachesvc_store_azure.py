"""A blob store in a container of Azure Blob Storage: ``azure://ACCOUNT/CONTAINER[/PREFIX]``.

Microsoft's own client moves the bytes and finds the credentials. Account keys are not read: requests carry a
token of the identity that the process runs as, and links are signed with a key that this identity is lent.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import requests
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential, WorkloadIdentityCredential
from azure.storage.blob import (
    BlobClient,
    BlobSasPermissions,
    BlobServiceClient,
    ExponentialRetry,
    generate_blob_sas,
)

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

AT_ONCE_BYTES = 24 << 20
"""Bytes of a pack that one request puts. They are in memory twice when they become one."""
PLACES = 4
"""How many puts at a time may have more in memory than blocks."""
BLOCK_BYTES = 8 << 20
"""Bytes of a block of a larger pack. A blob has 50,000 at most. Three are in memory at once."""
READ_BYTES = 32 << 20
"""Bytes of one request of a read, which are in memory at once."""
CONNECTIONS = 64
LENT = datetime.timedelta(days=1)
"""How long the key holds that signs links. Azure lends it for seven days at most."""
_MARK = "cachesvc"
"""Metadata of a blob: which put wrote it."""


class Damaged(Unavailable):
    """The store says that its bytes are not those that were put."""


def open_url(url: str) -> AzureBlobStore:
    """Return the store of a URL.

    ``AZURE_STORAGE_SERVICE_ENDPOINT``: the account's address, where it is not in Azure's public cloud.
    """
    account, path = host_and_path(url)
    container, _, prefix = path.partition("/")
    return AzureBlobStore(account, container, prefix, os.environ.get("AZURE_STORAGE_SERVICE_ENDPOINT", ""))


class AzureBlobStore:
    """A `cachesvc.blobs.store.BlobStore` under ``prefix`` of an existing container, with links: shared access
    signatures of a user delegation key.

    Blocks of puts that broke off are visible to nobody, and Azure removes them after a week.
    """

    def __init__(self, account: str, container: str, prefix: str = "", endpoint: str = "") -> None:
        if not account or not container:
            raise Unusable("azure:// names no container", "write azure://ACCOUNT/CONTAINER/PREFIX")
        self._account, self._name = account, container
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._service = BlobServiceClient(
            endpoint or f"https://{account}.blob.core.windows.net",
            _credential(),
            transport=_transport(),
            max_block_size=BLOCK_BYTES,
            max_single_put_size=AT_ONCE_BYTES,
            max_single_get_size=READ_BYTES,
            max_chunk_get_size=READ_BYTES,
            # Three attempts within seconds: a registry repeats reads itself, and says early that it waits.
            retry_policy=ExponentialRetry(
                initial_backoff=1, increment_base=2, retry_total=2, random_jitter_range=1
            ),
        )
        self._container = self._service.get_container_client(container)
        self._lock = threading.Lock()
        self._lent: tuple[datetime.datetime, Any] | None = None
        self._proven = False
        self._places = threading.BoundedSemaphore(PLACES)

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        self._blob(key)
        if not self._proven:  # a registry puts an object at its start; a check alone changes nothing
            prove_condition(self, self._write, f"account {self._account}", "If-None-Match")
            self._proven = True
        return self._write(key, chunks)

    def _write(self, key: str, chunks: Iterable[bytes]) -> int:
        stream = Stream(chunks)
        if stream.ahead(BLOCK_BYTES + 1) <= BLOCK_BYTES or not self._places.acquire(blocking=False):
            return self._send(key, stream, BLOCK_BYTES)
        try:
            return self._send(key, stream, AT_ONCE_BYTES)
        finally:
            self._places.release()

    def _send(self, key: str, stream: Stream, limit: int) -> int:
        """Put up to ``limit`` bytes in one request, and more in blocks."""
        blob, mark = self._blob(key), secrets.token_hex(16)
        size = stream.ahead(limit + 1)
        at_once = size <= limit
        try:
            with self._own_errors(key):
                answer = blob.upload_blob(
                    stream.read(size) if at_once else stream,
                    metadata={_MARK: mark},
                    overwrite=False,  # If-None-Match: *
                    validate_content=True,  # an MD5 of each request, which Azure checks
                )
        except CacheSvcError as refusal:
            if stream.broken:
                raise stream.broken from None
            if isinstance(refusal, Unusable):
                raise
            return self._own(key, mark, refusal)
        # The client compared the MD5 in the answer with that of what it sent: then the size needs no request.
        return size if at_once and answer.get("content_md5") else self.size(key)

    def _own(self, key: str, mark: str, refusal: CacheSvcError) -> int:
        """Return the size of the blob if this put wrote it, and the answer was lost. Raise if there is none,
        or another put's, or a damaged one, which is removed."""
        try:
            with self._own_errors(key):
                facts = self._blob(key).get_blob_properties()
        except CacheSvcError:
            raise refusal from None
        if (facts.metadata or {}).get(_MARK) != mark:
            raise Exists(f"object {key} exists: another put wrote it, which is kept") from None
        if isinstance(refusal, Damaged):
            self.delete(key)
            raise refusal
        return int(facts.size)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        blob = self._blob(key)
        if start < 0 or (length is not None and length <= 0):
            clipped(key, self.size(key), start, length)
            return iter(())
        try:
            with self._own_errors(key):
                # Later requests of the read ask for the same ETag.
                answer = blob.download_blob(start, length)
        except RangeInvalid:
            if start or self.size(key):
                raise
            return iter(())  # an empty object
        if start and not answer.size:  # Azurite refuses no range that begins right behind the last byte
            raise RangeInvalid(f"object {key}: none begins at {start}")
        return self._read(key, answer)

    def size(self, key: str) -> int:
        blob = self._blob(key)
        with self._own_errors(key):
            return int(blob.get_blob_properties().size)

    def delete(self, key: str) -> None:
        blob = self._blob(key)
        with contextlib.suppress(NotFound), self._own_errors(key):
            blob.delete_blob()

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        with self._own_errors(prefix):
            for blob in self._container.list_blobs(name_starts_with=self._prefix + prefix):
                yield BlobFacts(blob.name[len(self._prefix) :], int(blob.size))

    def check(self) -> None:
        with self._own_errors(""):
            page = self._container.list_blobs(
                self._prefix, results_per_page=1, raw_response_hook=self._compare_clocks
            )
            next(page, None)

    def link(self, key: str, seconds: int) -> str:
        blob, now = self._blob(key), datetime.datetime.now(datetime.UTC)
        until = now + datetime.timedelta(seconds=seconds)
        with self._own_errors(key):
            signature = generate_blob_sas(
                self._account,
                self._name,
                blob.blob_name,
                user_delegation_key=self._lent_key(now, until),
                permission=BlobSasPermissions(read=True),
                expiry=until,
                protocol="https",
            )
        return f"{blob.url}?{signature}"

    def _blob(self, key: str) -> BlobClient:
        return self._container.get_blob_client(self._prefix + checked_key(key))

    def _read(self, key: str, answer: Any) -> Iterator[bytes]:
        parts = answer.chunks()
        while True:
            with self._own_errors(key):
                part = memoryview(next(parts, b""))
            if not part:
                return
            for begin in range(0, len(part), CHUNK_BYTES):
                yield bytes(part[begin : begin + CHUNK_BYTES])

    def _lent_key(self, now: datetime.datetime, until: datetime.datetime) -> Any:
        """Return a key that holds until then; ask for a new one when half of its time is over."""
        with self._lock:
            if self._lent is None or self._lent[0] - now < LENT / 2:
                begin, end = now - datetime.timedelta(minutes=15), now + LENT
                try:
                    self._lent = end, self._service.get_user_delegation_key(begin, end)
                except AzureError:
                    if self._lent is None or self._lent[0] < until:
                        raise
            return self._lent[1]

    def _compare_clocks(self, answer: Any) -> None:
        compare_clocks(f"account {self._account}", answer.http_response.headers.get("Date", ""))

    @contextlib.contextmanager
    def _own_errors(self, key: str) -> Iterator[None]:
        """Turn Azure's errors into those of ``cachesvc_client.wire.errors``."""
        try:
            yield
        except (ServiceRequestError, ServiceResponseError) as error:
            hint = "are the account's address and Entra's right, and reachable from here?"
            raise Unavailable(f"account {self._account}: {one_line(error)}", hint) from None
        except HttpResponseError as error:
            raise _error_of_refusal(f"container {self._account}/{self._name}", key, error) from None
        except AzureError as error:  # the checksum in an answer does not fit
            raise Damaged(f"object {key}: {one_line(error)}") from None
        except CacheSvcError:
            raise
        except Exception as error:  # noqa: BLE001 - the client reads answers without care
            message = f"container {self._account}/{self._name}: an answer makes no sense: {one_line(error)}"
            raise Unavailable(message, CLOUD_HINT) from None


_RIGHTS = "the identity needs the roles Storage Blob Data Contributor and Storage Blob Delegator"
_IDENTITY = (
    "set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE, as AKS does for a workload "
    "identity, or run with a managed identity"
)
_HINTS = {
    "ContainerNotFound": "create the container, or fix packs_url",
    "InvalidResourceName": "fix packs_url",
    "AuthorizationPermissionMismatch": _RIGHTS,
    "AuthorizationFailure": "the account's network rules refuse this address, or " + _RIGHTS,
    "AuthenticationFailed": "the account knows no such identity, or its tenant is another one",
    "InvalidAuthenticationInfo": "the token has expired, or it is for another tenant",
    "AccountIsDisabled": "enable the account",
}
"""Hints by the error code of a refusal."""


def _error_of_refusal(container: str, key: str, error: HttpResponseError) -> CacheSvcError:
    if isinstance(error, ClientAuthenticationError) and not getattr(error, "error_code", None):
        return Unusable(f"{container}: no token: {one_line(error)}", _IDENTITY)
    code = getattr(error, "error_code", None) or ""
    code = str(getattr(code, "value", code))
    if isinstance(error, ResourceExistsError):
        return Exists(f"object {key} exists")
    if error.status_code == 416:
        return RangeInvalid(f"object {key}: range")
    if error.status_code == 404 and key and code != "ContainerNotFound":
        return missing(key)
    if not error.status_code:  # an answer that breaks off
        return Unavailable(f"{container}: {one_line(error)}")
    message = f"{container}: refused: {code or error.status_code}"
    return Unusable(message, _HINTS[code]) if code in _HINTS else Unavailable(message)


def _credential() -> WorkloadIdentityCredential | DefaultAzureCredential:
    """Return the credentials of this process: a workload identity, else a managed one, or those of ``az``."""
    # What it would log, in ten lines for each attempt, is in the error.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    if "AZURE_FEDERATED_TOKEN_FILE" not in os.environ:
        return DefaultAzureCredential()
    # An authority that is named is of another cloud, or a private one: Azure's public cloud knows it not.
    return WorkloadIdentityCredential(disable_instance_discovery="AZURE_AUTHORITY_HOST" in os.environ)


def _transport() -> RequestsTransport:
    """Return a pool of connections, which the client's own has ten of, and the timeouts, which go with it."""
    session = requests.Session()
    session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
    return RequestsTransport(
        session=session,
        session_owner=False,
        connection_timeout=5,
        read_timeout=60,
        connection_data_block_size=256 << 10,  # as the client's own: by default it reads 4 KiB at a time
    )
