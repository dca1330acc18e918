"""Whoever reaches the registry's port: no token, a token in the wrong place, or a request that is read in two
ways, and what reaches logs, tables and databases of it."""

from __future__ import annotations

import gzip
import io
import json
import logging
import socket
import time
from collections.abc import Iterator

import pytest
from registry_inside import START, Clock, Inside, inside
from registry_making import FINGERPRINT, Publication, Server, make, ok

from cachesvc.api import logs
from cachesvc.registry.access import tokens
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey

from .in_process import Application

HOSTILE = (
    "a\nb",
    "a\r\nSet-Cookie: x",
    "\x1b[2J\x1b]0;owned\x07",
    "\u009b2J",
    "\u202egnp.exe",
    "\u2028x",
    "\0",
)
"""Text that forges a line, obeys a terminal, or reads otherwise than it is."""
Header = tuple[bytes, bytes]


class World:
    """A registry in this process, with tokens of the namespace ``team`` and one revision."""

    def __init__(self, reg: Inside, application: Application) -> None:
        self.reg, self.application = reg, application
        roles = {"read": "team", "report": "team", "write": "team", "root": "*"}
        self.secrets = {title: self.secret(title, space) for title, space in roles.items()}
        self.made: Publication = make(reg.key, sequence=START * 1000)
        reg.publish(self.made)

    def secret(self, title: str, namespace: str) -> str:
        role = "admin" if title == "root" else title
        request = TokenRequest(title, role, namespace, never=True)
        return tokens.create_token(self.reg.registry, None, request).secret or ""

    def ask(self, method: str, path: str, who: str | None = None, body: object = None, **query: str) -> int:
        secret = self.secrets[who] if who else None
        return self.application.request(method, path, secret=secret, query=query, body=body).status

    def send(self, path: str, headers: list[Header], body: bytes = b"", method: str = "GET", query: str = ""):
        return self.application.send(method, path, query, [(b"host", b"registry"), *headers], body)

    def bearer(self, who: str) -> Header:
        return b"authorization", b"Bearer " + self.secrets[who].encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with inside(tmp_path_factory.mktemp("registry"), SigningKey.generate(), Clock()) as reg:
        application = Application(reg.registry)
        with application.running():
            yield World(reg, application)


JSON: Header = (b"content-type", b"application/json")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "GETX", "get"])
def test_another_method_opens_no_guarded_route(world: World, method: str) -> None:
    for path in ("/v1/tokens", "/v1/audit", "/v1/signers", f"/v1/revisions/{world.made.revision}/pack"):
        answer = world.send(path, [], method=method)
        assert answer.status in (401, 405), (method, path)
        assert world.made.pack not in answer.body


@pytest.mark.parametrize(
    "header", [b"x-http-method-override", b"x-original-url", b"x-rewrite-url", b"x-forwarded-host"]
)
def test_a_header_turns_an_open_route_into_no_guarded_one(world: World, header: bytes) -> None:
    value = b"DELETE" if header.startswith(b"x-http") else b"/v1/tokens"
    answer = world.send("/healthz", [(header, value)])
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert world.send("/v1/tokens", [(header, b"/healthz")]).status == 401


SPELLINGS = (
    *("//v1/tokens", "/v1//tokens", "/v1/tokens/", "/v1/./tokens", "/healthz/../v1/tokens", "/V1/tokens"),
    *("/v1/tokens;x", "/v1/tokens\0", "/v1/tokens ", "/v1/tokens%20", "/v1\\tokens", "/healthz/v1/tokens"),
    *("http://registry/v1/tokens", "/v1/token\u017f", "*"),
)


@pytest.mark.parametrize("path", SPELLINGS)
def test_another_spelling_of_a_guarded_path_leads_nowhere(world: World, path: str) -> None:
    answer = world.send(path, [])
    assert answer.status in (401, 404) and b"csv_" not in answer.body.replace("csv_…".encode(), b"")
    assert b"t-" not in answer.body


def test_a_token_outside_of_its_header_counts_nothing(world: World) -> None:
    """Addresses stand in logs of proxies and in histories: a token in one is no token."""
    secret = world.secrets["root"]
    places: list[tuple[list[Header], str]] = [
        ([], f"token={secret}&access_token={secret}"),
        ([(b"cookie", f"token={secret}; session={secret}".encode())], ""),
        ([(b"x-api-key", secret.encode())], ""),
        ([(b"proxy-authorization", f"Bearer {secret}".encode())], ""),
        ([(b"authorization", f"Basic {secret}".encode())], ""),
        ([(b"authorization", secret.encode())], ""),
    ]
    for headers, query in places:
        assert world.send("/v1/whoami", headers, query=query).status == 401
    assert world.send("/v1/whoami", [world.bearer("root")]).status == 200


def test_two_tokens_are_not_read_by_two_rules(world: World) -> None:
    """A proxy may look at one of two headers and the registry at the other."""
    good, bad = world.bearer("root"), (b"authorization", b"Bearer csv_unknown")
    statuses = {world.send("/v1/whoami", pair).status for pair in ([good, bad], [bad, good])}
    assert 401 in statuses
    assert world.send("/v1/tokens", [world.bearer("read"), bad]).status in (401, 403)
    assert world.send("/v1/tokens", [bad, world.bearer("read")]).status in (401, 403)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_read_later_holds_no_control_characters(world: World, text: str) -> None:
    """Labels, reasons, hosts' names and rules are shown to operators, who have more rights."""
    digest = "sha256:" + "0" * 64
    subject = {"namespace": "team", "name": "n", "environment": digest}
    rule = {
        "issuer": "https://ci.example.com",
        "audience": "a",
        "claims": {"repository": "a/b", "ref": "main"},
    }
    report = {
        "node": "0" * 32,
        "fingerprint": FINGERPRINT,
        "revisions": [{"revision": str(world.made.revision), "state": "inert"}],
    }
    tries: list[tuple[str, str, str, object]] = [
        ("POST", "/v1/tokens", "root", {"label": text, "role": "read", "namespace": "team"}),
        ("POST", "/v1/tokens", "root", {"label": "x", "role": "read", "namespace": text}),
        ("POST", "/v1/tokens", "root", {"label": "x", "role": "read", "namespace": "team", "lane": text}),
        ("PUT", f"/v1/revisions/{world.made.revision}/quarantine", "root", {"why": text}),
        ("PUT", f"/v1/revisions/{world.made.revision}/pin", "root", {"why": text}),
        ("POST", "/v1/claims", "write", {"subject": subject, "holder": "a" * 32, "who": text}),
        ("POST", "/v1/publishers", "root", {**rule, "namespace": "team", "label": text}),
        ("POST", "/v1/webhooks", "root", {"namespace": "team", "url": "https://a.example/", "label": text}),
        ("POST", "/v1/webhooks", "root", {"namespace": "team", "url": f"https://a.example/{text}"}),
        ("POST", "/v1/reports", "report", {**report, "why": [text]}),
        ("POST", "/v1/reports", "report", {**report, "node": text}),
        ("POST", "/v1/reports", "report", {**report, "fingerprint": {**FINGERPRINT, "gpu": text}}),
        ("POST", "/v1/reports", "report", {**report, "kinds": {text: {}}}),
        ("POST", "/v1/uploads", "write", {"namespace": "team", "name": text, "size": 1}),
        ("POST", "/v1/uploads", "write", {"namespace": "team", "name": "n", "lane": text, "size": 1}),
    ]
    for method, path, who, body in tries:
        assert world.ask(method, path, who, body) == 422, (path, body)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_request_forges_no_line_of_the_log(form: str, text: str) -> None:
    """The path of a request is in lines of the log, whoever sent it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.JsonLines() if form == "json" else logs.TextLines(logs.TEXT))
    record = logging.makeLogRecord(
        {
            "msg": "%s %s [%s]",
            "args": ("GET", f"/v1/{text}", "id"),
            "levelname": "ERROR",
            "name": "cachesvc.api",
        }
    )
    record.fields = {"path": f"/v1/{text}"}
    handler.emit(record)
    line = written.getvalue().removesuffix("\n")
    assert line.isprintable() and (form == "text" or line.isascii()), line


@pytest.mark.parametrize("text", ["a\nb", "x" * 65, "a b", "\u0661", "a\r\nSet-Cookie: b", ""])
def test_a_request_s_id_goes_back_as_no_header_of_its_sender(world: World, text: str) -> None:
    """The id of the sender is taken only if it is one; the log and the answer have another one otherwise."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.JsonLines())
    log = logging.getLogger("cachesvc.requests")
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        world.send("/healthz", [(b"x-request-id", text.encode())])
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    request = json.loads(written.getvalue())["request"]
    assert request != text and len(request) == 16


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"gzip, gzip"])
def test_a_compressed_body_is_not_unpacked(world: World, coding: bytes) -> None:
    """20 MiB of zeros, in 20 kB."""
    bomb = gzip.compress(bytes(20 << 20), 6)
    began = time.process_time()
    for path, who in (("/v1/resolve", "read"), ("/v1/reports", "report")):
        headers = [world.bearer(who), JSON, (b"content-encoding", coding)]
        assert world.send(path, headers, bomb, "POST").status in (413, 422)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    "text", ["%", "_", "%25", "\\", "a%", "' OR 1=1 --", "\"'); DROP TABLE tokens; --", "*"]
)
def test_a_search_for_a_pattern_finds_what_is_spelled_so(world: World, text: str) -> None:
    """No letter of SQL means more than itself: no row is found, and nothing is run."""
    for field in ("target", "gpu", "torch", "model"):
        answer = world.application.request(
            "GET",
            "/v1/entries",
            secret=world.secrets["read"],
            query={"namespace": "team", field: text},
        )
        assert answer.status in (200, 422)
        assert answer.status == 422 or answer.json["rows"] == []
    query = {"namespace": "team", "target": "bert"}
    found = world.application.request("GET", "/v1/entries", secret=world.secrets["read"], query=query)
    assert len(found.json["rows"]) == 1, "without the attack there is a row"
    for who in ("read", "root"):
        answer = world.application.request("GET", f"/v1/digests/revision/{text}", secret=world.secrets[who])
        assert answer.status in (404, 422)


@pytest.mark.parametrize(
    "text",
    [
        "bytes=0-99999999999999999999",
        "bytes=-99999999999999999999",
        "bytes=" + "9" * 5000 + "-",
        "bytes=5-2",
        "bytes=" + "0-0," * 3000 + "0-0",
        "bytes=\u0662-\u0663",
        "bytes=--1",
        "bytes=0x0-0x5",
    ],
)
def test_a_range_shows_the_pack_and_nothing_beyond(world: World, text: str) -> None:
    """At most the pack, once: no byte of a neighbour, and no answer that is larger than the pack."""
    headers = [world.bearer("read"), (b"range", text.encode())]
    answer = world.send(f"/v1/revisions/{world.made.revision}/pack", headers)
    assert answer.status in (200, 206, 416), answer.body
    assert answer.status == 416 or answer.body in world.made.pack


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1e308", "-1e-400", "1" * 5000])
def test_a_number_that_is_none_changes_no_sum(world: World, number: str) -> None:
    row = f'{{"revision":"{world.made.revision}","state":"hit","saved":{number}}}'
    facts = json.dumps(FINGERPRINT)
    body = f'{{"node":"{"0" * 32}","fingerprint":{facts},"revisions":[{row}]}}'.encode()
    status = world.send("/v1/reports", [world.bearer("report"), JSON], body, "POST").status
    assert status in (200, 422)
    stats = world.application.request(
        "GET", "/v1/stats", secret=world.secrets["root"], query={"namespace": "team"}
    )
    assert 0 <= stats.json["saved"] <= 1.5 * 7, stats.body


@pytest.mark.parametrize(
    "upload", ["../../index.sqlite3", "..%2f..%2fsigning.key", "%2e%2e", "u-" + "0" * 32, "u-*"]
)
def test_a_path_of_an_upload_leads_to_no_file(world: World, upload: str) -> None:
    before = world.reg.blobs()
    for method, suffix, body in (
        ("PUT", "/pack", b"x"),
        ("POST", "/commit", {"envelope": "{}"}),
        ("DELETE", "", None),
    ):
        assert world.ask(method, f"/v1/uploads/{upload}{suffix}", "write", body) == 404
    assert world.reg.blobs() == before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data").running() as running:
        yield running


def talk(server: Server, data: bytes, seconds: float = 1.0) -> bytes:
    """Send bytes as they are; return all that comes back, until the end or a silence."""
    host, port = server.url.removeprefix("http://").split(":")
    answers = b""
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        try:
            while chunk := connection.recv(65536):
                answers += chunk
        except (TimeoutError, ConnectionError):
            pass
    return answers


SMUGGLED = b"GET /v1/whoami HTTP/1.1\r\nHost: registry\r\n"
LENGTHS = {
    "both": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
    "both, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 5\r\n",
    "a list": b"Content-Length: 0, 5\r\n",
    "a sign": b"Content-Length: +5\r\n",
    "a space": b"Transfer-Encoding : chunked\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a letter": b"Content-Length: \xb2\r\n",
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_request_whose_end_two_servers_read_otherwise_hides_no_other(
    server: Server, lengths: bytes
) -> None:
    """What a proxy takes for the body must not be the next request on the connection."""
    token = f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    head = b"POST /v1/resolve HTTP/1.1\r\nHost: registry\r\n" + lengths + b"\r\n"
    answers = talk(server, head + b"0\r\n\r\n" + SMUGGLED + token)
    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert b'"role"' not in answers


def test_a_body_that_announces_more_than_exists_reserves_nothing(server: Server) -> None:
    token = f"Authorization: Bearer {server.token}\r\n".encode()
    for framing in (
        b"Content-Length: 9223372036854775807\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\nab\r\n",
    ):
        head = b"POST /v1/resolve HTTP/1.1\r\nHost: registry\r\nContent-Type: application/json\r\n" + token
        assert b" 200 " not in talk(server, head + framing, 0.5)
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"


def test_a_folded_header_holds_no_token(server: Server) -> None:
    folded = f"X-Note: a\r\n Authorization: Bearer {server.token}\r\n\r\n".encode()
    assert talk(server, SMUGGLED + folded).startswith(b"HTTP/1.1 4")


def test_a_head_without_end_is_not_read(server: Server) -> None:
    answers = talk(server, SMUGGLED + b"X-A: " + b"a" * (1 << 20))
    assert answers == b"" or answers.startswith(b"HTTP/1.1 4")


def test_a_small_bundle_is_no_other_token_s_upload(world: World) -> None:
    """Whoever knows the id of another's upload, and of its pack, can neither commit it nor send for it."""
    made = make(world.reg.key, name="theirs", sequence=START * 1000)
    theirs = world.reg.begin(made)
    world.reg.put(theirs, made.pack)
    body = {"envelope": made.envelope.decode()}
    assert world.ask("POST", f"/v1/uploads/{theirs}/commit", "write", body) == 404
    assert world.ask("PUT", f"/v1/uploads/{theirs}/pack", "write", b"other") == 404
    answer = world.reg.commit(theirs, made)
    assert answer.created and world.reg.pack(made.revision) == made.pack


def test_a_recorded_publication_is_sent_again_under_another_name(world: World) -> None:
    """Whoever saw a publication of one name sends its bytes for another, for a lane, and as another token."""
    made = make(world.reg.key, name="seen", sequence=START * 1000)
    content = bundle_head(made.envelope) + made.pack
    for query in ({"name": "other"}, {"name": "seen", "lane": "pr-1"}):
        answer = world.application.request(
            "POST",
            "/v1/bundles",
            secret=world.secrets["root"],
            query={"namespace": "team", **query},
            body=content,
        )
        assert answer.status in (403, 422) and b"signed" in answer.body, answer.body
