"""An identity provider on loopback: real HTTP, real keys, a login page, and codes that count once. It can
misbehave as the tests say."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import httpx

from cachesvc.domain.people import parse_grant
from cachesvc.oidc.issuers import Issuers
from cachesvc.oidc.login import Client
from cachesvc.registry.context import PersonLogin
from tests.security.issuer import Issuer

from .site import Site

PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"name": "Ada <b>L</b>", "groups": ["staff", "cache-admins"]},
    "bob": {"preferred_username": "bob", "groups": ["ml"]},
    "cleo": {"name": "Cleo", "groups": ["ml-leads", "watchers"]},
    "dan": {"name": "Dan", "groups": ["staff"]},
    "eve": {"email": "eve@example.org"},
}
"""What the provider says of each person; the name is the subject."""
ROLES = {
    "cache-admins": ["admin in *"],
    "ml": ["read in team"],
    "ml-leads": ["admin in team", "read in team"],
    "watchers": ["read in *"],
}
CLIENT_ID = "cache svc"
SECRET = "s:e/c r%e+t"
"""Both have letters in them that must be encoded before they are joined."""


@dataclass
class Provider:
    """What the provider says, and how it misbehaves. ``claims``, ``answer``, ``discovery``: what is changed
    in its tokens, in its answers to a browser and in its document; ``None`` leaves a member out. ``token``:
    makes the ID token of its claims. ``form_secret``: it takes the client's secret in the form alone."""

    issuer: Issuer
    clock: Callable[[], float]
    redirect_uri: str = ""
    people: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, str | None] = field(default_factory=dict)
    discovery: dict[str, Any] = field(default_factory=dict)
    token: Callable[[dict[str, Any]], str] | None = None
    down: bool = False
    form_secret: bool = False
    tokens_given: list[str] = field(default_factory=list)
    _codes: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    def behave(self) -> None:
        """Ends every misbehaviour."""
        self.people = {name: dict(claims) for name, claims in PEOPLE.items()}
        self.claims, self.answer, self.discovery, self.token = {}, {}, {}, None
        self.down = self.form_secret = False

    def document(self) -> dict[str, Any]:
        url = self.issuer.url
        known = {
            "issuer": url,
            "jwks_uri": f"{url}/keys",
            "authorization_endpoint": f"{url}/authorize?tenant=1",
            "token_endpoint": f"{url}/token",
            "authorization_response_iss_parameter_supported": True,
        }
        if self.form_secret:
            known["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        return {name: value for name, value in {**known, **self.discovery}.items() if value is not None}

    def login_page(self, query: dict[str, str]) -> str:
        """Returns the page on which somebody says who it is. Raises unless the request is a right one."""
        assert query["client_id"] == CLIENT_ID and query["redirect_uri"] == self.redirect_uri
        assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
        assert "openid" in query["scope"].split() and query["tenant"] == "1"
        assert all(len(query[name]) == 43 for name in ("state", "nonce", "code_challenge"))
        buttons = "".join(f'<button name="person" value="{one}">{one}</button>' for one in self.people)
        action = html.escape(f"/authorize?{urlencode(query)}")
        page = f'<title>Provider</title><form method="post" action="{action}">{buttons}</form>'
        return f"<!doctype html><html lang=en>{page}"

    def approve(self, query: dict[str, str], person: str) -> str:
        """Returns the address to which the browser of a person goes back."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = (person, query)
        answer = {"code": code, "state": query["state"], "iss": self.issuer.url, **self.answer}
        return f"{self.redirect_uri}?{urlencode({name: text for name, text in answer.items() if text})}"

    def redeem(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Returns the answer to a code, which counts once, for the client that began, with its verifier."""
        if self.form_secret:
            sent = (form.get("client_id", ""), form.get("client_secret", ""))
        else:
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            sent = (unquote(pair.partition(":")[0]), unquote(pair.partition(":")[2]))
        if sent != (CLIENT_ID, SECRET):
            return 401, {"error": "invalid_client"}
        person, query = self._codes.pop(form["code"], ("", {}))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        right = query and query["code_challenge"] == challenge and form["redirect_uri"] == self.redirect_uri
        if not right:
            return 400, {"error": "invalid_grant"}
        now = int(self.clock())
        claims = {"iss": self.issuer.url, "aud": CLIENT_ID, "sub": person, "nonce": query["nonce"]}
        claims |= {"iat": now, "exp": now + 300, **self.people[person], **self.claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        token = self.token(claims) if self.token else self.issuer.sign(claims)
        self.tokens_given.append(token)
        return 200, {"token_type": "Bearer", "access_token": "unused", "id_token": token}

    def log_in(self, address: str, person: str) -> str:
        """Does what a person does at the provider, and returns the address to which the browser goes back."""
        with httpx.Client(trust_env=False) as browser:
            assert browser.get(address).status_code == 200
            answer = browser.post(address, data={"person": person})
            assert answer.status_code == 302, answer.text
            return answer.headers["location"]


@contextmanager
def running_provider(clock: Callable[[], float]) -> Iterator[Provider]:
    """Serve a provider on loopback."""
    provider = Provider(Issuer(), clock)
    provider.issuer.add_key("one", "RS256")
    provider.issuer.add_key("two", "ES256")
    provider.behave()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            provider.issuer.requests.append(url.path)
            if provider.down:
                self.close_connection = True
            elif url.path == "/authorize":
                self._send(200, "text/html", provider.login_page(dict(parse_qsl(url.query))).encode())
            else:
                known = provider.issuer.jwks() if url.path == "/keys" else provider.document()
                self._send(200, "application/json", json.dumps(known).encode())

        def do_POST(self) -> None:
            url = urlsplit(self.path)
            provider.issuer.requests.append(url.path)
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = dict(parse_qsl(body))
            if provider.down:
                self.close_connection = True
            elif url.path == "/authorize":
                self.send_response(302)
                self.send_header("location", provider.approve(dict(parse_qsl(url.query)), form["person"]))
                self.send_header("content-length", "0")
                self.end_headers()
            else:
                status, answer = provider.redeem(form, self.headers.get("authorization", ""))
                self._send(status, "application/json", json.dumps(answer).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    provider.issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def let_people_in(one: Site, provider: Provider, **changed: Any) -> None:
    """Have people log in to a served registry at the provider. The registry forgets what it knows of it."""
    page = f"{one.url}/ui/login"
    provider.redirect_uri = f"{page}/callback"
    client = Client(provider.issuer.url, CLIENT_ID, SECRET, provider.redirect_uri, "openid profile email")
    roles = changed.get("roles", ROLES)
    rules = {value: tuple(map(parse_grant, grants)) for value, grants in roles.items()}
    login = PersonLogin(client, page, changed.get("claim", "groups"), rules, changed.get("seconds", 3600))
    registry = one.inside.registry
    object.__setattr__(registry.outside, "login", login)
    object.__setattr__(registry.outside, "issuers", Issuers(own=provider.issuer.url, clock=one.inside.clock))
