"""Connections under ``remote``: one deadline for all of a call, proxies, TLS, keep-alive, a breaker.

``http.client`` gives a timeout to each read, so that a peer that sends a byte now and then holds a call
for ever; here each read and write gets what is left of the call.
"""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import os
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .wire.errors import (
    CacheSvcError,
    Corrupt,
    InvalidRequest,
    ProtocolMismatch,
    TooLarge,
    Unavailable,
    Untrusted,
)

CHUNK = 1 << 20
MAX_IDLE = 8
"""Idle connections that are kept."""
BREAKER_FAILURES = 3
BREAKER_SECONDS = 10.0

Body = bytes | Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection goes to. Two URLs of one origin have equal ones."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """The ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """By name; ``Pool`` looks at the address once more after connecting."""
        return self.host == "localhost" or _is_loopback(self.host)


_PORTS = {"http": 80, "https": 443}


def split_url(url: str, what: str) -> tuple[Origin, str]:
    """Origin, and path with query. Raises ``InvalidRequest`` that names ``what``."""
    try:
        if not url.isascii() or any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
            raise ValueError
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
            raise ValueError
        origin = Origin(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme])
    except ValueError:
        raise InvalidRequest(
            f"{what}: {url[:120]!r} is not one", "expected http(s)://host[:port]/…"
        ) from None
    return origin, parts.path + (f"?{parts.query}" if parts.query else "")


class Clock:
    """What is left of a call. ``deadline``: of ``time.monotonic()``, or ``None``; ``stall``: seconds that
    one read or write may take in any case."""

    __slots__ = ("deadline", "stall")

    def __init__(self, deadline: float | None, stall: float) -> None:
        self.deadline = deadline
        self.stall = stall

    def left(self, most: float | None = None) -> float:
        """Seconds for the next step, at most ``most``. Raises ``TimeoutError`` when the call is over."""
        left = self.stall if most is None else min(most, self.stall)
        if self.deadline is not None:
            left = min(left, self.deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left


class Breaker:
    """After ``BREAKER_FAILURES`` failures in a row, calls fail at once for ``BREAKER_SECONDS``; then one is
    let through, and what comes of it decides. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def open(self) -> bool:
        """Whether calls fail at once now."""
        return self._failures >= BREAKER_FAILURES and time.monotonic() < self._until

    def alive(self) -> None:
        """The other side answers, whatever comes of the rest."""
        with self._lock:
            self._failures = 0

    @contextmanager
    def guard(self, origin: Origin) -> Iterator[None]:
        """Around one try. Raises ``Unavailable`` if open; counts errors that are worth a retry."""
        with self._lock:
            if self.open:
                left = self._until - time.monotonic()
                raise Unavailable(
                    f"{origin}: failed {self._failures} times in a row; next try in {left:.0f} s"
                )
            if self._failures >= BREAKER_FAILURES:  # this one is the trial; the others still fail at once
                self._until = time.monotonic() + BREAKER_SECONDS
        try:
            yield
        except CacheSvcError as error:
            with self._lock:
                self._failures = self._failures + 1 if error.retry else 0
                self._until = time.monotonic() + BREAKER_SECONDS
            raise
        self.alive()


class Response:
    """Status, headers and the body, which is read within its call."""

    def __init__(self, inner: http.client.HTTPResponse, origin: Origin) -> None:
        self._inner = inner
        self._origin = origin
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers  # type: ignore[assignment]

    @property
    def length(self) -> int | None:
        """``Content-Length``, if the answer has one."""
        return self._inner.length

    @property
    def reusable(self) -> bool:
        """Whether the connection may serve another request: the body was read to its end."""
        return self._inner.isclosed() and not self._inner.will_close

    def body(self, limit: int) -> bytes:
        """All of it. Raises ``TooLarge`` over ``limit`` bytes, before they are read."""
        over = TooLarge(f"{self._origin}: an answer of more than the {limit} bytes allowed")
        if self.length is not None and self.length > limit:
            raise over
        parts, size = [], 0
        while chunk := self._inner.read(min(CHUNK, limit + 1 - size)):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise over
        if self.length:  # bytes that were promised and did not come
            raise http.client.IncompleteRead(b"", self.length)
        return b"".join(parts)

    def stream(self, skip: int, size: int) -> Iterator[bytes]:
        """``size`` bytes after ``skip`` ones. Raises ``Corrupt`` if more come."""
        while skip:
            skip -= len(self._some(skip))
        while size:
            chunk = self._some(size)
            size -= len(chunk)
            yield chunk
        if self._inner.read(1):
            raise Corrupt(f"{self._origin}: sends more than was asked for")

    def _some(self, most: int) -> bytes:
        chunk = self._inner.read1(min(most, CHUNK))  # what is there: progress counts, even if it is cut then
        if not chunk:
            raise http.client.IncompleteRead(b"", most)
        return chunk


class Pool:
    """Connections to any origin, kept alive. Thread-safe; a forked child needs a new one."""

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._idle: list[tuple[Origin, _Connection]] = []
        self._tls: ssl.SSLContext | None = None

    def clear(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    @contextmanager
    def request(
        self,
        origin: Origin,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Body | None,
        clock: Clock,
        *,
        reuse: bool,
    ) -> Iterator[Response]:
        """One request; the answer is read inside the ``with``.

        ``reuse``: may go over a kept connection, and once more over a new one if the other side has closed
        that meanwhile: only for what may be sent twice. Every failure of the network, here and in the
        reading, is raised as ``Unavailable`` or, for TLS and malformed HTTP, as ``Untrusted`` or
        ``ProtocolMismatch``.
        """
        with _translated(origin):
            kept = self._take(origin) if reuse else None
            connection, answer = kept, None
            if kept is not None:
                try:
                    answer = kept.exchange(method, path or "/", headers, body, clock)
                except (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError):
                    kept.close()
            if connection is None or answer is None:
                connection = self._connect(origin, headers, clock)
            try:
                if answer is None:
                    answer = connection.exchange(method, path or "/", headers, body, clock)
                response = Response(answer, origin)
                yield response
            except BaseException:
                connection.close()
                raise
            if response.reusable:
                self._keep(origin, connection)
            else:
                connection.close()

    def _take(self, origin: Origin) -> _Connection | None:
        with self._lock:
            for index, (where, connection) in enumerate(self._idle):
                if where == origin:
                    del self._idle[index]
                    return connection
        return None

    def _keep(self, origin: Origin, connection: _Connection) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append((origin, connection))
                return
        connection.close()

    def _connect(self, origin: Origin, headers: Mapping[str, str], clock: Clock) -> _Connection:
        if origin.scheme == "https" and self._tls is None:
            self._tls = _tls_context()
        connection = _Connection(origin, proxy_for(origin), self._tls)
        connection.open(clock, self._connect_timeout)
        if origin.scheme == "http" and "Authorization" in headers and not connection.to_loopback():
            connection.close()
            raise InvalidRequest(
                f"{origin}: not loopback, and a token is not sent over plain HTTP", "use https://"
            )
        return connection


class _Connection:
    """One TCP connection, through a proxy if there is one."""

    def __init__(self, origin: Origin, proxy: Proxy | None, tls: ssl.SSLContext | None) -> None:
        self._origin = origin
        self._proxy = proxy
        self._tls = tls
        self._inner = http.client.HTTPConnection(origin.host, origin.port)
        self._inner.auto_open = 0  # never by itself, past proxy and deadline
        self._socket: _TimedSocket | None = None

    def open(self, clock: Clock, connect_timeout: float) -> None:
        proxy = self._proxy
        there = (proxy.host, proxy.port) if proxy else (self._origin.host, self._origin.port)
        plain = socket.create_connection(there, timeout=clock.left(connect_timeout))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy and self._origin.scheme == "https":
                _tunnel(_TimedSocket(plain, clock), self._origin, proxy)
            if self._origin.scheme == "https":
                assert self._tls is not None
                plain.settimeout(clock.left())
                plain = self._tls.wrap_socket(plain, server_hostname=self._origin.host)
        except BaseException:
            plain.close()
            raise
        self._socket = _TimedSocket(plain, clock)
        self._inner.sock = self._socket

    def to_loopback(self) -> bool:
        assert self._socket is not None
        return self._proxy is None and _is_loopback(str(self._socket.peer()[0]))

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, clock: Clock
    ) -> http.client.HTTPResponse:
        """Sends the request and reads the answer's head."""
        assert self._socket is not None
        self._socket.clock = clock
        proxy = self._proxy
        if proxy and self._origin.scheme == "http":
            path = f"{self._origin}{path}"
            headers = {**headers, **proxy.headers}
        if not callable(body):
            self._inner.request(method, path, body=body, headers=dict(headers))
            return self._inner.getresponse()
        try:
            self._inner.request(method, path, body=body(), headers=dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            # A registry that refuses an upload answers and closes, without reading all of it.
            return self._early_answer()
        return self._inner.getresponse()

    def _early_answer(self) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(self._socket)  # type: ignore[arg-type]
        answer.begin()
        answer.will_close = True
        return answer

    def close(self) -> None:
        self._inner.close()


class _TimedSocket:
    """A socket whose every read and write ends with its call. What ``http.client`` uses of one."""

    def __init__(self, inner: socket.socket, clock: Clock) -> None:
        self._inner = inner
        self.clock = clock

    def peer(self) -> Any:
        return self._inner.getpeername()

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            self._inner.settimeout(self.clock.left())
            view = view[self._inner.send(view[: CHUNK // 4]) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self, self._inner.makefile("rb", buffering=0)), 1 << 16)

    def settle(self) -> None:
        self._inner.settimeout(self.clock.left())

    def close(self) -> None:
        self._inner.close()


class _TimedReader(io.RawIOBase):
    """Sets what is left of the call before each read. Holds the socket open, as its own files do."""

    def __init__(self, timed: _TimedSocket, raw: Any) -> None:
        self._timed = timed
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timed.settle()
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where requests go instead. ``headers``: its credentials, if its URL has some."""

    host: str
    port: int
    headers: Mapping[str, str]


def proxy_for(origin: Origin) -> Proxy | None:
    """The proxy of ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``, as curl and urllib read
    them. Loopback is never proxied: a token over plain HTTP would leave the machine.

    Raises ``InvalidRequest`` for a proxy that is not an HTTP one.
    """
    if origin.loopback or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # 30 ms, for those who have a proxy

    proxies = urllib.request.getproxies_environment()
    url = proxies.get(origin.scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass_environment(origin.netloc, proxies):  # type: ignore[attr-defined]
        return None
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError
        port = parts.port or 80
    except ValueError:
        raise InvalidRequest(
            f"{origin.scheme}_proxy: not an HTTP proxy", "expected http://[user:password@]host:port"
        ) from None
    headers = {}
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, headers)


def _tunnel(sock: _TimedSocket, origin: Origin, proxy: Proxy) -> None:
    """CONNECT, RFC 9110 section 9.3.6."""
    there = f"[{origin.host}]:{origin.port}" if ":" in origin.host else f"{origin.host}:{origin.port}"
    lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = http.client.HTTPResponse(sock, method="CONNECT")  # type: ignore[arg-type]
    try:
        answer.begin()
    finally:
        answer.close()
    if answer.status != 200:
        raise Unavailable(f"proxy {proxy.host}:{proxy.port}: status {answer.status} for {there}")


def _tls_context() -> ssl.SSLContext:
    """The system's authorities and ``SSL_CERT_FILE`` (OpenSSL reads that one), or REQUESTS_CA_BUNDLE or
    CURL_CA_BUNDLE (a file or a folder). Raises ``InvalidRequest`` that names the variable."""
    context = ssl.create_default_context()
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        path = os.environ.get(name)
        if path:
            try:
                context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
            except OSError as error:  # ssl.SSLError too
                raise InvalidRequest(f"{name}: {path}: {error.strerror or error}") from None
            break
    return context


@contextmanager
def _translated(origin: Origin) -> Iterator[None]:
    """Network errors as ours."""
    try:
        yield
    except CacheSvcError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(
            f"{origin}: its TLS certificate is not trusted: {error.verify_message}",
            "set SSL_CERT_FILE to the file with your authority",
        ) from None
    except TimeoutError:  # socket.timeout is the same since 3.10
        raise Unavailable(f"{origin}: no answer in time") from None
    except socket.gaierror as error:
        raise Unavailable(
            f"{origin}: the name is not known: {error.strerror}", "check CACHESVC_URL"
        ) from None
    except http.client.IncompleteRead:
        raise Unavailable(f"{origin}: the connection was cut in the middle of an answer") from None
    except ConnectionRefusedError:
        raise Unavailable(f"{origin}: connection refused", "is it running? check CACHESVC_URL") from None
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        raise Unavailable(f"{origin}: {error.strerror or 'closed the connection'}") from None
    except ssl.SSLError as error:
        raise Unavailable(f"{origin}: TLS: {error.reason or error}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise ProtocolMismatch(f"{origin}: not HTTP that is understood: {str(error)[:100]!r}") from None
    except OSError as error:
        raise Unavailable(f"{origin}: {error.strerror or error}") from None


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
