"""Opens connections to an origin: TLS, keep-alive, through a proxy where there is one."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..wire.errors import (
    CacheSvcError,
    Corrupt,
    InvalidRequest,
    ProtocolMismatch,
    TooLarge,
    Unavailable,
    Untrusted,
)
from .addresses import open_socket
from .links import LinkPolicy
from .origin import Origin, is_loopback
from .proxy import Proxy, proxy_for
from .timed import CHUNK, Clock, TimedSocket

MAX_IDLE = 8
"""Largest number of idle connections that a pool keeps."""

Body = bytes | Callable[[], Iterable[bytes]]
"""Holds the body of a request, or makes its pieces."""


class Response:
    """Holds status and headers of an answer, and its body, which is read within the call."""

    def __init__(self, inner: http.client.HTTPResponse, origin: Origin) -> None:
        self._inner = inner
        self._origin = origin
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers  # type: ignore[assignment]

    @property
    def length(self) -> int | None:
        """Returns ``Content-Length``, if the answer has one."""
        return self._inner.length

    @property
    def reusable(self) -> bool:
        """Returns whether the connection may serve another request: the body was read to its end."""
        return self._inner.isclosed() and not self._inner.will_close

    def body(self, limit: int) -> bytes:
        """Reads the whole body. Raises ``TooLarge`` over ``limit`` bytes, before they are read."""
        too_large = TooLarge(f"{self._origin}: an answer of more than the {limit} bytes allowed")
        if self.length is not None and self.length > limit:
            raise too_large
        parts, size = [], 0
        while chunk := self._inner.read(min(CHUNK, limit + 1 - size)):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise too_large
        if self.length:  # bytes that were promised and did not come
            raise http.client.IncompleteRead(b"", self.length)
        return b"".join(parts)

    def stream(self, skip: int, size: int) -> Iterator[bytes]:
        """Skips ``skip`` bytes and yields the ``size`` bytes after them. Raises ``Corrupt`` if more bytes
        come."""
        while skip:
            skip -= len(self._read_some(skip))
        while size:
            chunk = self._read_some(size)
            size -= len(chunk)
            yield chunk
        if self._inner.read(1):
            raise Corrupt(f"{self._origin}: sends more than was asked for")

    def _read_some(self, limit: int) -> bytes:
        # Reads no more than has arrived: progress counts, even if the connection is cut then.
        chunk = self._inner.read1(min(limit, CHUNK))
        if not chunk:
            raise http.client.IncompleteRead(b"", limit)
        return chunk


class Pool:
    """Keeps connections to any origin alive. Thread-safe; a forked child needs a new one.

    ``links``: decides to which addresses connections may be made; ``None`` for origins that an operator
    names, which may have any address.
    """

    def __init__(self, connect_timeout: float, links: LinkPolicy | None = None) -> None:
        self._connect_timeout = connect_timeout
        self._links = links
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
        """Sends one request; the caller reads the answer inside the ``with`` block.

        ``reuse``: the request may use an idle connection, and is sent once more over a new one if the other
        side has closed the idle one meanwhile; only for requests that may be sent twice. Every failure of the
        network, here and while the answer is read, is raised as ``Unavailable`` or, for TLS and malformed
        HTTP, as ``Untrusted`` or ``ProtocolMismatch``.
        """
        with _translate_errors(origin):
            idle = self._take(origin) if reuse else None
            connection, answer = idle, None
            if idle is not None:
                try:
                    answer = idle.exchange(method, path or "/", headers, body, clock)
                except (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError):
                    idle.close()
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
            for index, (idle_origin, connection) in enumerate(self._idle):
                if idle_origin == origin:
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
        proxy, links = proxy_for(origin), self._links or LinkPolicy(origin)
        if proxy is not None:
            links.check_literal(origin)
        connection = _Connection(origin, proxy, self._tls)
        connection.open(clock, self._connect_timeout, links)
        if origin.scheme == "http" and "Authorization" in headers and not connection.to_loopback():
            connection.close()
            raise InvalidRequest(
                f"{origin}: not loopback, and a token is not sent over plain HTTP", "use https://"
            )
        return connection


class _Connection:
    """Holds one TCP connection, through a proxy if there is one."""

    def __init__(self, origin: Origin, proxy: Proxy | None, tls: ssl.SSLContext | None) -> None:
        self._origin = origin
        self._proxy = proxy
        self._tls = tls
        self._inner = http.client.HTTPConnection(origin.host, origin.port)
        self._inner.auto_open = 0  # never by itself, past proxy and deadline
        self._socket: TimedSocket | None = None

    def open(self, clock: Clock, connect_timeout: float, links: LinkPolicy) -> None:
        """Connects, through the proxy and with TLS where needed."""
        proxy, origin = self._proxy, self._origin
        if proxy:
            with _translate_errors(proxy, proxy.variable):
                sock = open_socket(proxy.host, proxy.port, clock.left(connect_timeout))
        else:
            sock = open_socket(
                origin.host,
                origin.port,
                clock.left(connect_timeout),
                lambda addresses: links.permitted(origin, addresses),
            )
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy and self._origin.scheme == "https":
                with _translate_errors(proxy, proxy.variable):
                    _tunnel(TimedSocket(sock, clock), self._origin, proxy)
            if self._origin.scheme == "https":
                assert self._tls is not None
                sock.settimeout(clock.left())
                sock = self._tls.wrap_socket(sock, server_hostname=self._origin.host)
        except BaseException:
            sock.close()
            raise
        self._socket = TimedSocket(sock, clock)
        self._inner.sock = self._socket
        if proxy is None:
            links.record_peer(origin, str(self._socket.peer()[0]))

    def to_loopback(self) -> bool:
        """Returns whether the connection ends on this machine."""
        assert self._socket is not None
        return self._proxy is None and is_loopback(str(self._socket.peer()[0]))

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, clock: Clock
    ) -> http.client.HTTPResponse:
        """Sends the request and reads the head of the answer."""
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
        """Closes the connection."""
        self._inner.close()


def _tunnel(sock: TimedSocket, origin: Origin, proxy: Proxy) -> None:
    """Asks the proxy for a tunnel to the origin: CONNECT, RFC 9110 section 9.3.6."""
    target = f"[{origin.host}]:{origin.port}" if ":" in origin.host else f"{origin.host}:{origin.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = http.client.HTTPResponse(sock, method="CONNECT")  # type: ignore[arg-type]
    try:
        answer.begin()
    finally:
        answer.close()
    if answer.status != 200:
        raise proxy.refusal(answer.status, target)


def _tls_context() -> ssl.SSLContext:
    """Makes a context that trusts the system's authorities and ``SSL_CERT_FILE`` (OpenSSL reads that one),
    and REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE (a file or a folder). Raises ``InvalidRequest`` that names the
    variable."""
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
def _translate_errors(peer: Origin | Proxy, setting: str = "CACHESVC_URL") -> Iterator[None]:
    """Raises network errors of the block as errors of cachesvc, which name the peer and the setting that has
    its address."""
    try:
        yield
    except CacheSvcError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(
            f"{peer}: its TLS certificate is not trusted: {error.verify_message}",
            "set SSL_CERT_FILE to the file with your authority",
        ) from None
    except TimeoutError:  # socket.timeout is the same since 3.10
        raise Unavailable(f"{peer}: no answer in time") from None
    except socket.gaierror as error:
        raise Unavailable(f"{peer}: the name is not known: {error.strerror}", f"check {setting}") from None
    except http.client.IncompleteRead:
        raise Unavailable(f"{peer}: the connection was cut in the middle of an answer") from None
    except ConnectionRefusedError:
        raise Unavailable(f"{peer}: connection refused", f"is it running? check {setting}") from None
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        raise Unavailable(f"{peer}: {error.strerror or 'closed the connection'}") from None
    except ssl.SSLError as error:
        # Not every version of OpenSSL has one reason for an answer that is no TLS.
        plain = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
        hint = "the server seems to speak plain HTTP: try http://" if plain else ""
        raise Unavailable(f"{peer}: TLS: {error.reason or error}", hint) from None
    except (http.client.HTTPException, ValueError) as error:
        raise ProtocolMismatch(f"{peer}: not HTTP that is understood: {str(error)[:100]!r}") from None
    except OSError as error:
        raise Unavailable(f"{peer}: {error.strerror or error}") from None
