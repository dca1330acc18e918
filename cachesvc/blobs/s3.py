"""Store blobs in any S3, through boto3.

A large object is a multipart upload, which becomes visible when it is completed. Parts carry their MD5,
which every S3 checks; sha256 trailers are not understood by all of them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.exceptions
import botocore.parsers

from cachesvc_client.wire.errors import CacheSvcError, RangeInvalid, StorageFull, Unavailable

from .cloud import Stream, one_line
from .store import CHUNK_BYTES, BlobFacts, Unusable, checked_key, clipped, missing

_log = logging.getLogger("cachesvc")

Addressing = Literal["auto", "path", "virtual"]
PART_BYTES = 8 << 20
"""Bytes of a part. S3 accepts 10,000 parts: enough for 78 GiB. A put needs memory for two parts and a
chunk."""


def open_url(
    url: str, *, endpoint: str = "", public_endpoint: str = "", addressing: Addressing = "auto"
) -> S3BlobStore:
    """Return the store of ``s3://BUCKET/PREFIX``."""
    place = urlsplit(url)
    return S3BlobStore(
        unquote(place.netloc), unquote(place.path), endpoint or None, public_endpoint or None, addressing
    )


class S3BlobStore:
    """A :class:`~cachesvc.blobs.store.BlobStore` under ``prefix`` of an existing bucket, with
    :class:`~cachesvc.blobs.store.Links` (presigned URLs of AWS's Signature Version 4).

    ``public_endpoint``: the store's address in links, where readers reach it by another name.
    ``addressing``: whether requests name the bucket in the path or in the host (``virtual``). With ``auto``
    they do as boto3 does, until `check` finds that the store refuses that and takes the other.
    Credentials and region are read as every AWS tool reads them. Parts of puts that were killed stay until
    the bucket's own lifecycle rule (AbortIncompleteMultipartUpload) removes them; they are not visible.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str | None = None,
        public_endpoint: str | None = None,
        addressing: Addressing = "auto",
        **client: Any,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._make = functools.partial(_client, bucket, client)
        self._endpoint, self._public_endpoint = endpoint, public_endpoint
        self._addressing = addressing
        self._s3, self._credentials = self._make(endpoint, addressing)
        self._public = self._make(public_endpoint, addressing)[0] if public_endpoint else self._s3
        self._places: dict[int, tuple[str, str, str]] = {}

    def put(self, key: str, chunks: Iterable[bytes]) -> int:
        stream = Stream(chunks)
        part = stream.read(PART_BYTES)
        if len(part) < PART_BYTES:  # the first part is the last
            md5 = _md5(part)
            with _own_errors(self._bucket, key):
                etag = self._put_at_once(key, part, md5)
                if etag is None:
                    answer = self._s3.put_object(**self._at(key), Body=part, ContentMD5=_base64(md5))
                    etag = answer.get("ETag", "")
            # Most stores answer with the MD5 of what they stored: then the size needs no request.
            return len(part) if etag.strip('"') == md5.hex() else self.size(key)
        with self._multipart(key) as upload:
            while part:
                upload(part)
                part = b""  # frees its memory before the next part is gathered
                part = stream.read(PART_BYTES)
        return self.size(key)

    def open(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        size = self.size(key)
        left = clipped(key, size, start, length)
        if not left:
            return iter(())
        with _own_errors(self._bucket, key):
            answer = self._s3.get_object(**self._at(key), Range=f"bytes={start}-{start + left - 1}")
        if answer["ContentLength"] != left:
            answer["Body"].close()
            raise Unavailable(f"object {key}: {left} bytes were asked for, the store sends another number")
        return self._read(answer["Body"], key)

    def size(self, key: str) -> int:
        with _own_errors(self._bucket, key):
            return int(self._s3.head_object(**self._at(key))["ContentLength"])

    def delete(self, key: str) -> None:
        with _own_errors(self._bucket, key):
            self._s3.delete_object(**self._at(key))

    def list(self, prefix: str = "") -> Iterator[BlobFacts]:
        with _own_errors(self._bucket, prefix):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield BlobFacts(item["Key"][len(self._prefix) :], int(item["Size"]))

    def check(self) -> None:
        with _own_errors(self._bucket, ""):
            try:
                self._names_bucket(self._s3)
            except _REFUSALS:
                if self._addressing != "auto" or not self._takes_other_addressing():
                    raise

    def _names_bucket(self, s3: Any) -> bool:
        """Returns whether an answer is about the bucket: to a request for it in a host that it does not know,
        a store may answer with a list of buckets."""
        answer = s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        return bool(answer.get("Name") == self._bucket)

    def _takes_other_addressing(self) -> bool:
        """Go over to the other place for the bucket's name if the store answers there. Returns whether."""
        now = urlsplit(self._place_of(self._s3)[0]).netloc
        other: Addressing = "path" if now.startswith(f"{self._bucket}.") else "virtual"
        try:
            s3, _ = self._make(self._endpoint, other)
            if not self._names_bucket(s3):
                return False
        except (*_REFUSALS, botocore.exceptions.BotoCoreError, OSError, CacheSvcError):
            return False
        public = self._public_endpoint
        self._public = self._make(public, other)[0] if public else s3
        self._s3, self._addressing = s3, other
        _log.warning(
            "bucket %s: the store takes the bucket's name in the %s alone: set bucket_addressing = %s",
            self._bucket,
            "path" if other == "path" else "host",
            other,
        )
        return True

    def link(self, key: str, seconds: int) -> str:
        with _own_errors(self._bucket, key):
            base, region, service = self._place_of(self._public)
            request = botocore.awsrequest.AWSRequest("GET", base + checked_key(key))
            signer = botocore.auth.S3SigV4QueryAuth(
                self._credentials.get_frozen_credentials(), service, region, expires=seconds
            )
            signer.add_auth(request)
            return str(request.url)

    def _put_at_once(self, key: str, part: bytes, md5: bytes) -> str | None:
        """Puts a small object with botocore's signer and session alone, and returns its ETag.

        boto3's own call takes more than twice as long. ``None``: the put did not succeed; the caller repeats
        it with boto3, which retries and says what is wrong. The payload's SHA-256 is signed, also over TLS.
        """
        try:
            base, region, service = self._place_of(self._s3)
            request = botocore.awsrequest.AWSRequest(
                "PUT", base + checked_key(key), {"Content-MD5": _base64(md5)}, part
            )
            credentials = self._credentials.get_frozen_credentials()
            botocore.auth.S3SigV4Auth(credentials, service, region).add_auth(request)
            # The client's session, with its pool, its proxies and the authorities that it trusts.
            answer = self._s3._endpoint.http_session.send(request.prepare())
        except _LEFT_TO_BOTO3:
            return None
        return str(answer.headers.get("ETag", "")) if answer.status_code == 200 else None

    def _place_of(self, client: Any) -> tuple[str, str, str]:
        """Returns the base URL of objects for ``client``, and the region and service that it signs for.

        They are read from one link of boto3 and cached: boto3 spends most of the time of a link on them.
        """
        place = self._places.get(id(client))
        if place is None:
            sample = urlsplit(client.generate_presigned_url("get_object", Params=self._at("x"), ExpiresIn=60))
            _, _, region, service, _ = parse_qs(sample.query)["X-Amz-Credential"][0].rsplit("/", 4)
            base = f"{sample.scheme}://{sample.netloc}{sample.path.removesuffix('x')}"
            place = self._places[id(client)] = base, region, service
        return place

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + checked_key(key)}

    @contextmanager
    def _multipart(self, key: str) -> Iterator[Callable[[bytes], None]]:
        """Yields the function that uploads the next part; completes the upload after the block, or aborts it
        on an error."""
        with _own_errors(self._bucket, key):
            created = self._s3.create_multipart_upload(**self._at(key))
        upload = {**self._at(key), "UploadId": created["UploadId"]}
        parts: list[dict[str, Any]] = []

        def send(part: bytes) -> None:
            number = len(parts) + 1
            with _own_errors(self._bucket, key):
                answer = self._s3.upload_part(
                    **upload, PartNumber=number, Body=part, ContentMD5=_base64(_md5(part))
                )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})

        try:
            yield send
            with _own_errors(self._bucket, key):
                self._s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(CacheSvcError), _own_errors(self._bucket, key):
                self._s3.abort_multipart_upload(**upload)
            raise

    def _read(self, body: Any, key: str) -> Iterator[bytes]:
        try:
            while True:
                with _own_errors(self._bucket, key):
                    chunk = body.read(CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        finally:
            body.close()


def _client(
    bucket: str, options: dict[str, Any], endpoint: str | None, addressing: Addressing
) -> tuple[Any, Any]:
    """Returns a client, and the credentials that it signs with, which may renew themselves."""
    config = botocore.config.Config(
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=64,
        retries={"mode": "standard", "max_attempts": 3},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=None if addressing == "auto" else {"addressing_style": addressing},
    )
    with _own_errors(bucket, ""):
        try:
            session = boto3.session.Session(**options)
            client = session.client("s3", endpoint_url=endpoint, config=config)
            return client, session.get_credentials()
        except ValueError as error:  # boto3's check of the endpoint
            raise Unavailable(f"bucket {bucket}: {error}") from None


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_LEFT_TO_BOTO3 = (botocore.exceptions.BotoCoreError, AttributeError, LookupError, ValueError)
"""Errors of a direct put that leave it to boto3: no credentials, an unusual endpoint or signature, no
connection."""
_REFUSALS = (
    botocore.exceptions.ClientError,
    botocore.parsers.ResponseParserError,
    RecursionError,
)
"""Errors of requests that something answered: with a refusal, or in another language than S3's."""
_MISSING = {"404", "NoSuchKey", "NotFound"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"}
_REGION = "it is in another region: set AWS_DEFAULT_REGION, and bucket_endpoint if each has its own"
_UNKNOWN = "look into the store's own log; see bucket_addressing if it wants buckets named otherwise"
_KEYS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what AWS tools read here, are not what the store knows"
)
_CLOCK = "this machine's clock and the store's are too far apart: set it (NTP)"
_RIGHTS = (
    "the credentials may not do this; needed are s3:ListBucket on the bucket, and s3:GetObject, PutObject, "
    "DeleteObject and AbortMultipartUpload on its objects"
)
_IN_HOST = "the store takes the bucket's name in the host alone: set bucket_addressing to virtual"
_NO_S3 = "is the setting bucket_endpoint the address of an S3?"
_HINTS = {
    "NoSuchBucket": "create it, or fix the setting bucket",
    "InvalidBucketName": "fix the setting bucket",
    "SecondLevelDomainForbidden": _IN_HOST,
    "PathStyleDomainForbidden": _IN_HOST,
    "InvalidPathAccess": _IN_HOST,
    "AccessDenied": _RIGHTS,
    "AllAccessDisabled": _RIGHTS,
    "403": _RIGHTS,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidToken": _KEYS,
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "400": _NO_S3,
    "404": _NO_S3,
    "405": _NO_S3,
    "501": _NO_S3,
}
"""Hints by the error code of a refusal (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html).
An answer without a body, as to HEAD, has a status in the place of a code."""


@contextmanager
def _own_errors(bucket: str, key: str) -> Iterator[None]:
    """Turns botocore's errors into those of ``cachesvc_client.wire.errors``."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        raise _error_of_refusal(bucket, key, error) from None
    except botocore.exceptions.ParamValidationError as error:
        raise Unusable(f"bucket {bucket}: {one_line(error)}", "fix the setting bucket") from None
    except botocore.exceptions.NoCredentialsError:
        raise Unusable(
            f"bucket {bucket}: no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
        ) from None
    except (botocore.exceptions.PartialCredentialsError, botocore.exceptions.ProfileNotFound) as error:
        raise Unusable(f"bucket {bucket}: {one_line(error)}", "fix the AWS_ variables or files") from None
    except (botocore.parsers.ResponseParserError, RecursionError):
        # botocore follows a redirect to no region without end: that of http to https, for one.
        raise Unusable(f"bucket {bucket}: what answers does not speak S3", _NO_S3) from None
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError, OSError) as error:
        hint = "is the store running, and reachable from here? see the setting bucket_endpoint"
        raise Unavailable(f"bucket {bucket}: {one_line(error)}", hint) from None


def _error_of_refusal(bucket: str, key: str, error: botocore.exceptions.ClientError) -> CacheSvcError:
    code = str(error.response.get("Error", {}).get("Code") or "")
    if code in _MISSING and key:
        return missing(key)
    if code == "InvalidRange":
        return RangeInvalid(f"object {key}: range")
    if code in _FULL:
        return StorageFull(f"bucket {bucket}: {code}", "raise the bucket's quota")
    if not code and error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") not in (408, 429):
        return Unusable(f"bucket {bucket}: what answers does not speak S3", _NO_S3)
    message = f"bucket {bucket}: {error.operation_name} was refused: {code or 'try again later'}"
    hint = _HINTS.get(code)
    return Unusable(message, hint) if hint else Unavailable(message, _UNKNOWN)
