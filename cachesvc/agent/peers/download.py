"""Gets a pack from another agent, frame by frame, each checked before it is used."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cachesvc_client.bundle.layout import PACK_MAGIC
from cachesvc_client.http.timed import Clock, TimedSocket
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Frame
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.peers import PeerSource

from .options import PeerOptions
from .server import GRACE_SECONDS, LEAST_RATE

_CONNECT_SECONDS = 2.0
"""Seconds that a connection to a peer may take."""
_STALL_SECONDS = 5.0
"""Seconds without a byte, after which a peer is left."""
_MAX_FRAME_BYTES = 8 << 20
"""Number of bytes of a frame, at most: twice those that it may unpack to. A frame is in memory as a whole."""


class PeerBusy(Exception):
    """A peer sends as many packs as it may, and can be asked again in a moment."""


class PeerUseless(Exception):
    """A peer gave nothing of use. ``reason``: ``gone``, ``slow``, ``lied``, or ``refused``: it answers, and
    gives no pack for what was offered. Somebody else may have made that offer in its place."""

    def __init__(self, reason: Literal["gone", "slow", "lied", "refused"], text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class MissingPack:
    """Describes a pack that a node lacks. ``frames``: those of its signed manifest."""

    namespace: Namespace
    pack: Digest
    size: int
    frames: tuple[Frame, ...]

    @property
    def divisible(self) -> bool:
        """Returns whether the frames lie back to back from the magic to the end of the pack, and are small:
        else it is not asked of peers."""
        ends = itertools.accumulate((frame.size for frame in self.frames), initial=len(PACK_MAGIC))
        starts = [frame.offset for frame in self.frames]
        small = all(frame.size <= _MAX_FRAME_BYTES for frame in self.frames)
        return bool(starts) and [*starts, self.size] == list(ends) and small


def bytes_from_peer(
    source: PeerSource, options: PeerOptions, missing: MissingPack, offset: int, until: float
) -> Iterator[bytes]:
    """Yields the bytes of a pack from ``offset`` on, each frame after its digest was checked.

    Comes from the address of this agent's own, so that its share at the peer is its own. Sends no token and
    no credential, follows no redirect, and uses no proxy. ``until``: a value of ``time.monotonic``, at which
    this ends in any case. Raises `PeerBusy` and `PeerUseless`.
    """
    frames = [frame for frame in missing.frames if frame.offset + frame.size > offset]
    begin = 0 if offset < len(PACK_MAGIC) else frames[0].offset
    left = missing.size - begin
    clock = Clock(min(until, time.monotonic() + GRACE_SECONDS + left / LEAST_RATE), _STALL_SECONDS)
    path = f"/v1/packs/{missing.pack.hex}/{source.capability}"
    with _answer(source.address, options, path, begin, missing.size, clock) as answer:
        if begin == 0:
            magic = _read(answer, len(PACK_MAGIC))
            _demand(magic == PACK_MAGIC, "other bytes")
            yield from _after(magic, 0, offset)
        for frame in frames:
            data = _read(answer, frame.size)
            digest = hashlib.sha256(data).hexdigest()
            _demand(digest == frame.digest.hex, "other bytes")
            yield from _after(data, frame.offset, offset)


@contextlib.contextmanager
def _answer(
    address: str, options: PeerOptions, path: str, begin: int, size: int, clock: Clock
) -> Iterator[http.client.HTTPResponse]:
    """Sends one GET and yields its answer, which has the bytes from ``begin`` to the end of the pack."""
    content_range = f"bytes {begin}-{size - 1}/{size}"
    try:
        connection = socket.create_connection(
            (address, options.port), clock.left(_CONNECT_SECONDS), source_address=(options.address, 0)
        )
    except OSError as error:
        raise PeerUseless("gone", f"no connection: {error.strerror or error}") from None
    with connection:
        inner = http.client.HTTPConnection(address, options.port)
        inner.auto_open = 0
        inner.sock = TimedSocket(connection, clock)
        try:
            headers = {"Range": f"bytes={begin}-{size - 1}"}
            inner.request("GET", path, headers=headers)
            answer = inner.getresponse()
        except TimeoutError:
            raise PeerUseless("slow", "no answer in time") from None
        except ConnectionError:  # it had too many connections
            raise PeerBusy from None
        except (OSError, http.client.HTTPException, ValueError):
            raise PeerUseless("lied", "not an answer of an agent") from None
        if answer.status == 503:
            raise PeerBusy
        if answer.status != 206:
            raise PeerUseless("refused", f"status {answer.status}")
        _demand(answer.getheader("Content-Range") == content_range, "other bytes than asked for")
        yield answer


def _read(answer: http.client.HTTPResponse, size: int) -> bytes:
    try:
        data = answer.read(size)
    except TimeoutError:
        raise PeerUseless("slow", "its bytes are too slow") from None
    except (OSError, http.client.HTTPException, ValueError):
        raise PeerUseless("gone", "the connection was cut") from None
    if len(data) < size:
        raise PeerUseless("gone", "the connection was cut")
    return data


def _after(data: bytes, place: int, offset: int) -> Iterator[bytes]:
    """Yields the part of ``data``, which begins at ``place`` of a pack, that lies from ``offset`` on."""
    rest = data[max(0, offset - place) :]
    if rest:
        yield rest


def _demand(holds: bool, text: str) -> None:
    if not holds:
        raise PeerUseless("lied", text)
