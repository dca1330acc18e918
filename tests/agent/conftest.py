"""What the tests of the agent share: a registry with entries that need no compiler."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachesvc.agent.measures import Measures
from cachesvc.agent.round import Keeper, Selection
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc.agent.watch import Pattern
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.shared_store import open_shared_store
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.restore.node_offers import NodeOffers
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.requests.protocol import ResolveRequest
from tests.e2e.registries import Served, prepare, serve


@dataclass(frozen=True)
class Published:
    """Names a published revision, its entry and its pack, as digests."""

    revision: str
    entry: str
    pack: str


@dataclass
class Publisher:
    """Publishes entries of one file to a registry."""

    served: Served
    key: SigningKey
    folder: Path
    number: int = 0

    @property
    def config(self) -> Config:
        return Config.read(self.served.variables)

    def publish(
        self,
        name: str,
        *,
        seed: int = 0,
        size: int = 100_000,
        target: str = "service",
        model: Digest | None = None,
        **facts: Any,
    ) -> Published:
        """Publish an entry that fits this machine, over the head that is there."""
        self.number += 1
        path = self.folder / f"entry-{self.number}.cachesvc"
        content = random.Random(f"{name}{seed}").randbytes(size)
        files = [SourceFile("inductor", f"fxgraph/ab/f{'a' * 31}/{seed:032x}", content)]
        here = {**detect(dict(os.environ)), **facts}
        draft = Draft(Name.parse(name), Target(target), here, Workload(model=model), ())
        manifest = build_bundle(files, draft, self.key, path, quick=True)
        with Remote(self.served.url, self.served.token) as remote:
            answer = publish_bundle(remote, path, self.key)
        return Published(str(answer.revision), str(answer.entry), str(manifest.pack.digest))


@dataclass
class Node:
    """A node with an agent's store, in this process."""

    root: Path
    config: Config
    measures: Measures

    def round(self, *patterns: str, bound: int = 1 << 30, pins: tuple[str, ...] = (), **options: Any) -> None:
        """Do one round of a new agent."""
        self.keeper(*patterns, bound=bound, pins=pins, **options).round()

    def keeper(
        self,
        *patterns: str,
        bound: int = 1 << 30,
        pins: tuple[str, ...] = (),
        step: Any = lambda _name: None,
        **options: Any,
    ) -> Keeper:
        selection = Selection(tuple(map(Pattern.parse, patterns)), tuple(map(Pattern.parse, pins)), **options)
        store = SharedStoreWriter(self.root, bound, step)
        return Keeper(self.config, selection, store, self.measures)

    def offers(self, name: str, max_age: float = 60.0) -> list[str] | None:
        """Return the revisions that a service of this node would be offered; ``None``: it asks the
        registry."""
        parsed = Name.parse(name)
        store = open_shared_store(self.root, None)
        request = ResolveRequest(parsed.namespace, parsed.name, detect(dict(os.environ)), (parsed.tag,))
        found = NodeOffers(store, self.config.url or "", max_age).answer(request, max_age)
        return None if found is None else [row.revision for row in found[0].revisions]

    def packs(self) -> set[str]:
        """Return the packs in the store, as their digests."""
        return {f"sha256:{path.name}" for path in (self.root / "v1" / "packs").iterdir()}


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    folder = tmp_path_factory.mktemp("registry")
    key = SigningKey.generate()
    prepare(folder, key.text)
    with serve(folder) as served:
        yield Publisher(served, key, folder)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    """A registry by which agents find packs at each other."""
    folder = tmp_path_factory.mktemp("registry-of-peers")
    key = SigningKey.generate()
    prepare(folder, key.text)
    with serve(folder, variables={**os.environ, "CACHESVC_SERVER_PEERS": "1"}) as served:
        yield Publisher(served, key, folder)


@pytest.fixture
def node(publisher: Publisher, tmp_path: Path) -> Node:
    return Node(tmp_path / "store", publisher.config, Measures())
