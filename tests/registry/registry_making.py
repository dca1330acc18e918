"""Make packs, manifests and envelopes to publish, and run a server in a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.login import login
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target
from tests.prepared import SERVES, prepared_python

FINGERPRINT = {
    "schema": 1,
    "torch": "2.13.0",
    "python_abi": "cpython-311",
    "platform": "linux-x86_64",
    "cpu_isa": "avx2",
    "cpu_flags": ["avx", "avx2", "fma"],
}


_last = 0


def next_sequence() -> int:
    """Return the time in milliseconds of UTC, as clients do, and never the same number twice."""
    global _last
    _last = max(time.time_ns() // 1_000_000, _last + 1)
    return _last


@dataclass(frozen=True)
class Publication:
    """Holds a manifest, its envelope and its pack."""

    manifest: Manifest
    envelope: bytes
    pack: bytes

    @property
    def revision(self) -> Digest:
        return Digest.of(self.manifest.encode())


def make(
    key: SigningKey,
    *,
    namespace: str = "team",
    name: str = "bert",
    tag: str = "latest",
    target: str = "bert/f32",
    lane: str | None = None,
    sequence: int | None = None,
    content: bytes = b"kernel",
    path: str = "aa/caa.py",
    fingerprint: dict[str, Any] | None = None,
    model: bytes = b"model",
    expires: int | None = None,
    **changed: Any,
) -> Publication:
    out = io.BytesIO()
    contents = write_pack([SourceFile("inductor", path, content)], out)
    statement = Statement(
        Namespace(namespace),
        ShortName(name),
        Target(target),
        sequence or next_sequence(),
        Tag(tag),
        Lane(lane) if lane else None,
        expires,
    )
    facts = {
        "pack": contents.pack,
        "frames": contents.frames,
        "files": contents.files,
        "fingerprint": fingerprint or FINGERPRINT,
        "workload": Workload(model=Digest.of(model)),
        "scopes": ("host",),
        "measured": {"compile": 1.5},
        "deferrable": True,
        **changed,
    }
    manifest = Manifest(statement=statement, **facts)
    return Publication(manifest, key.sign(manifest), out.getvalue())


_AUTHORITIES = ssl.create_default_context()
"""Is made once: to read the certificates takes longer than a request."""


class Api:
    """Returns every answer of the registry as an HTTP response."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(
            base_url=url, headers=headers, timeout=30, trust_env=False, verify=_AUTHORITIES
        )

    def begin(self, publication: Publication, **changed: Any) -> httpx.Response:
        statement = publication.manifest.statement
        body = {"namespace": statement.namespace, "name": statement.name, "size": len(publication.pack)}
        if statement.lane:
            body["lane"] = statement.lane
        return self.http.post("/v1/uploads", json={**body, **changed})

    def put(self, upload: str, data: Any) -> httpx.Response:
        return self.http.put(f"/v1/uploads/{upload}/pack", content=data)

    def commit(self, upload: str, publication: Publication, head: str | None = None) -> httpx.Response:
        body = {"envelope": publication.envelope.decode(), "head": head}
        return self.http.post(f"/v1/uploads/{upload}/commit", json=body)

    def publish(self, publication: Publication, head: str | None = None) -> httpx.Response:
        upload = ok(self.begin(publication))["upload"]
        ok(self.put(upload, publication.pack))
        return self.commit(upload, publication, head)

    def bundle(self, publication: Publication, head: str | None = None, **more: Any) -> httpx.Response:
        statement = publication.manifest.statement
        address = {"namespace": statement.namespace, "name": statement.name, "lane": statement.lane}
        parameters = {
            name: value for name, value in {**address, "head": head, **more}.items() if value is not None
        }
        return self.http.post(
            "/v1/bundles", params=parameters, content=bundle_head(publication.envelope) + publication.pack
        )

    def resolve(self, namespace: str = "team", name: str = "bert", **more: Any) -> httpx.Response:
        body = {"namespace": namespace, "name": name, "fingerprint": FINGERPRINT, **more}
        return self.http.post("/v1/resolve", json=body)

    def fetch(self, pack_url: str) -> httpx.Response:
        """Return the pack that an answer names. Its link is all that a reader needs."""
        if pack_url.startswith("/"):
            return self.http.get(pack_url)
        return httpx.get(pack_url, timeout=30, trust_env=False)

    def pack(self, revision: str, **headers: str) -> httpx.Response:
        return self.http.get(f"/v1/revisions/{revision}/pack", headers=headers)


def ok(answer: httpx.Response) -> Any:
    """Return the body of a success."""
    assert answer.status_code < 300, (answer.status_code, answer.text)
    return answer.json() if answer.content else None


def refused(answer: httpx.Response, status: int, code: str, *words: str) -> str:
    """Check that a failure is of this kind and names these words. Return its message."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == code
    text = f"{error['message']} ({error['hint']})"
    assert "\n" not in text
    for word in words:
        assert word in text, (word, text)
    return text


@dataclass
class Server:
    """Runs a ``cachesvc serve`` of its own.

    ``prepared``: in an interpreter that has imported its modules already (`tests.prepared`); not where a test
    asks the system for the process by its id."""

    data: Path
    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    ready: dict[str, str] = field(default_factory=dict)
    token: str = ""
    prepared: bool = True

    def start(self) -> Server:
        ready = self.data.parent / f"{self.data.name}.ready.json"
        ready.unlink(missing_ok=True)
        self.process = launch(
            self.data,
            "--ready-file",
            str(ready),
            *self.options,
            before=self.before,
            prepared=self.prepared and not self.before,
            **self.env,
        )
        while not ready.exists():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"serve ended with {self.process.returncode}: {self.process.stderr.read()}"
                )
            time.sleep(0.02)
        self.ready = json.loads(ready.read_text())
        self.token = self.ready.get("token", self.token)
        return self

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Run the server for the block; it must end well."""
        yield self.start()
        assert self.stop() == 0

    def pin_root(self, home: Path) -> Path:
        """Log in as a user with this home, and return the file of the pinned root."""
        pin = login(self.url, self.token, environ={"HOME": str(home)})[2]
        assert pin is not None
        return pin.path

    @property
    def url(self) -> str:
        return self.ready["url"]

    @property
    def key(self) -> SigningKey:
        return SigningKey.load(Path(self.ready["signing_key"]))

    def api(self, token: str | None = "") -> Api:
        return Api(self.url, self.token if token == "" else token)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self._closed()
        # A prepared program ends right after the process that stands for it.
        port = int(self.url.rpartition(":")[2])
        while listens(port):
            time.sleep(0.01)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        self._closed()
        return status

    def end(self) -> list[str]:
        """Stop the server and return the lines that it logged."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err
        return err.splitlines()

    def _closed(self) -> None:
        self.process.stdout.close()
        self.process.stderr.close()


def listens(port: int) -> bool:
    """Return whether a process listens on this port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def launch(
    data: Path, *options: str, before: Sequence[str] = (), prepared: bool = False, **env: str
) -> subprocess.Popen[str]:
    """Start ``cachesvc serve`` on a free port, by the command ``before`` if there is one.

    ``prepared``: see `Server`."""
    python = prepared_python(SERVES, {**os.environ, **env}) if prepared else [sys.executable]
    command = [*before, *python, "-m", "cachesvc", "serve", "--data", str(data)]
    if "--port" not in options:
        command += ["--port", "0"]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
