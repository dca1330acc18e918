"""What breaks below a registry of the production column: its database, its store, a receiver and a CI job.

PostgreSQL and S3 are real and are reached over a relay that an outage closes; the clock is the week's. So the
alerts fire that a registry over SQLite and a disk has no cause for.
"""

from __future__ import annotations

from . import clock  # first: nothing may know another time

# isort: split
import contextlib
import http.server
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hosts import Failed
from benchmarks.load.columns import Production, column
from benchmarks.serving import serving
from cachesvc.api import event_delivery
from cachesvc.bootstrap.opening import open_registry
from cachesvc.domain.access import ANY
from cachesvc.registry import webhooks
from cachesvc.registry.access import tokens
from cachesvc.registry.trust import signers
from cachesvc.schema.access import SignerRecord, TokenRequest
from cachesvc.schema.webhooks import WebhookRequest
from cachesvc.settings import Settings
from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.requests.protocol import ResolveRequest, UploadRequest
from tests.services.relay import Relay

from .alerts import Alerts
from .life import FACTS, HOUR, MACHINES, MINUTE
from .world import OPERATOR, Served, warm

NAME, TARGETS = Name.parse("team/night"), (Target("part0"),)
ENVIRONMENT: dict[str, Any] = {**FACTS, **MACHINES["a100"], "torch": "2.13.0"}
RESOLVES, PUBLISHERS, HOURS = 10, 16, 11.5
BEGUN = {"database": 1.0, "store": 3.0, "receiver": 4.5, "upload": 4.0}
ENDED = {"database": 1.5, "store": 3.5, "receiver": 6.5, "upload": 10.5}
"""Hours of the night at which each is away, or hangs."""
CAUSES = {
    "database": ("CachesvcIndexDown", "CachesvcErrors", "CachesvcCollectionFails"),
    "store": ("CachesvcBlobStoreFails", "CachesvcErrors"),
    "receiver": ("CachesvcEventsUndelivered",),
    "upload": ("CachesvcUploadHangs",),
}
"""Alerts that each must make fire."""
# Two minutes are a third of a second here: pauses of half a minute would be of hours.
event_delivery.POLL_SECONDS, event_delivery.PAUSE_SECONDS = 0.05, 0.1


def live(folder: Path) -> list[dict[str, Any]]:
    """Live the night, and return the judgement of its alerts."""
    alerts = Alerts(folder)
    with column("production") as backends, contextlib.ExitStack() as closing:
        if not isinstance(backends, Production):
            raise Failed("the night needs PostgreSQL, Redis and Ceph")
        night = _Night(folder, backends, alerts)
        night.open(closing)
        began = time.time()
        night.run(began)
    causes: dict[str, list[tuple[float, float, bool]]] = {}
    for what, named in CAUSES.items():
        for alert in named:
            span = (began + BEGUN[what] * HOUR, began + ENDED[what] * HOUR, True)
            causes.setdefault(alert, []).append(span)
    return alerts.judge(began, causes)


def _behind_relays(folder: Path, backends: Production) -> tuple[Settings, Relay, Relay]:
    """Return the settings of a registry, and the relays to its database and its store."""
    named, _ = backends.fill_index(folder / "night", 0)
    relays = {}
    for setting in ("database", "bucket_endpoint"):
        target = urlsplit(named[setting])
        relays[setting] = Relay(f"{target.hostname}:{target.port}")
        named[setting] = named[setting].replace(f"{target.hostname}:{target.port}", relays[setting].address)
    values: dict[str, Any] = {**named, "gc_seconds": 0, "lease_seconds": 86_400}
    settings = Settings(data=folder / "night", private_addresses=True, webhook_plain_http=True, **values)
    return settings, relays["database"], relays["bucket_endpoint"]


class _Receiver:
    """A receiver of webhooks that can be out of order."""

    def __init__(self) -> None:
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"


class _Night:
    def __init__(self, folder: Path, backends: Production, alerts: Alerts) -> None:
        self._alerts, self._folder = alerts, folder
        self._settings, self._database, self._store = _behind_relays(folder, backends)
        os.environ |= backends.gateway.variables
        self._receiver = _Receiver()
        self._served = Served(folder, "")
        self._store_is_away, self._upload = False, ""

    def open(self, closing: contextlib.ExitStack) -> None:
        """Serve the registry, with a receiver of webhooks."""
        registry = closing.enter_context(open_registry(self._settings))
        signers.add_signer(registry, None, SignerRecord(ANY, self._served.key.public))
        request = WebhookRequest("team", self._receiver.url, ("revision.published",))
        webhooks.add_webhook(registry, OPERATOR, request)
        answer = tokens.create_token(registry, None, TokenRequest("night", "admin", "*", days=90))
        assert answer.secret is not None
        self._served.token, self._served.registry = answer.secret, registry
        self._served.url = closing.enter_context(serving(registry, gc_seconds=0.5))

    def run(self, began: float) -> None:
        """Do what a registry does all night, and break something at its time."""
        plan: list[tuple[float, Callable[[], object]]] = [
            (number * 2 * MINUTE, self._work) for number in range(int(HOURS * 30))
        ]
        do: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "database": (self._database.close, self._database.open),
            "store": (lambda: self._set_store(False), lambda: self._set_store(True)),
            "receiver": (lambda: self._answer(503), lambda: self._answer(200)),
            "upload": (self._begin_upload, self._abort_upload),
        }
        for what, (begin, end) in do.items():
            plan += [(BEGUN[what] * HOUR + 1, begin), (ENDED[what] * HOUR + 1, end)]
        for at, act in sorted(plan, key=lambda row: row[0]):
            clock.move_to(began + at)
            act()

    def _set_store(self, there: bool) -> None:
        self._store_is_away = not there
        (self._store.open if there else self._store.close)()

    def _answer(self, status: int) -> None:
        self._receiver.status = status

    def _begin_upload(self) -> None:
        """Begin an upload as a CI job does that hangs then."""
        with Remote(self._served.url, self._served.token) as remote:
            request = UploadRequest(NAME.namespace, NAME.name, 1000, None)
            self._upload = Uploads(remote).begin(request).upload

    def _abort_upload(self) -> None:
        with Remote(self._served.url, self._served.token) as remote:
            Uploads(remote).abort(self._upload)

    def _work(self) -> None:
        """Resolve and publish as in two minutes, and scrape."""
        with ThreadPoolExecutor(PUBLISHERS) as pool:
            for number in range(PUBLISHERS if self._store_is_away else 1):
                pool.submit(self._publish, number)
            for _ in range(RESOLVES):
                self._resolve()
        self._alerts.scrape(self._served.url)

    def _publish(self, number: int) -> None:
        own = self._folder / f"publisher-{number}"
        own.mkdir(exist_ok=True)
        served = Served(own, "", self._served.url, self._served.token, self._served.key)
        model = int(time.time() * 1000) + number
        with contextlib.suppress(CacheSvcError):
            warm(served, Name.parse(f"team/night-{number}"), TARGETS, ENVIRONMENT, model)

    def _resolve(self) -> None:
        request = ResolveRequest(NAME.namespace, NAME.name, ENVIRONMENT, (NAME.tag,))
        remote = Remote(self._served.url, self._served.token, retries=0, timeout=5)
        with contextlib.suppress(CacheSvcError), remote:
            remote.resolve(request)
