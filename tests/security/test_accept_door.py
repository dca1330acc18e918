"""Whoever offers bytes that nobody who counts has signed for what was asked: tried at the one door, and
through each of its users."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from registry_making import Publication, make

from cachesvc.agent.measures import Measures
from cachesvc.agent.round import Keeper, Selection
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc.agent.watch import Pattern
from cachesvc.cli.oci.transfer import receive
from cachesvc.oci.bundle_artifact import put_bundle, tag_bundles
from cachesvc.oci.image_layout import layout_target, open_layout
from cachesvc.queries.verify import verify
from cachesvc_client.bundle.check import ExpectedStatement, Verified, check_envelope
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.kinds import RULES
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.queries.pull import pull
from cachesvc_client.restore.accept import accept_bundles, accept_name
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire.errors import CacheSvcError, Untrusted
from cachesvc_client.wire.manifest.requirement import Requirement
from cachesvc_client.wire.names import Name
from tests.http.hostile_servers import INFO, Request, answer, serve

PRODUCT = [Path(__file__).parents[2] / folder for folder in ("client/cachesvc_client", "cachesvc")]
KEY, STRANGER = SigningKey.generate(), SigningKey.generate()
NAME = Name.parse("team/bert")
HERE = detect(dict(os.environ))
YEAR = 365 * 86400


@dataclass(frozen=True)
class Host:
    """One fresh host that trusts ``KEY`` in the namespace ``team``, and is offered one publication."""

    folder: Path
    config: Config
    offered: Publication

    @property
    def bundle(self) -> Path:
        pack, path = self.folder / "pack", self.folder / "offered.cachesvc"
        pack.write_bytes(self.offered.pack)
        write_bundle(path, self.offered.envelope, pack)
        return path

    @property
    def store(self) -> NodeStore:
        return NodeStore(self.folder / "store")

    @property
    def settings(self) -> RestoreSettings:
        return RestoreSettings(self.config.acceptance(), HERE)

    @property
    def target(self) -> RestoreTarget:
        roots = {kind: self.folder / kind for kind in RULES}
        return RestoreTarget(self.store, lambda: roots)


def to_door(host: Host) -> None:
    expected = ExpectedStatement(NAME.namespace, NAME.name, (NAME.tag,))
    host.config.acceptance().accept(host.offered.envelope, expected, host.store.marks)


def to_restore(host: Host) -> None:
    with Remote(host.config.url or "", None, timeout=5.0) as remote:
        accept_name(NameRequest(NAME), Inquiry(remote, host.settings, host.target, RestoreResult()))


def to_bundle_of_a_service(host: Host) -> None:
    accept_bundles([host.bundle], [NameRequest(NAME)], host.settings, host.target, RestoreResult())


def to_agent(host: Host) -> None:
    store = SharedStoreWriter(host.folder / "shared", 1 << 30, lambda _name: None)
    for signer, sequence in host.store.marks.sequences(host.offered.manifest.entry).items():
        store.marks.record_sequence(host.offered.manifest.entry, sequence, signer)
    measures = Measures()
    Keeper(host.config, Selection((Pattern.parse(str(NAME)),), ()), store, measures).round()
    if not list((host.folder / "shared").rglob("packs/*")):
        raise Untrusted("the agent holds nothing")


def to_pull(host: Host) -> None:
    pull(host.config, NAME, host.folder / "pulled")


def to_verify(host: Host) -> None:
    trusted, refused = verify(host.config, str(NAME))
    if not trusted:
        raise refused[0]


def to_verify_a_file(host: Host) -> None:
    verify(host.config, str(host.bundle))


def to_receive(host: Host) -> None:
    """Take the bundle out of an OCI layout that a stranger made."""
    signer = next(one for one in (KEY, STRANGER) if signed_by(host.offered, one))
    checked = check_envelope(host.offered.envelope, trusted=[signer.public], expected=None, now=0.0)
    with layout_target(host.folder / "layout") as target:
        # The size of the envelope's own part says where the pack begins.
        offset = host.bundle.stat().st_size - len(host.offered.pack)
        tag_bundles(target, [put_bundle(target, host.bundle, checked, offset)], "v1")  # type: ignore[arg-type]
    receive(host.config, open_layout(host.folder / "layout"), "v1", host.folder / "into", NAME, "layout")


def signed_by(publication: Publication, key: SigningKey) -> bool:
    try:
        check_envelope(publication.envelope, trusted=[key.public], expected=None, now=0.0)
    except CacheSvcError:
        return False
    return True


USERS: dict[str, Callable[[Host], None]] = {
    "door": to_door,
    "restore": to_restore,
    "bundle": to_bundle_of_a_service,
    "agent": to_agent,
    "pull": to_pull,
    "verify": to_verify,
    "verify a file": to_verify_a_file,
    "receive": to_receive,
}


@dataclass(frozen=True)
class Attack:
    """What is offered instead. ``not_asked``: users who ask for no name, and so take any."""

    offered: Callable[[], Publication]
    seen: int = 0
    max_age: float | None = None
    require: Requirement | None = None
    not_asked: tuple[str, ...] = ()


def made(key: SigningKey = KEY, **changed: object) -> Publication:
    return make(key, fingerprint=dict(HERE), **changed)


NOW = int(time.time())
FILE = ("verify a file",)
REQUIREMENT = Requirement.parse("builder=https://ci.example/org/app/*")
ATTACKS = {
    "a stranger's key": Attack(lambda: made(STRANGER)),
    "a key of another namespace": Attack(lambda: made(namespace="other")),
    "another name": Attack(lambda: made(name="gpt"), not_asked=FILE),
    "another tag": Attack(lambda: made(tag="v0"), not_asked=FILE),
    "a lane's": Attack(lambda: made(lane="pr-1"), not_asked=FILE),
    "expired": Attack(lambda: made(expires=NOW - 3600)),
    "older than what was seen": Attack(
        lambda: made(sequence=(NOW - 60) * 1000), seen=NOW * 1000, not_asked=("verify", *FILE)
    ),
    "too old": Attack(lambda: made(sequence=(NOW - YEAR) * 1000), max_age=86400.0),
    "of the future": Attack(lambda: made(sequence=(NOW + 3600) * 1000)),
    "of another builder": Attack(made, require=REQUIREMENT),
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Make a host beside a registry that says of any request that this publication is the answer."""
    offers: list[Publication] = []

    def handle(sock: socket.socket, request: Request) -> bool:
        one = offers[0]
        manifest = one.manifest
        if request.path.startswith("/v1/resolve"):
            row = {
                "entry": str(manifest.entry),
                "revision": str(one.revision),
                "envelope": one.envelope.decode(),
                "pack": str(manifest.pack.digest),
                "pack_size": manifest.pack.size,
                "pack_url": "/v1/packs/1",
            }
            return answer(sock, {"revisions": [row], "rejected": [], "tag": NAME.tag, "api": 1})
        if "/entries" in request.path:
            row = {
                "entry": str(manifest.entry),
                "target": manifest.statement.target,
                "tag": NAME.tag,
                "revision": str(one.revision),
                "sequence": manifest.statement.sequence,
                "pack_size": manifest.pack.size,
                "files": 1,
                "published": NOW,
                "fingerprint": json.loads(json.dumps(manifest.fingerprint)),
            }
            return answer(sock, [row])
        if "pack" in request.path:
            return answer(sock, raw=one.pack)
        return answer(sock, INFO)

    with serve(handle) as server:

        def begin(attack: Attack) -> Host:
            offers.append(attack.offered())
            config = Config(
                url=server.url,
                trusted_keys=(TrustedKey(f"team={KEY.public}"),),
                store=tmp_path / "store",
                max_age=attack.max_age,
                require=attack.require,
            )
            one = Host(tmp_path, config, offers[0])
            if attack.seen:
                one.store.marks.record_sequence(one.offered.manifest.entry, attack.seen, KEY.public)
            return one

        yield begin


@pytest.mark.parametrize("user", USERS)
def test_each_user_of_the_door_takes_what_is_right(host: Callable[..., Host], user: str) -> None:
    USERS[user](host(Attack(made)))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("user", USERS)
def test_no_user_of_the_door_takes_anything_else(host: Callable[..., Host], user: str, attack: str) -> None:
    if user in ATTACKS[attack].not_asked:
        USERS[user](host(ATTACKS[attack]))
        return
    with pytest.raises(CacheSvcError):
        USERS[user](host(ATTACKS[attack]))


def test_nothing_but_the_door_makes_an_accepted() -> None:
    verified = check_envelope(made().envelope, trusted=[KEY.public], expected=None, now=0.0)
    values = [getattr(verified, field.name) for field in dataclasses.fields(Verified)]
    accepted = Acceptance([KEY.public]).accept(verified.envelope, None)
    for attempt in (
        lambda: Accepted(*values),
        lambda: Accepted(*values, made_by=object()),
        lambda: dataclasses.replace(accepted, signer=STRANGER.public),
    ):
        with pytest.raises((TypeError, ValueError)):
            attempt()


def test_only_the_door_checks_an_envelope() -> None:
    users = {
        path.name
        for folder in PRODUCT
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "check_envelope"
    }
    assert users == {"accept.py"}
