"""Start a registry and a mirror of it, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from registry_making import Api, Server, ok

LONG = 60.0
"""Seconds that a test waits for what the mirror does in the background, on a machine that is busy."""


def eventually(holds: Callable[[], Any], what: str = "it") -> Any:
    """Return the first true value of ``holds``."""
    until = time.monotonic() + LONG
    while not (value := holds()):
        assert time.monotonic() < until, f"{what} did not happen in {LONG} s"
        time.sleep(0.05)
    return value


def metric(server: Server, name: str, **labels: str) -> float:
    """Return the value of a metric of a server."""
    text = server.api(None).http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    raise AssertionError(f"{name} {labels} is not there")


def bytes_out(server: Server) -> float:
    """Return the bytes of packs that left the server's store."""
    return metric(server, "cachesvc_blob_bytes_total", way="out")


@dataclass
class Pair:
    """Holds a registry and its mirror. ``root``: the pinned root of the registry. ``secret``: the mirror's
    token at the registry."""

    upstream: Server
    mirror: Server
    root: Path
    secret: str

    def token(self, role: str, namespace: str = "team", **more: Any) -> dict[str, Any]:
        """Make a token at the upstream."""
        body = {"label": "test", "role": role, "namespace": namespace, "days": 1, **more}
        return ok(self.upstream.api().http.post("/v1/tokens", json=body))

    def reader(self, role: str = "read") -> Api:
        """Return a client of the mirror with a token of the upstream."""
        return self.mirror.api(self.token(role)["secret"])


def mirror_of(
    upstream: Server, folder: Path, root: Path, secret: str, url: str = "", **settings: str
) -> Server:
    """Return a mirror that is not started."""
    folder.mkdir(exist_ok=True)
    values = {
        "upstream_url": url or upstream.url,
        "upstream_token": secret,
        "upstream_root": str(root),
        "upstream_seconds": "1",
        **settings,
    }
    env = {f"CACHESVC_SERVER_{name.upper()}": value for name, value in values.items()}
    return Server(folder / "data", env=env)


@contextmanager
def running_pair(folder: Path, **settings: str) -> Iterator[Pair]:
    """Run both for the block. A test may stop or kill either."""
    (folder / "upstream").mkdir()
    upstream = Server(folder / "upstream" / "data")
    servers = [upstream]
    try:
        upstream.start()
        (folder / "operator").mkdir()
        root = upstream.pin_root(folder / "operator")
        body = {"label": "mirror", "role": "read", "namespace": "*", "days": 1}
        secret = ok(upstream.api().http.post("/v1/tokens", json=body))["secret"]
        mirror = mirror_of(upstream, folder / "mirror", root, secret, **settings)
        servers.insert(0, mirror)
        yield Pair(upstream, mirror.start(), root, secret)
    finally:
        for server in servers:
            if server.process is not None and server.process.poll() is None:
                server.stop()


def resolved(api: Api, **more: Any) -> list[str]:
    """Return the revisions that an answer offers; none for a name that is not there."""
    answer = api.resolve(**more)
    return [] if answer.status_code == 404 else [row["revision"] for row in ok(answer)["revisions"]]
