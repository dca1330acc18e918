"""Run Google's own testbench of Cloud Storage behind the names of ``*.googleapis.com``.

The testbench checks conditions and checksums, and neither identities nor signatures. So a proxy stands
before it that answers for Google: it exchanges what proves an identity for tokens, signs for IAM, lets in
none without a token or a signed URL, which it verifies by the published rules and the public key, and lies.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import http.client
import json
import secrets
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from .certificate import certificate
from .clouds import Headers, Lies, installed, send, server_context, serving
from .process import connects, folder, free_port, running, until

ACCOUNT = "registry@cachesvc-test.iam.gserviceaccount.com"
ASSERTION = "the cluster's word for this pod"
PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_HOSTS = (
    "storage.googleapis.com",
    "oauth2.googleapis.com",
    "sts.googleapis.com",
    "iamcredentials.googleapis.com",
)


@dataclass
class Google:
    """Google's cloud with one account and its key. ``rights``: what the account may do."""

    port: int
    place: Path
    key: rsa.RSAPrivateKey
    proxy: int = 0
    lies: Lies = field(default_factory=Lies)
    rights: set[str] = field(default_factory=lambda: {"storage", "sign"})
    tokens: dict[str, str] = field(default_factory=dict)
    """The scopes of each token that was given."""
    rewritten: Callable[[str], str] = str
    """Changes what is asked for."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often each door was used: ``key``, ``metadata``, ``federation``, ``sign`` and ``link``."""
    statuses: Counter[int] = field(default_factory=Counter)
    """What the testbench answered."""

    def variables(self, identity: str) -> dict[str, str]:
        """Return those of a process with an identity: ``key``, ``metadata`` (as on GKE) or ``federation``."""
        chain, proxy = str(self.place / "tls.crt"), f"http://127.0.0.1:{self.proxy}"
        common = {"HTTPS_PROXY": proxy, "REQUESTS_CA_BUNDLE": chain, "SSL_CERT_FILE": chain}
        if identity == "metadata":
            host = f"127.0.0.1:{self.proxy}"
            return {
                **common,
                "GCE_METADATA_HOST": host,
                "GCE_METADATA_IP": host,
                "CLOUDSDK_CONFIG": str(self.place / "no-gcloud"),
            }
        return {**common, "GOOGLE_APPLICATION_CREDENTIALS": str(self.place / f"{identity}.json")}

    def bucket(self) -> str:
        """Make a bucket, and return its URL for a store."""
        name = f"packs-{secrets.token_hex(4)}"
        self.ask("/storage/v1/b?project=test", {"name": name})
        return f"gs://{name}"

    def ask(self, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the testbench itself."""
        data = json.dumps(document).encode() if document else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def fault(self, operation: str, fault: str) -> Iterator[None]:
        """Have the testbench fail once in an operation on objects, and make sure that it did."""
        test = str(self.ask("/retry_test", {"instructions": {f"storage.objects.{operation}": [fault]}})["id"])
        self.lies.asked = lambda _, headers, body: ({**headers, "x-retry-test-id": test}, body)
        yield
        self.lies = Lies()
        assert self.ask(f"/retry_test/{test}")["completed"], "the fault has not happened"

    def give_token(self, scope: str) -> dict[str, Any]:
        token = secrets.token_hex(16)
        self.tokens[token] = scope
        return {"access_token": token, "token_type": "Bearer", "expires_in": 3600}


@contextlib.contextmanager
def cloud_storage() -> Iterator[Google]:
    """Start the testbench, which keeps what it is given in memory, and the proxy before it."""
    source = installed("google") / "testbench"
    with folder("testbench") as place:
        port = free_port()
        command = [
            *("/usr/bin/env", f"PYTHONPATH={source}:{source / 'site'}", sys.executable, "-m", "gunicorn"),
            *("--no-control-socket", f"--bind=127.0.0.1:{port}", "--worker-class=gthread", "--threads=16"),
            "testbench:run()",
        ]
        with running(command, place) as process:
            until(lambda: connects(port), process, place)
            google = Google(port, place, rsa.generate_private_key(65537, 2048))
            _write_identities(google)
            chain, private = certificate(place, "tls", 1, *_HOSTS)
            with serving(_handler(google, server_context(chain, private)), None) as google.proxy:
                yield google


def _write_identities(google: Google) -> None:
    pem = google.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (google.place / "assertion").write_text(ASSERTION)
    key = {
        "type": "service_account",
        "project_id": "cachesvc-test",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": ACCOUNT,
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    federation = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": str(google.place / "assertion")},
        "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
        f"{ACCOUNT}:generateAccessToken",
    }
    unlinked = {name: value for name, value in federation.items() if "impersonation" not in name}
    for name, document in {"key": key, "federation": federation, "unlinked": unlinked}.items():
        (google.place / f"{name}.json").write_text(json.dumps(document))


def _handler(google: Google, tls: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            """Be the host that is asked for."""
            self.send_response_only(200)
            self.end_headers()
            try:
                self.request = tls.wrap_socket(self.request, server_side=True)
            except OSError:
                self.close_connection = True
                return
            self.setup()
            self.close_connection = False

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding"):
                raise AssertionError("no client of this test sends chunks")
            host = (self.headers["Host"] or "").partition(":")[0]
            doors = {"oauth2": _key, "sts": _federation, "iamcredentials": _iam, "127": _metadata}
            door = doors.get(host.partition(".")[0])
            if door is not None:
                status, document = door(google, self.path, self.headers, body)
                headers = {"Content-Type": "application/json", "Metadata-Flavor": "Google"}
                text = document if isinstance(document, str) else json.dumps(document)
                send(self, status, headers, text.encode())
                return
            refusal = _refusal(google, self.command, self.path, self.headers)
            if refusal:
                send(self, refusal[0], {"Content-Type": "application/json"}, _error(*refusal))
                return
            self.path = google.rewritten(self.path)
            try:
                headers, body = google.lies.asked(self.command, dict(self.headers.items()), body)
                self.forward(headers, body)
            except OSError:  # a lie, or a fault that the testbench was told to have
                self.close_connection = True

        def forward(self, headers: Headers, body: bytes) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", google.port, timeout=60)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body, {**headers, "X-Forwarded-Proto": "https"})
                answer = connection.getresponse()
                google.statuses[answer.status] += 1
                try:
                    data = answer.read()
                except http.client.HTTPException as error:
                    raise OSError("the testbench hung up") from error
                sent = dict(answer.getheaders())
                if answer.status == 200:  # the testbench names the range also where it sends no part
                    sent.pop("Content-Range", None)
                send(self, answer.status, *google.lies.answered(self.command, sent, data), google.lies.cut)

        do_HEAD = do_PUT = do_DELETE = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return Handler


Answer = tuple[int, "dict[str, Any] | str"]


def _key(google: Google, _path: str, _headers: Any, body: bytes) -> Answer:
    """Exchange what a service account's key has signed."""
    asked = dict(urllib.parse.parse_qsl(body.decode()))
    signed, _, signature = asked["assertion"].rpartition(".")
    google.key.public_key().verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(_decoded(signed.partition(".")[2]))
    assert claims["iss"] == ACCOUNT
    google.asked["key"] += 1
    return 200, google.give_token(claims["scope"])


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _federation(google: Google, _path: str, _headers: Any, body: bytes) -> Answer:
    """Exchange the token of a cluster."""
    asked = dict(urllib.parse.parse_qsl(body.decode()))
    if asked.get("subject_token") != ASSERTION:
        return 400, {"error": "invalid_grant", "error_description": "no such token is known"}
    google.asked["federation"] += 1
    return 200, {
        **google.give_token(asked["scope"]),
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }


def _metadata(google: Google, path: str, headers: Any, _: bytes) -> Answer:
    """Answer as the metadata server of a pod does."""
    if headers.get("Metadata-Flavor") != "Google":
        return 403, "no Metadata-Flavor"
    account = "/computeMetadata/v1/instance/service-accounts/"
    place, _, query = path.partition("?")
    if place.startswith(account) and place.endswith("/token"):
        google.asked["metadata"] += 1
        scopes = urllib.parse.parse_qs(query).get("scopes", [PLATFORM])[0]
        return 200, google.give_token(scopes)
    if place.startswith(account):
        return 200, {"email": ACCOUNT, "scopes": [PLATFORM], "aliases": ["default"]}
    if place.endswith("/universe-domain"):
        return 404, "none"
    return 200, "cachesvc-test"


def _iam(google: Google, path: str, headers: Any, body: bytes) -> Answer:
    """Sign for the account, or give a token of it to whoever may be it."""
    scopes = google.tokens.get(headers.get("Authorization", "").removeprefix("Bearer "), "")
    if not {PLATFORM, "https://www.googleapis.com/auth/iam"} & set(scopes.split()):
        return 403, {"error": {"code": 403, "message": "the token's scopes do not suffice"}}
    if ACCOUNT not in urllib.parse.unquote(path):
        return 404, {"error": {"code": 404, "message": "no such account"}}
    asked = json.loads(body)
    if path.partition("?")[0].endswith(":generateAccessToken"):
        given = google.give_token(" ".join(asked["scope"]))
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        return 200, {"accessToken": given["access_token"], "expireTime": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if "sign" not in google.rights:
        return 403, {"error": {"code": 403, "message": "Permission 'iam.serviceAccounts.signBlob' denied"}}
    google.asked["sign"] += 1
    signed = google.key.sign(base64.b64decode(asked["payload"]), padding.PKCS1v15(), hashes.SHA256())
    return 200, {"keyId": "1", "signedBlob": base64.b64encode(signed).decode()}


def _refusal(google: Google, method: str, path: str, headers: Any) -> tuple[int, str] | None:
    """Return why Cloud Storage does not answer this request, and its status."""
    if "X-Goog-Signature=" in path:
        problem = signature_problem(google.key.public_key(), method, path, headers)
        google.asked["link"] += not problem
        return problem
    if headers.get("Authorization", "").removeprefix("Bearer ") not in google.tokens:
        return 401, "Invalid Credentials"
    if "storage" not in google.rights:
        return 403, f"{ACCOUNT} does not have storage.objects access to the bucket."
    return None


def signature_problem(key: rsa.RSAPublicKey, method: str, path: str, headers: Any) -> tuple[int, str] | None:
    """Verify a signed URL of version 4 as https://cloud.google.com/storage/docs/authentication/canonical-requests
    says. Return the status and the words of a refusal."""
    place, _, query = path.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&")]
    asked = {name: urllib.parse.unquote(value) for name, value in pairs}
    begin = datetime.datetime.strptime(asked["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    scope = f"{begin:%Y%m%d}/auto/storage/goog4_request"
    names = asked["X-Goog-SignedHeaders"].split(";")
    canonical = [
        method,
        place,
        "&".join(sorted(f"{name}={value}" for name, value in pairs if name != "X-Goog-Signature")),
        *(f"{name}:{' '.join(headers[name].split())}" for name in names),
        "",
        asked["X-Goog-SignedHeaders"],
        "UNSIGNED-PAYLOAD",
    ]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    signed = "\n".join(["GOOG4-RSA-SHA256", asked["X-Goog-Date"], scope, digest])
    try:
        signature = bytes.fromhex(asked["X-Goog-Signature"])
        key.verify(signature, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, ValueError):
        return 403, "SignatureDoesNotMatch"
    wrong = (
        asked["X-Goog-Algorithm"] != "GOOG4-RSA-SHA256" or asked["X-Goog-Credential"] != f"{ACCOUNT}/{scope}"
    )
    if wrong or "host" not in names or not 0 < int(asked["X-Goog-Expires"]) <= 604800:
        return 400, "InvalidArgument"
    now = datetime.datetime.now(datetime.UTC)
    late = now - begin > datetime.timedelta(seconds=int(asked["X-Goog-Expires"]))
    return (400, "ExpiredToken") if late or begin - now > datetime.timedelta(minutes=15) else None


def _error(status: int, message: str) -> bytes:
    return json.dumps({"error": {"code": status, "message": message}}).encode()
