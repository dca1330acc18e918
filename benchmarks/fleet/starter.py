"""Start as a service does, up to its first compile, with the client's own code and without torch.

A starter resolves its name, claims what nothing fits, waits, downloads, verifies, and reports. Only the
compile is a sleep, and the published pack holds random bytes.
"""

from __future__ import annotations

import http.client
import random
import secrets
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.claims.acquire import ClaimOutcome
from cachesvc_client.claims.restore_or_claim import ClaimedRestore
from cachesvc_client.config.settings import Config
from cachesvc_client.hooks.activity import PAUSE_SECONDS, QUIET_SECONDS
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import AcceptedRevision, RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.outcome.send import send
from cachesvc_client.publication.as_you_go import UNPROVEN_LANE
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.ranks.deadline import Deadline
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.session.attempt import Attempt
from cachesvc_client.wire.errors import CacheSvcError, Incompatible, NotFound
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

REPORT_SECONDS = 5.0
"""Seconds that a report may take, which comes after the start and delays nothing."""


@dataclass(frozen=True)
class Plan:
    """Says what the starters of a process do.

    ``urls``: addresses of the registry; a starter uses one of them. ``clients``: how many starters.
    ``deadline`` and ``compile_seconds``: seconds. ``pack_bytes``: size of what a starter publishes.
    ``fingerprint``: the environment of all starters. ``folder``: where each starter has a node store of its
    own. ``link``: where a starter only downloads this, as fast as it can, and keeps nothing; empty: it
    starts.
    """

    urls: tuple[str, ...]
    token: str
    trust: str
    signing_key: str
    name: str
    clients: int
    deadline: float
    compile_seconds: float
    pack_bytes: int
    fingerprint: dict[str, Any]
    folder: str
    link: str = ""


@dataclass
class Start:
    """Says how one start went.

    ``waited``: seconds until the compile could begin or nothing was left to compile. ``seconds``: until the
    start was over. ``claimed``: whether it compiled under a claim. ``why``: why it compiled without one.
    ``errors``: what failed. ``report``: how the report ended.
    """

    restored: bool = False
    compiled: bool = False
    claimed: bool = False
    published: bool = False
    waited: float = 0.0
    seconds: float = 0.0
    bytes: int = 0
    why: str = ""
    report: str = ""
    errors: list[str] = field(default_factory=list)


class _Claims(ClaimedRestore):
    """Claims as a process does, but each starter of this process is a holder of its own."""

    __slots__ = ("holder", "why")

    def __init__(self, config: Config, patience: Callable[[], float]) -> None:
        super().__init__(config, patience, None, "fleet", True)
        self.holder, self.why = secrets.token_hex(16), ""

    def _holder(self) -> str:
        return self.holder

    def _acquire(self, *arguments: Any, **named: Any) -> ClaimOutcome[list[AcceptedRevision]]:
        outcome = super()._acquire(*arguments, **named)
        self.why = outcome.why
        return outcome


class Starter:
    """One process of the fleet."""

    def __init__(self, plan: Plan, number: int, on_compile: Callable[[], None]) -> None:
        self._plan, self._on_compile = plan, on_compile
        folder = Path(plan.folder, str(number))
        folder.mkdir(parents=True)
        self._folder = folder
        self._url = plan.urls[number % len(plan.urls)]
        variables = {
            "CACHESVC_URL": self._url,
            "CACHESVC_TOKEN": plan.token,
            "CACHESVC_TRUSTED_KEYS": plan.trust,
            "CACHESVC_SIGNING_KEY": plan.signing_key,
            "CACHESVC_MODE": "readwrite",
            "CACHESVC_DEADLINE": str(plan.deadline),
        }
        self._config = Config.read(variables)
        self._name = Name.parse(plan.name)
        self._deadline = Deadline()
        self._deadline.seconds = plan.deadline
        self._settings = RestoreSettings(self._config.acceptance(), plan.fingerprint, lane=UNPROVEN_LANE)
        self._target = RestoreTarget(NodeStore(folder / "store"), dict)
        self._accepted: list[AcceptedRevision] = []
        self._result = RestoreResult()
        self._claims = _Claims(self._config, lambda: self._deadline.for_claim(alone=True))
        self._start = Start()

    def run(self) -> Start:
        """Start, and return how it went. Raises nothing of a registry."""
        if self._plan.link:
            return self._download()
        start, begin = self._start, time.perf_counter()
        self._deadline.begin(begin)
        attempt = Attempt(self._restore)
        attempt.start()
        if not attempt.wait(self._plan.deadline):
            start.errors.append("not restored within the deadline")
        start.waited = time.perf_counter() - begin
        start.why, start.bytes = self._claims.why, self._result.moved
        if not start.restored:
            self._compile()
        start.seconds = time.perf_counter() - begin
        if start.compiled:
            self._publish()
        else:
            self._report()
        return start

    def _download(self) -> Start:
        """Download the pack and nothing else: what the network and the registry's machine allow."""
        begin = time.perf_counter()
        link = urllib.parse.urlsplit(urllib.parse.urljoin(self._url, self._plan.link))
        connection = http.client.HTTPConnection(link.netloc, timeout=self._plan.deadline)
        own = not urllib.parse.urlsplit(self._plan.link).netloc
        headers = {"Authorization": f"Bearer {self._plan.token}"} if own else {}
        try:
            connection.request("GET", f"{link.path}?{link.query}".rstrip("?"), headers=headers)
            answer = connection.getresponse()
            while chunk := answer.read(1 << 16):
                self._start.bytes += len(chunk)
            if answer.status != 200:
                self._start.errors.append(f"status {answer.status}")
        except OSError as error:
            self._start.errors.append(str(error))
        finally:
            connection.close()
        self._start.waited = self._start.seconds = time.perf_counter() - begin
        return self._start

    def _restore(self) -> None:
        """Do what a session does on its thread."""
        request = NameRequest(self._name, lane=UNPROVEN_LANE)
        seconds = min(10.0, max(0.2, self._plan.deadline / 2))
        try:
            with Remote(self._url, self._plan.token, timeout=seconds) as remote:
                inquiry = Inquiry(remote, self._settings, self._target, self._result)
                self._accepted = self._claims.accept(request, inquiry)
                for one in self._accepted:
                    one.pack.fetch()
            self._start.restored = True
        except (NotFound, Incompatible):
            pass  # nothing fits, so this starter compiles
        except CacheSvcError as error:
            self._start.errors.append(str(error))

    def _compile(self) -> None:
        self._start.compiled = True
        self._start.claimed = bool(self._claims.claims)
        self._on_compile()
        time.sleep(self._plan.compile_seconds)

    def _publish(self) -> None:
        """Publish under the claim, if there is one: an unclaimed starter leaves that to others."""
        claim = self._claims.claims.get(self._name)
        if claim is None:
            return
        fingerprint, key = self._plan.fingerprint, SigningKey.load(Path(self._plan.signing_key))
        draft = Draft(self._name, Target("service"), fingerprint, Workload(), (), UNPROVEN_LANE)
        content = random.Random(self._plan.name).randbytes(self._plan.pack_bytes)
        files = [SourceFile("triton", "0/a/kernel.cubin", content)]
        path = self._folder / "pack.cachesvc"
        build_bundle(files, draft, key, path)
        try:
            with Remote(self._url, self._plan.token) as remote:
                publish_bundle(remote, path, key, claim=claim.commit_ref)
            claim.published()
            self._start.published = True
        except CacheSvcError as error:
            self._start.errors.append(f"not published: {error}")
            claim.release()

    def _report(self) -> None:
        rows = tuple(
            RevisionReport(staged.revision, "hit", len(staged.manifest.files), len(staged.manifest.files))
            for staged in self._accepted
        )
        message = ReportRequest(secrets.token_hex(16), self._plan.fingerprint, rows)
        moments = (("counted", PAUSE_SECONDS), ("counted when it was quiet", QUIET_SECONDS))
        for word, pause in moments:  # as a process does, which reports when it pauses, and again when quiet
            time.sleep(pause)
            begin = time.monotonic()
            try:
                send(message, self._config, begin + REPORT_SECONDS)
                self._start.report = word
                return
            except CacheSvcError as error:
                self._start.report = error.code
                if not error.retry:
                    return


def as_json(start: Start) -> dict[str, Any]:
    """Return a start as a line of JSON has it."""
    return asdict(start)
