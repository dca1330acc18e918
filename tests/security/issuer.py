"""An issuer of OpenID Connect tokens on loopback: a real HTTP server with real keys, which can misbehave."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

Key = RSAKey | ECKey | OKPKey
KINDS = {
    "RS256": lambda: RSAKey.generate_key(2048),
    "ES256": lambda: ECKey.generate_key("P-256"),
    "EdDSA": lambda: OKPKey.generate_key("Ed25519"),
}


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@dataclass
class Issuer:
    """Signs tokens with ``keys[kid]`` and publishes ``published`` (all keys, if it is ``None``)."""

    url: str = ""
    keys: dict[str, tuple[str, Key]] = field(default_factory=dict)
    published: list[dict[str, Any]] | None = None
    requests: list[str] = field(default_factory=list)
    padding: int = 0
    pause: float = 0.0
    drip: bool = False
    gone: bool = False
    redirect: str = ""
    discovery: dict[str, Any] = field(default_factory=dict)
    request_secret: str = ""

    def github(self) -> dict[str, str]:
        """The variables by which GitHub lets a job ask for tokens."""
        self.request_secret = self.request_secret or uuid.uuid4().hex
        return {
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}/token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.request_secret,
        }

    def answer(self, path: str, authorization: str | None) -> dict[str, Any]:
        url = urlsplit(path)
        if url.path.startswith("/.well-known/"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.discovery}
        if url.path == "/token":
            assert self.request_secret and authorization == f"Bearer {self.request_secret}"
            [audience] = parse_qs(url.query)["audience"]
            return {"value": self.sign(self.claims(time.time(), aud=audience))}
        return self.jwks()

    def add_key(self, kid: str, algorithm: str = "ES256") -> Key:
        key = KINDS[algorithm]()
        self.keys[kid] = (algorithm, key)
        return key

    def jwks(self) -> dict[str, Any]:
        rows = [
            {**key.as_dict(private=False), "kid": kid, "alg": algorithm, "use": "sig"}
            for kid, (algorithm, key) in self.keys.items()
        ]
        return {"keys": rows if self.published is None else self.published}

    def sign(self, claims: dict[str, Any], by: str = "one", **header: Any) -> str:
        algorithm, key = self.keys[by]
        protected = {"alg": algorithm, "kid": by, "typ": "JWT", **header}
        return jws.serialize_compact(protected, json.dumps(claims), key, algorithms=[algorithm])

    def unsigned(self, claims: dict[str, Any]) -> str:
        return f"{part({'alg': 'none', 'kid': 'one', 'typ': 'JWT'})}.{part(claims)}."

    def signed_by_hmac(self, claims: dict[str, Any], secret: bytes) -> str:
        signed = f"{part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{part(claims)}"
        mac = hmac.digest(secret, signed.encode(), "sha256")
        return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"

    def claims(self, now: float, **changed: Any) -> dict[str, Any]:
        """What GitHub says of a push to main; ``None`` leaves a claim out."""
        push = {
            "iss": self.url,
            "aud": "https://registry.example",
            "sub": "repo:org/app:ref:refs/heads/main",
            "repository": "org/app",
            "ref": "refs/heads/main",
            "event_name": "push",
            "iat": int(now),
            "nbf": int(now) - 5,
            "exp": int(now) + 300,
            "jti": str(uuid.uuid4()),
        }
        return {name: value for name, value in {**push, **changed}.items() if value is not None}


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.add_key("one")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.requests.append(self.path)
            if issuer.gone:
                self.close_connection = True
                return
            if issuer.redirect:
                self.send_response(302)
                self.send_header("location", issuer.redirect)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            document = issuer.answer(self.path, self.headers.get("authorization"))
            body = json.dumps(document).encode() + b" " * issuer.padding
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            time.sleep(issuer.pause)
            try:
                if issuer.drip:
                    for byte in body:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        time.sleep(0.1)
                else:
                    self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
