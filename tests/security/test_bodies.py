"""What somebody gains by bodies that are large, slow, many or never end: a bounded share, and nothing before
it is known who sends them. Each attack is on a server process of its own."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from registry_inside import Clock, inside
from registry_making import Api, Server, make, ok, refused

from cachesvc.api.app import create_app
from cachesvc.door.declared import MAX_COMMIT_BYTES, ROUTES, Share
from cachesvc.door.route import DoorRoute
from cachesvc_client.bundle.seal import SigningKey

DESCRIPTORS = 256
"""Open files that a server may have: 192 of them are connections."""
ULIMIT = ["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "bash"]
MIB = 1 << 20
JSON = "application/json"
Slow = Callable[[socket.socket], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", prepared=False).running() as running:
        yield running


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Server]:
    """A server that has few descriptors."""
    with Server(tmp_path / "data", before=ULIMIT).running() as running:
        yield running


def secret(server: Server, role: str, namespace: str = "team", lane: str | None = None) -> str:
    body = {"label": "t", "role": role, "namespace": namespace, **({"lane": lane} if lane else {})}
    return ok(server.api().http.post("/v1/tokens", json=body))["secret"]


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(method: str, path: str, length: int | None, token: str = "", kind: str = JSON) -> bytes:
    """Return the head of a request whose body is to come; without a length it is chunked."""
    lines = [f"{method} {path} HTTP/1.1", "Host: registry", f"Content-Type: {kind}"]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


def status(line: socket.socket) -> int:
    """Return the status of the next answer; 0 if the connection was closed without one."""
    try:
        found = re.match(rb"HTTP/1.1 (\d+)", line.recv(4096))
    except ConnectionError:
        return 0
    return int(found[1]) if found else 0


def memory(server: Server, what: str = "VmRSS") -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", text)[1]) << 10


def peak_while(server: Server, act: Callable[[], None]) -> int:
    """Return by how many bytes the memory of a server rises meanwhile, at most."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak begins anew
    before = memory(server)
    act()
    return memory(server, "VmHWM") - before


@contextmanager
def slowly(lines: list[socket.socket], part: bytes, seconds: float) -> Iterator[None]:
    """Send each connection this part again and again."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(seconds):
            for line in lines:
                try:
                    line.sendall(part)
                except OSError:
                    continue

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_every_route_declares_what_it_demands(tmp_path: Path) -> None:
    with inside(tmp_path, SigningKey.generate(), Clock()) as reg:
        app = create_app(reg.registry, web_page=True)
    paths: set[str] = set()
    for route in _routes(app.router.routes):
        assert isinstance(route, DoorRoute), route
        paths |= {f"{method} {route.path}" for method in route.methods or ()}
    assert paths == set(ROUTES)


def _routes(routes: list[Any]) -> Iterator[Any]:
    for route in routes:
        if isinstance(route, APIRoute) or not hasattr(route, "original_router"):
            yield route
        else:
            yield from _routes(route.original_router.routes)


def test_a_route_that_declares_nothing_cannot_be_made() -> None:
    with pytest.raises(LookupError, match="declares nothing"):
        DoorRoute("/v1/new", lambda: None, methods=["POST"])


def test_every_body_without_a_token_is_small_and_short() -> None:
    for declared in ROUTES.values():
        if declared.role is None:
            assert declared.body.share is Share.memory
            assert declared.body.size <= 20 << 10
            assert declared.body.deadline <= 20


OPEN = ["/v1/oidc/token", "/ui/login", "/ui/login/provider", "/ui/logout"]


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("length", [1000, None], ids=["announced", "chunked"])
def test_bodies_that_never_come_without_a_token_keep_nobody_out(
    narrow: Server, path: str, length: int | None
) -> None:
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS):
            line = stack.enter_context(connect(narrow))
            try:
                line.sendall(head("POST", path, length))
            except OSError:  # closed to make room
                continue
        began = time.monotonic()
        for _ in range(20):
            assert ok(narrow.api().http.get("/v1/whoami"))["role"] == "admin"
        assert time.monotonic() - began < 5


def test_bodies_that_never_come_after_a_token_was_shown_once_keep_nobody_out(narrow: Server) -> None:
    """The connection is known, and the request on it is not."""
    reader = secret(narrow, "read")
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS):
            line = stack.enter_context(connect(narrow))
            try:
                line.sendall(head("GET", "/v1/whoami", 0, reader))
                status(line)
                line.sendall(head("POST", "/v1/oidc/token", 1000))
            except OSError:
                continue
        time.sleep(1.5)
        for _ in range(20):
            assert ok(narrow.api().http.get("/v1/whoami"))["role"] == "admin"


def test_a_body_without_a_token_that_comes_slowly_ends_by_its_deadline(server: Server) -> None:
    lines = [connect(server) for _ in OPEN]
    for line, path in zip(lines, OPEN, strict=True):
        line.sendall(head("POST", path, 10_000, kind="application/x-www-form-urlencoded"))
    began = time.monotonic()
    with slowly(lines, b"x" * 10, 0.2):
        assert [status(line) for line in lines] == [503] * len(lines)
    assert time.monotonic() - began < 25
    for line in lines:
        line.close()


def test_unfinished_commits_of_a_reader_take_no_memory(server: Server, key: SigningKey) -> None:
    """Neither do those of a writer for an upload that does not exist, or is another's."""
    others = ok(server.api().begin(make(key)))["upload"]
    reader, writer = secret(server, "read"), secret(server, "write")
    upload = "u-" + "0" * 32
    cases = [(reader, upload, 403), (reader, others, 403), (writer, upload, 404), (writer, others, 404)]
    lines = [connect(server) for _ in range(16)]
    statuses: list[int] = []

    def act() -> None:
        for number, line in enumerate(lines):
            token, of, _ = cases[number % 4]
            line.sendall(head("POST", f"/v1/uploads/{of}/commit", 50 * MIB, token))
            line.settimeout(0.5)
            _send(line, 40 * MIB)
            statuses.append(status(line))

    assert peak_while(server, act) < 8 * MIB
    assert statuses == [expected for _, _, expected in cases] * 4
    for line in lines:
        line.close()


def _send(line: socket.socket, size: int) -> None:
    """Send as much of a body of ``size`` bytes as is taken."""
    part = b'{"envelope": "' + b"x" * MIB
    try:
        for _ in range(size // MIB):
            line.sendall(part)
    except OSError:
        return


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


def test_unfinished_commits_of_a_writer_take_a_bounded_part_of_memory(
    server: Server, key: SigningKey
) -> None:
    writer = secret(server, "write")
    upload = ok(server.api(writer).begin(make(key)))["upload"]
    lines = [connect(server) for _ in range(16)]

    def act() -> None:
        for number, line in enumerate(lines):
            length = None if number % 2 else 50 * MIB
            line.sendall(head("POST", f"/v1/uploads/{upload}/commit", length, writer))
            line.settimeout(0.5)
            if length is None:
                line.sendall(b"%x\r\n" % (50 * MIB))
            _send(line, 49 * MIB)

    assert peak_while(server, act) < 100 * MIB
    began = time.monotonic()
    honest = secret(server, "write")
    assert ok(server.api(honest).publish(make(server.key, name="honest")))["created"]
    assert time.monotonic() - began < 5
    for line in lines:
        line.close()


def test_large_commits_of_a_writer_are_parsed_one_at_a_time(server: Server, key: SigningKey) -> None:
    writer = secret(server, "write")
    upload = ok(server.api(writer).begin(make(key)))["upload"]
    body = b'{"envelope": "' + b"x" * (45 * MIB) + b'", "head": null}'
    statuses: list[int] = []

    def commit() -> None:
        api = server.api(writer)
        api.http.timeout = 120
        answer = api.http.post(
            f"/v1/uploads/{upload}/commit", content=body, headers={"Content-Type": "application/json"}
        )
        statuses.append(answer.status_code)

    def act() -> None:
        threads = [threading.Thread(target=commit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rise = peak_while(server, act)
    print(f"rise: {rise >> 20} MiB, {statuses}")
    assert rise < 256 * MIB
    assert len(statuses) == 8 and set(statuses) <= {403, 422, 429}


def _hold_uploads(server: Server, stack: ExitStack, token: str, publication: Any, number: int) -> list[Any]:
    """Begin uploads of a token whose bodies come slowly. Return their connections."""
    api, lines = server.api(token), []
    for _ in range(number):
        upload = ok(api.begin(publication, size=10 * MIB))["upload"]
        line = stack.enter_context(connect(server))
        line.sendall(head("PUT", f"/v1/uploads/{upload}/pack", 10 * MIB, token))
        lines.append(line)
    return lines


def _publish(api: Api, publication: Any) -> float:
    """Publish in three requests. Return the seconds that it took."""
    began = time.monotonic()
    assert ok(api.publish(publication))["created"]
    return time.monotonic() - began


def test_slow_uploads_of_a_lane_do_not_stop_other_lanes_or_namespaces(server: Server) -> None:
    attackers = [("team", f"pr-{number}") for number in range(3)]
    honest: list[tuple[str, str | None]] = [("team", None), ("other", "pr-1"), ("other", None)]
    with ExitStack() as stack:
        lines = _hold_uploads(
            server, stack, secret(server, "write", "team", "pr-0"), make(server.key, lane="pr-0"), 16
        )
        stack.enter_context(slowly(lines, b"x" * 500, 0.1))
        time.sleep(1)
        for namespace, lane in [("team", "pr-9"), *honest]:
            api = server.api(secret(server, "write", namespace, lane))
            assert _publish(api, make(server.key, namespace=namespace, name="one", lane=lane)) < 5
        for namespace, lane in attackers[1:]:
            token = secret(server, "write", namespace, lane)
            lines += _hold_uploads(server, stack, token, make(server.key, lane=lane), 16)
        time.sleep(1)
        for namespace, lane in honest:
            api = server.api(secret(server, "write", namespace, lane))
            assert _publish(api, make(server.key, namespace=namespace, name="two", lane=lane)) < 5


def test_slow_uploads_of_many_namespaces_end_where_somebody_waits(server: Server) -> None:
    """Every namespace takes no more than its share, and together they take all places."""
    with ExitStack() as stack:
        lines: list[socket.socket] = []
        for number in range(4):
            for _ in range(2):
                token = secret(server, "write", f"space-{number}")
                lines += _hold_uploads(server, stack, token, make(server.key, namespace=f"space-{number}"), 8)
        stack.enter_context(slowly(lines, b"x" * 500, 0.1))
        time.sleep(1)
        assert _publish(server.api(secret(server, "write")), make(server.key, name="honest")) < 15


def test_a_large_commit_that_comes_slowly_ends_where_somebody_waits(server: Server) -> None:
    with ExitStack() as stack:
        lines = []
        for namespace in ("one", "two"):
            token = secret(server, "write", namespace)
            upload = ok(server.api(token).begin(make(server.key, namespace=namespace)))["upload"]
            line = stack.enter_context(connect(server))
            line.sendall(head("POST", f"/v1/uploads/{upload}/commit", MAX_COMMIT_BYTES - 100, token))
            lines.append(line)
        stack.enter_context(slowly(lines, b"x" * 2000, 0.1))
        time.sleep(1)
        api = server.api(secret(server, "write"))
        upload = ok(api.begin(make(server.key)))["upload"]
        began = time.monotonic()
        large = {"envelope": "x" * (30 * MIB), "head": None}
        refused(api.http.post(f"/v1/uploads/{upload}/commit", json=large), 422, "corrupt")
        assert time.monotonic() - began < 20


def test_slow_questions_of_readers_do_not_delay_another_reader(server: Server) -> None:
    ok(server.api().publish(make(server.key)))
    with ExitStack() as stack:
        lines = []
        for token in [secret(server, "read") for _ in range(3)]:
            for _ in range(40):
                line = stack.enter_context(connect(server))
                line.sendall(head("POST", "/v1/resolve", 250 << 10, token))
                lines.append(line)
        stack.enter_context(slowly(lines, b"x" * 600, 0.1))
        time.sleep(1)
        honest = server.api(secret(server, "read"))
        for _ in range(20):
            began = time.monotonic()
            assert ok(honest.resolve())["revisions"]
            assert time.monotonic() - began < 1


def logins_in_vain(server: Server, forwarded: str) -> list[int]:
    """Return the statuses of 23 logins in the browser with wrong tokens, each with its number in the header
    that a proxy sets."""
    http = server.api(None).http
    csrf = re.search(r'name="csrf" value="([^"]+)"', http.get("/ui/login").text)[1]
    return [
        http.post(
            "/ui/login",
            data={"csrf": csrf, "token": f"csv_wrong{number}"},
            headers={"X-Forwarded-For": forwarded.format(number)},
        ).status_code
        for number in range(23)
    ]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_header_that_names_another_address_counts_from_a_named_proxy_alone(
    tmp_path: Path, trusted: bool
) -> None:
    env = {"CACHESVC_SERVER_PROXIES": "127.0.0.1, 10.0.0.0/8"} if trusted else {}
    with Server(tmp_path / "data", env=env).running() as running:
        statuses = logins_in_vain(running, "192.0.2.{0}")
        assert statuses == [401] * 23 if trusted else statuses.count(429) == 3


@pytest.mark.parametrize(
    "header",
    [
        "192.0.2.{0}, 127.0.0.9",
        "10.0.0.{0}, 127.0.0.9",
        "192.0.2.{0}, 10.0.0.7, 127.0.0.9",
        "192.0.2.1, nobody-{0}",
        "a line of the log {0}",
        "::ffff:192.0.2.{0}, 10.0.0.7",
    ],
)
def test_a_client_whose_address_is_in_a_proxys_network_names_no_other(tmp_path: Path, header: str) -> None:
    """What the proxy itself has seen stands last; what stands before it, the client wrote."""
    env = {"CACHESVC_SERVER_PROXIES": "127.0.0.0/8, 10.0.0.0/8"}
    server = Server(tmp_path / "data", env=env).start()
    statuses = logins_in_vain(server, header)
    # Refusals are in the log, once a minute for each address.
    refusals = [line for line in server.end() if "401 POST" in line]
    assert statuses.count(429) == 3, statuses
    assert len(refusals) == 1 and "192.0.2" not in refusals[0] and "a line" not in refusals[0], refusals
