"""A real registry over HTTP, the CI that fills it, and services that start from it without a compiler.

A start is the client's own: trust metadata, resolve, acceptance, the pack's bytes, and a question by the keys
of its graphs, as a compile asks. It compiles for each target whose graph no accepted entry has. Its report is
what a process would send.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.serving import serving
from cachesvc.api import gauges
from cachesvc.bootstrap.opening import migrate_index, open_registry
from cachesvc.domain.access import ANY, Role, Token
from cachesvc.queries.coverage import cover
from cachesvc.queries.planned import Plan, PlannedEnvironment
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Registry
from cachesvc.registry.trust import metadata as trust
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import gc, retention
from cachesvc.schema.access import SignerRecord, TokenRequest
from cachesvc.schema.namespaces import Policy
from cachesvc.settings import Settings
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.node.installed import AcceptedRevision, RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.restore.accept import accept_name, accept_resolved
from cachesvc_client.restore.registry_access import RegistryAccess
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Namespace, Target
from cachesvc_client.wire.requests.protocol import FEW_RESOLVED
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest, RevisionReport

# Half an hour is a second here: sums that are shown again for 15 seconds would be of hours ago.
gauges.FRESH_SECONDS, gauges.SHARE = 0.2, 1
OPERATOR = Token("week", "the operator", Role.admin, ANY)


def graph_key(name: Name, target: Target, model: int) -> str:
    """Return the key under which Inductor looks for the graph of a model."""
    text = hashlib.sha256(f"{name.name}/{target}/{model}".encode()).hexdigest()
    return "f" + text[:50]


def model_digest(name: Name, model: int) -> Digest:
    """Return the hash of a model of a name."""
    return Digest.of(f"{name.name} {model}".encode())


@dataclass
class Served:
    """A registry that is served from ``folder``, with what its CI and its services use."""

    folder: Path
    redis: str
    url: str = ""
    token: str = ""
    key: SigningKey = field(default_factory=SigningKey.generate)
    registry: Registry | None = None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def data(self) -> Path:
        """Return the data folder."""
        return self.folder / "data"

    @property
    def root(self) -> Path:
        """Return the file of the pinned root."""
        return self.folder / "root.json"

    def start(self) -> None:
        """Serve, over what the data folder has."""
        settings = Settings(data=self.data, redis=self.redis, gc_seconds=0)
        migrate_index(settings, apply=True)
        registry = self._open.enter_context(open_registry(settings))
        self.registry = registry
        trust.prepare(registry)
        if not self.token:
            signers.add_signer(registry, None, SignerRecord(ANY, self.key.public))
            trust.prepare(registry)
        self.url = self._open.enter_context(serving(registry, web_page=True))

    def stop(self) -> None:
        """Stop serving."""
        self._open.close()
        self._open = contextlib.ExitStack()

    def make_token(self) -> None:
        """Make the token of all, for 90 days."""
        assert self.registry is not None
        answer = tokens.create_token(self.registry, None, TokenRequest("week", "admin", "*", days=90))
        assert answer.secret is not None
        self.token = answer.secret

    def pin(self) -> None:
        """Pin the root, and keep its key elsewhere, as an operator with offline keys does."""
        assert self.registry is not None
        self.root.write_bytes(trust.read_file(self.registry, OPERATOR, "1.root.json"))

    def add_token(self) -> str:
        """Make a token of a service that ends in five days, and return its id."""
        assert self.registry is not None
        return tokens.create_token(self.registry, None, TokenRequest("old", "read", "team", days=5)).token

    def revoke(self, token: str) -> None:
        """Revoke a token."""
        assert self.registry is not None
        tokens.revoke_token(self.registry, OPERATOR, token)

    def set_quota(self, used: float) -> None:
        """Let the namespace use that share of its quota; 0: it has none."""
        assert self.registry is not None
        namespace = Namespace("team")
        with self.registry.index.read() as unit:
            stored = unit.namespaces.bytes(namespace)
        quota = int(stored / used) if used else None
        retention.set_policy(self.registry, OPERATOR, namespace, Policy(quota_bytes=quota))

    def sign_anew(self) -> None:
        """Sign anew what the registry has keys for."""
        assert self.registry is not None
        trust.prepare(self.registry)

    def collect(self) -> int:
        """Collect, and return how many revisions went."""
        assert self.registry is not None
        return gc.collect(self.registry).revisions

    def config(self, store: Path | None = None) -> Config:
        """Return the configuration of a client."""
        variables = {
            "CACHESVC_URL": self.url,
            "CACHESVC_TOKEN": self.token,
            "CACHESVC_TRUST_ROOT": str(self.root),
        }
        return Config.read(variables | ({"CACHESVC_STORE": str(store)} if store else {}))

    def backup(self, path: Path) -> None:
        """Copy the index as of now."""
        with sqlite3.connect(self.data / "index.sqlite3") as here, sqlite3.connect(path) as there:
            here.backup(there)

    def restore(self, path: Path) -> None:
        """Put an older index in the place of this one, and serve again."""
        self.stop()
        for old in self.data.glob("index.sqlite3*"):
            old.unlink()
        shutil.copy(path, self.data / "index.sqlite3")
        self.start()


def warm(served: Served, name: Name, targets: tuple[Target, ...], facts: dict[str, Any], model: int) -> None:
    """Publish what CI compiled of a model for one environment. Raises ``CacheSvcError``."""
    from cachesvc_client.http.registry import Remote

    with Remote(served.url, served.token) as remote:
        for target in targets:
            path = served.folder / "made.cachesvc"
            key = graph_key(name, target, model)
            files = [SourceFile("inductor", f"fxgraph/{key[1:3]}/{key}/{'a' * 52}", key.encode())]
            workload = Workload(model=model_digest(name, model))
            build = Build(measured={"first_call": 30.0})
            draft = Draft(name, target, facts, workload, ("host",), build=build)
            build_bundle(files, draft, served.key, path)
            publish_bundle(remote, path, served.key)


def verdicts(
    served: Served, name: Name, targets: tuple[Target, ...], facts: dict[str, Any], model: int | None
) -> dict[str, str]:
    """Return what coverage says of each target in one environment, as a gate before a start asks. ``model``:
    the one that is deployed; ``None``: whoever asks does not know it."""
    plan = Plan(
        given=(PlannedEnvironment(facts),),
        targets=tuple(map(str, targets)),
        model=None if model is None else model_digest(name, model),
    )
    try:
        grid = cover(served.config(served.folder / "operator"), name, plan=plan, gate=True)
    except CacheSvcError as error:  # coverage ends with this line, and with no status of success
        return {str(target): f"error: {error.message}" for target in targets}
    return {cell.target: f"{cell.state}: {cell.why}" for cell in grid.cells}


@dataclass
class Node:
    """A machine on which services of one environment start. ``off``: seconds by which its clock is wrong."""

    store: Path
    facts: dict[str, Any]
    off: float = 0.0
    id: str = field(default_factory=lambda: secrets.token_hex(16))


def start(
    served: Served, node: Node, name: Name, targets: tuple[Target, ...], model: int
) -> tuple[dict[str, bool], str]:
    """Start a service, and return by target whether it was a hit, and why not. Raises nothing of a
    registry."""
    config = served.config(node.store)
    result = RestoreResult()
    target = RestoreTarget(NodeStore(node.store), dict)
    access = RegistryAccess(config, target, result)
    keys = {one: graph_key(name, one, model) for one in targets}
    accepted: list[AcceptedRevision] = []
    why = ""
    try:
        with access.connect() as remote:
            settings = RestoreSettings(
                access.acceptance(remote, 5.0), node.facts, limit=FEW_RESOLVED, bypass_cache=True
            )
            inquiry = Inquiry(remote, settings, target, result)
            request = NameRequest(name)
            accepted = accept_name(request, inquiry)
            for key in keys.values():
                if not any(_has(one, key) for one in accepted):
                    answer = remote.resolve(request.request(node.facts, keys=(key,)))
                    accepted += [accept_resolved(request, row, inquiry) for row in answer.revisions]
            for one in accepted:
                one.pack.fetch()
                statement = one.manifest.statement
                target.store.marks.record_sequence(one.manifest.entry, statement.sequence, one.signer)
    except CacheSvcError as error:
        why = error.message
        accepted = []
    hits = {str(one): any(_has(row, key) for row in accepted) for one, key in keys.items()}
    _report(config, node, name, accepted, hits, model)
    return hits, why or next((str(row) for row in result.problems), "no accepted entry has the graph")


def _has(one: AcceptedRevision, key: str) -> bool:
    return any(f"/{key}/" in f"/{file.path}/" for file in one.manifest.files)


def _report(
    config: Config,
    node: Node,
    name: Name,
    accepted: list[AcceptedRevision],
    hits: dict[str, bool],
    model: int,
) -> None:
    """Send the report of a start, as a process does that has one session."""
    from cachesvc_client.http.registry import Remote

    missed = sum(not hit for hit in hits.values())
    work = {"inductor": KindWork(missed, 0, 30.0 * missed)} if missed else {}
    rows = []
    wanted = model_digest(name, model)
    any_used = any(hits.values())
    for one in accepted:
        used = one.manifest.workload.model == wanted and hits.get(str(one.manifest.statement.target), False)
        state = ("partial" if missed else "hit") if used else "unused" if any_used else "inert"
        rows.append(RevisionReport(one.revision, state, 1, int(used), 29.0 if used else None))
    cold = None if rows else ColdStart((ColdName(name.namespace, name.name, name.tag),), (wanted,))
    message = ReportRequest(node.id, node.facts, tuple(rows), work, ("graph",) if missed else (), cold=cold)
    with contextlib.suppress(CacheSvcError), Remote(config.url or "", config.token, retries=0) as remote:
        remote.report(message)
