"""Test what a hostile writer of the node's store, and a hostile registry, gain: nothing but delay."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.node.shared_store import open_shared_store
from cachesvc_client.node.store import NodeStore
from cachesvc_client.restore.accept import accept_name
from cachesvc_client.restore.install import install_revision
from cachesvc_client.restore.node_offers import NodeOffers
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.trust_root.pin import pin_root
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.trust_root.registry_metadata import AgentMetadata, refresh_policy
from cachesvc_client.wire.errors import CacheSvcError, Unavailable, Untrusted
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.node_list import MAX_LIST_BYTES, NodeList, list_key
from tests.e2e.registries import free_url
from tests.http.hostile_servers import Request
from tests.http.hostile_servers import serve as serve_hostile

from .conftest import Node, Publisher


class Service:
    """A service of the node, with a store and a cache folder of its own, in this process."""

    def __init__(self, node: Node, place: Path) -> None:
        self.node, self.result = node, RestoreResult()
        self.store, self.cache = NodeStore(place / "own"), place / "cache"

    def start(self, name: str, url: str | None = None) -> list[str]:
        """Restore a name; return the revisions that were installed. ``url``: where the registry is now."""
        config = self.node.config
        address = config.url or ""
        settings = RestoreSettings(config.acceptance(), detect(dict(os.environ)))
        offers = NodeOffers(open_shared_store(self.node.root, None), address, 60.0)
        target = RestoreTarget(self.store, lambda: {"inductor": self.cache}, offers)
        with Remote(url or address, config.token, timeout=2.0, retries=0) as remote:
            accepted = accept_name(
                NameRequest(Name.parse(name)), Inquiry(remote, settings, target, self.result)
            )
            installed = [install_revision(one, target, self.result) for one in accepted]
        return [str(one.revision) for one in installed if one is not None]

    def files(self) -> list[bytes]:
        return [path.read_bytes() for path in self.cache.rglob("*") if path.is_file()]


@pytest.fixture
def service(node: Node, tmp_path: Path) -> Service:
    return Service(node, tmp_path / "service")


def list_path(node: Node, name: str) -> Path:
    return node.root / "v1" / "lists" / list_key(node.config.url or "", Name.parse(name)).hex


def change_list(node: Node, name: str, change: Callable[[NodeList], NodeList]) -> None:
    path = list_path(node, name)
    path.write_bytes(change(NodeList.parse(path.read_bytes())).encode())


def test_a_writer_who_swaps_a_pack_has_none_of_its_bytes_installed(
    publisher: Publisher, node: Node, service: Service
) -> None:
    entry = publisher.publish("swap/bert", seed=1)
    node.round("swap/bert")
    path = node.root / "v1" / "packs" / entry.pack[7:]
    whole = path.read_bytes()
    for at in (0, 20, len(whole) // 2, len(whole) - 1):
        other = bytearray(whole)
        other[at] ^= 1
        path.write_bytes(other)
        place = Service(node, service.cache.parent / str(at))
        assert place.start("swap/bert") == [entry.revision]
        assert place.result.moved == len(whole)
        assert place.files() == [random.Random("swap/bert1").randbytes(100_000)]
    path.unlink()
    os.mkfifo(path)
    began = time.monotonic()
    last = Service(node, service.cache.parent / "pipe")
    assert last.start("swap/bert") == [entry.revision]
    assert (last.result.moved, time.monotonic() - began < 10) == (len(whole), True)


def test_a_writer_who_lists_what_a_stranger_signed_has_nothing_installed(
    publisher: Publisher, node: Node, service: Service
) -> None:
    entry = publisher.publish("sign/bert", seed=1)
    node.round("sign/bert")
    path = node.root / "v1" / "envelopes" / entry.revision[7:]
    manifest = open_manifest(publisher, path.read_bytes())
    path.write_bytes(SigningKey.generate().sign(manifest))
    with pytest.raises(Untrusted, match="not trusted"):
        service.start("sign/bert")
    assert service.files() == []


def open_manifest(publisher: Publisher, envelope: bytes) -> Manifest:
    return check_envelope(envelope, trusted=[publisher.key.public], expected=None, now=0.0).manifest


def test_a_writer_who_lists_another_name_s_revision_has_nothing_installed(
    publisher: Publisher, node: Node, service: Service
) -> None:
    mine, other = publisher.publish("mine/bert", seed=1), publisher.publish("mine/other", seed=2)
    node.round("mine/*")
    envelopes = node.root / "v1" / "envelopes"
    (envelopes / mine.revision[7:]).write_bytes((envelopes / other.revision[7:]).read_bytes())
    with pytest.raises(Untrusted, match="wanted: mine/bert"):
        service.start("mine/bert")
    assert service.files() == []
    # A whole list of another name is no list of this one: the registry is asked.
    list_path(node, "mine/bert").write_bytes(list_path(node, "mine/other").read_bytes())
    assert service.start("mine/bert") == [mine.revision]


def test_a_writer_who_offers_an_older_revision_is_refused_by_a_service_that_saw_the_newer(
    publisher: Publisher, node: Node, service: Service
) -> None:
    publisher.publish("back/bert", seed=1)
    node.round("back/bert")
    kept = {path: path.read_bytes() for path in (node.root / "v1").rglob("*") if path.is_file()}
    new = publisher.publish("back/bert", seed=2)
    node.round("back/bert")
    assert service.start("back/bert") == [new.revision]
    for path, data in kept.items():
        path.write_bytes(data)
    with pytest.raises(Untrusted, match="older than"):
        service.start("back/bert")


def test_a_writer_who_says_that_another_environment_fits_has_nothing_installed(
    publisher: Publisher, node: Node, service: Service
) -> None:
    publisher.publish("lie/bert", seed=1, torch="1.0.0")
    node.round("lie/bert")
    here = detect(dict(os.environ))
    change_list(node, "lie/bert", lambda listed: replace(listed, fingerprints=(dict(here),)))
    with pytest.raises(CacheSvcError, match="torch"):
        service.start("lie/bert")
    assert service.files() == []


@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.write_bytes(b"["),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b'{"format":"cachesvc.node-list/2"}'),
        lambda path: os.truncate(path, MAX_LIST_BYTES + 1),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: os.utime(path, (time.time() + 3600,) * 2),
        lambda path: os.utime(path, (time.time() - 3600,) * 2),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"fingerprint":0', b'"fingerprint":7')),
    ],
    ids=["torn", "deep", "newer", "large", "pipe", "link", "folder", "future", "old", "beyond"],
)
def test_a_list_that_is_none_is_passed_over_and_the_registry_is_asked(
    publisher: Publisher, node: Node, service: Service, put: Callable[[Path], object]
) -> None:
    entry = publisher.publish("none/bert", seed=1)
    node.round("none/bert")
    put(list_path(node, "none/bert"))
    assert node.offers("none/bert") is None
    assert service.start("none/bert") == [entry.revision]
    assert service.result.moved == 0  # the pack was here all the same


def test_an_envelope_that_is_gone_is_asked_of_the_registry(
    publisher: Publisher, node: Node, service: Service
) -> None:
    entry = publisher.publish("torn/bert", seed=1)
    node.round("torn/bert")
    (node.root / "v1" / "envelopes" / entry.revision[7:]).unlink()
    with pytest.raises(Unavailable):
        Service(node, service.cache.parent / "away").start("torn/bert", free_url())
    assert service.start("torn/bert") == [entry.revision]


def test_what_no_list_has_is_asked_of_the_registry(
    publisher: Publisher, node: Node, service: Service
) -> None:
    node.round("late/bert")
    assert node.offers("late/bert") == []
    entry = publisher.publish("late/bert", seed=1)
    assert service.start("late/bert") == [entry.revision]


@pytest.fixture
def pinned(publisher: Publisher, node: Node, tmp_path: Path) -> Node:
    """The same node, whose operator trusts the registry's root and no list of keys."""
    with Remote(publisher.served.url, publisher.served.token) as remote:
        pin = pin_root(remote, None, tmp_path / "roots")
    assert pin is not None
    config = Config.read(
        {
            "CACHESVC_URL": publisher.served.url,
            "CACHESVC_TOKEN": publisher.served.token,
            "CACHESVC_TRUST_ROOT": str(pin.path),
        }
    )
    return Node(node.root, config, node.measures)


def policy_without_the_registry(pinned: Node, own: Path, max_age: float = 60.0) -> SignerPolicy:
    assert pinned.config.trust_root is not None
    agent = AgentMetadata(open_shared_store(pinned.root, None).trust_folder, max_age)
    with Remote(pinned.config.url or "", pinned.config.token) as remote:
        remote.call = unreachable  # type: ignore[method-assign, assignment]
        return refresh_policy(pinned.config.trust_root, own, remote, agent=agent)[0]


def unreachable(*_: object, **__: object) -> dict[str, bytes]:
    raise Unavailable("nobody is there")


def test_trust_metadata_of_the_agent_are_verified_from_the_services_own_root(
    publisher: Publisher, pinned: Node, tmp_path: Path
) -> None:
    publisher.publish("rooted/bert", seed=1)
    pinned.round("rooted/bert")
    assert len(pinned.offers("rooted/bert") or []) == 1
    [path] = (pinned.root / "v1" / "envelopes").iterdir()
    for number, max_age in enumerate((60.0, 0.0)):  # recent ones, and a registry that is gone
        policy = policy_without_the_registry(pinned, tmp_path / f"own-{number}", max_age)
        verified = check_envelope(path.read_bytes(), trusted=[], expected=None, now=0.0, policy=policy)
        assert verified.signer == publisher.key.public


def test_a_writer_who_changes_trust_metadata_names_no_signer(
    publisher: Publisher, pinned: Node, tmp_path: Path
) -> None:
    publisher.publish("names/bert", seed=1)
    pinned.round("names/bert")
    [folder] = (pinned.root / "v1" / "trust").iterdir()
    targets = folder / "targets.json"
    old = targets.read_bytes()
    changed = re.sub(rb'("public": ?")[0-9a-f]{64}', rb"\g<1>" + b"ab" * 32, old)
    assert changed != old
    targets.write_bytes(changed)
    with pytest.raises(CacheSvcError):
        policy_without_the_registry(pinned, tmp_path / "own")
    targets.write_bytes(b"[" * 100_000)
    with pytest.raises(CacheSvcError):
        policy_without_the_registry(pinned, tmp_path / "own")
    targets.write_bytes(old)
    assert policy_without_the_registry(pinned, tmp_path / "own").keys


class Between:
    """A registry that changes what the real one answers."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.change: Callable[[str, bytes], bytes] = lambda _path, body: body

    def __call__(self, connection: socket.socket, request: Request) -> bool:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in ("authorization", "content-type", "range")
        }
        answer = httpx.request(
            request.method, self.publisher.served.url + request.path, content=request.body, headers=headers
        )
        body = self.change(request.path, answer.content)
        head = f"HTTP/1.1 {answer.status_code} X\r\nContent-Length: {len(body)}\r\nX-Cachesvc-Api: 1\r\n\r\n"
        connection.sendall(head.encode() + body)
        return True


def flip(path: str, body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1]) if path.endswith("/pack") else body


def endless(path: str, body: bytes) -> bytes:
    return b"[" + b" " * (9 << 20) + b"]" if "/entries?" in path else body


def foreign(path: str, body: bytes) -> bytes:
    return body.replace(b'\\"sig\\":\\"', b'\\"sig\\":\\"AA') if path.endswith("/resolve") else body


@pytest.mark.parametrize(
    ("change", "code"), [(flip, "corrupt"), (endless, "too_large"), (foreign, "untrusted")]
)
def test_a_hostile_registry_gets_no_byte_to_the_services_of_a_node(
    publisher: Publisher, node: Node, change: Callable[[str, bytes], bytes], code: str
) -> None:
    name = f"{code.replace('_', '-')}/bert"
    publisher.publish(name, seed=1)
    between = Between(publisher)
    between.change = change
    with serve_hostile(between) as server:
        config = Config.read({**publisher.served.variables, "CACHESVC_URL": server.url})
        hostile = Node(node.root, config, node.measures)
        hostile.round(name)
        assert not node.packs()
        assert sum(node.measures.value("refused_total", each) for each in (code, "corrupt")) >= 1
        # The registry behaves again, and so does the node.
        between.change = lambda _path, body: body
        hostile.round(name)
        assert len(node.packs()) == 1
