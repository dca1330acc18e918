"""Every route, with every kind of token, on every namespace and lane: what is allowed, and what is refused
without a trace.

The table ``ROWS`` says who may do what. It is written by hand and does not read the code that decides. The
routes come from the OpenAPI document: a route without a row fails.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from registry_inside import ROOT, START, Clock, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.index.packs.uploads import Upload
from cachesvc.outside import Destinations
from cachesvc.registry import claims, webhooks
from cachesvc.registry.access import tokens
from cachesvc.registry.context import Limits, Outside
from cachesvc.registry.trust import metadata, publishers, signers
from cachesvc.registry.upkeep import quarantine
from cachesvc.schema.access import SignerRecord, TokenRequest
from cachesvc.schema.publishers import PublisherRequest
from cachesvc.schema.webhooks import WebhookRequest
from cachesvc.tuf.changes import next_root, next_targets
from cachesvc.tuf.draft import Draft
from cachesvc.tuf.keys import TrustKeys
from cachesvc.webhooks.sender import Sender
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRequest, ClaimSubject

from .in_process import Answer, Application

OWN, OTHER = "team-a", "team-b"
LANES = (None, "pr-1", "pr-2")
ROLES = ("read", "report", "write", "admin")
HOLDER = "a" * 32
Where = tuple[str, str | None]
"""Namespace and lane; the trunk is ``None``."""


@dataclass(frozen=True)
class Holder:
    """One kind of token. ``namespace`` ``*``: every namespace. ``dead``: the token counts nowhere."""

    title: str
    role: str
    namespace: str
    lane: str | None = None
    dead: bool = False

    def may(self, least: str, where: Where) -> bool:
        """The rule of docs/security: a role, its namespace, and of a lane's token its lane."""
        namespace, lane = where
        if ROLES.index(self.role) < ROLES.index(least) or self.namespace not in ("*", namespace):
            return False
        if self.lane is None:
            return True
        return (lane == self.lane and least != "admin") or (least == "read" and lane is None)


HOLDERS = (
    *(Holder(f"{role}, trunk", role, OWN) for role in ROLES),
    *(Holder(f"{role}, own lane", role, OWN, "pr-1") for role in ROLES[:3]),
    *(Holder(f"{role}, every namespace", role, "*") for role in ("read", "write", "admin")),
    Holder("nobody", "admin", "*", dead=True),
    Holder("unknown", "admin", "*", dead=True),
    Holder("expired", "admin", "*", dead=True),
    Holder("revoked", "admin", "*", dead=True),
)


@dataclass(frozen=True)
class Row:
    """What a route demands.

    ``least``: the lowest role; ``None``: every living token; ``""``: no token at all. ``bound``: what binds
    it: ``lane`` (namespace and lane of the request or of the thing), ``namespace`` (the lane does not
    matter), ``trunk`` (the same, and no lane's token), ``token`` (it shows what is the token's own),
    ``every`` (a token of every namespace is needed).
    ``hides``: what a token may not read does not exist for it (404); ``namespace``: only things of other
    namespaces do not. ``refused``: the status of a refusal. ``allowed``: the statuses of a success.
    """

    least: str | None
    bound: str
    hides: str = ""
    refused: int = 403
    allowed: tuple[int, ...] = (200, 201, 204)

    def expected(self, holder: Holder, where: Where) -> tuple[int, ...]:
        """The statuses that may answer."""
        if self.least == "":
            return self.allowed
        if holder.dead:
            return (401,)
        if self.least is None:
            return self.allowed
        if ROLES.index(holder.role) < ROLES.index(self.least):
            return (403,)  # before anything is looked up
        if self.bound == "token":
            own = (holder.namespace, holder.lane)
            return self.allowed if holder.may(self.least, own) else (403,)
        if self.bound == "every":
            return self.allowed if holder.may(self.least, ("*", None)) else (403,)
        if self.bound == "trunk" and holder.lane is not None:
            return (self.refused,)
        subject = where if self.bound == "lane" else (where[0], None)
        if self.hides == "read" and not holder.may("read", where):
            return (404,)
        if self.hides == "namespace" and holder.namespace not in ("*", where[0]):
            return (404,)
        return self.allowed if holder.may(self.least, subject) else (self.refused,)


OPEN = Row("", "")
HIDDEN = Row("read", "lane", "read")
ADMINISTERED = Row("admin", "namespace", "read")
OF_THE_SERVER = Row("admin", "every")
ROWS: dict[tuple[str, str], Row] = {
    ("GET", "/"): OPEN,
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/metrics"): OPEN,
    ("GET", "/v1/info"): OPEN,
    ("GET", "/v1/whoami"): Row(None, "token"),
    ("POST", "/v1/resolve"): Row("read", "lane"),
    ("POST", "/v1/reports"): Row("report", "lane", "read"),
    ("POST", "/v1/peers"): Row("read", "trunk"),
    ("GET", "/v1/entries/{entry}"): HIDDEN,
    ("GET", "/v1/entries/{entry}/revisions"): HIDDEN,
    ("GET", "/v1/digests/{kind}/{beginning}"): HIDDEN,
    ("GET", "/v1/revisions/{revision}"): HIDDEN,
    ("GET", "/v1/revisions/{revision}/envelope"): HIDDEN,
    ("GET", "/v1/revisions/{revision}/difference/{other}"): HIDDEN,
    ("GET", "/v1/revisions/{revision}/provenance"): HIDDEN,
    ("GET", "/v1/revisions/{revision}/pack"): HIDDEN,
    ("HEAD", "/v1/revisions/{revision}/pack"): HIDDEN,
    ("GET", "/v1/heads"): Row("read", "token"),
    ("GET", "/v1/trust/update"): Row("read", "token"),
    ("GET", "/v1/trust/{file}"): Row("read", "token"),
    ("GET", "/v1/trust/state"): Row("read", "token"),
    ("PUT", "/v1/trust/root"): OF_THE_SERVER,
    ("PUT", "/v1/trust/targets"): OF_THE_SERVER,
    # No key is named: new key files would stay when the world is put back to what it was.
    ("POST", "/v1/trust/keys"): Row("admin", "every", allowed=(422,)),
    ("GET", "/v1/namespaces/{namespace}/names"): Row("read", "namespace"),
    ("GET", "/v1/namespaces/{namespace}/entries"): Row("read", "namespace"),
    ("GET", "/v1/namespaces/{namespace}/environments"): Row("read", "lane"),
    ("GET", "/v1/namespaces/{namespace}/wanted"): Row("read", "lane"),
    ("GET", "/v1/entries"): Row("read", "namespace"),
    ("GET", "/v1/misses"): Row("read", "namespace"),
    ("POST", "/v1/uploads"): Row("write", "lane"),
    ("PUT", "/v1/uploads/{upload}/pack"): Row("write", "lane"),
    ("POST", "/v1/uploads/{upload}/commit"): Row("write", "lane"),
    ("DELETE", "/v1/uploads/{upload}"): Row("write", "lane"),
    ("POST", "/v1/bundles"): Row("write", "lane"),
    ("POST", "/v1/claims"): Row("write", "lane"),
    ("POST", "/v1/claims/renew"): Row("write", "lane", refused=409),
    ("POST", "/v1/claims/release"): Row("write", "lane", refused=409),
    ("DELETE", "/v1/entries/{entry}"): Row("admin", "namespace", "namespace"),
    # The head of an entry is not deleted alone, whoever asks.
    ("DELETE", "/v1/revisions/{revision}"): Row("admin", "namespace", "read", allowed=(422,)),
    ("PUT", "/v1/revisions/{revision}/pin"): ADMINISTERED,
    ("DELETE", "/v1/revisions/{revision}/pin"): ADMINISTERED,
    ("PUT", "/v1/revisions/{revision}/quarantine"): ADMINISTERED,
    ("DELETE", "/v1/revisions/{revision}/quarantine"): ADMINISTERED,
    ("GET", "/v1/quarantine"): Row("admin", "token"),
    ("GET", "/v1/stats"): Row("admin", "namespace"),
    ("GET", "/v1/tokens"): Row("admin", "token"),
    ("POST", "/v1/tokens"): Row("admin", "namespace"),
    ("PUT", "/v1/tokens/{token_id}/expiry"): Row("admin", "namespace", "namespace"),
    ("POST", "/v1/tokens/{token_id}/rotation"): Row("admin", "namespace", "namespace"),
    ("DELETE", "/v1/tokens/{token_id}"): Row("admin", "namespace", "namespace"),
    ("GET", "/v1/signers"): Row(None, "token"),
    ("POST", "/v1/signers"): Row("admin", "namespace"),
    ("GET", "/v1/publishers"): Row("admin", "token"),
    ("POST", "/v1/publishers"): Row("admin", "namespace"),
    ("DELETE", "/v1/publishers/{publisher}"): Row("admin", "namespace", "namespace"),
    ("GET", "/v1/webhooks"): Row("admin", "token"),
    ("POST", "/v1/webhooks"): Row("admin", "namespace"),
    ("POST", "/v1/webhooks/{webhook}/test"): Row("admin", "namespace", "namespace"),
    ("DELETE", "/v1/webhooks/{webhook}"): Row("admin", "namespace", "namespace"),
    # Who shows no token of a job's gets none, whatever else is shown.
    ("POST", "/v1/oidc/token"): Row("", "", allowed=(401,)),
    ("DELETE", "/v1/signers"): Row("admin", "namespace"),
    ("GET", "/v1/revocations"): Row(None, "token"),
    ("POST", "/v1/revocations"): Row("admin", "namespace"),
    ("POST", "/v1/revocations/plan"): Row("admin", "namespace"),
    ("GET", "/v1/namespaces"): Row("admin", "token"),
    ("PUT", "/v1/namespaces/{namespace}/policy"): Row("admin", "namespace"),
    ("PUT", "/v1/namespaces/{namespace}/require"): Row("admin", "namespace"),
    ("GET", "/v1/audit"): Row("admin", "token"),
    ("GET", "/v1/gc"): OF_THE_SERVER,
    ("POST", "/v1/gc"): OF_THE_SERVER,
    ("POST", "/v1/fsck"): OF_THE_SERVER,
    ("POST", "/v1/fsck/repair"): OF_THE_SERVER,
}


class World:
    """A registry that holds two revisions (one is withheld), a claim and uploads in each namespace and lane,
    and can be put back to what it was."""

    def __init__(self, folder: Path, reg: Inside, application: Application) -> None:
        self.reg, self.application, self._folder = reg, application, folder
        self.secrets = {holder: self._secret(holder) for holder in HOLDERS}
        self.made: dict[Where, Publication] = {}
        self.offered: dict[Where, Publication] = {}
        self.fresh: dict[Where, Publication] = {}
        self.claims: dict[Where, Any] = {}
        self.victims: dict[str, str] = {}
        self.publishers: dict[str, str] = {}
        self.webhooks: dict[str, str] = {}
        self.removable = {space: SigningKey.generate().public for space in (OWN, OTHER)}
        for space in (OWN, OTHER):
            self._fill(space)
        self.trust = self._next_trust(folder)
        self._index = sqlite3.connect(folder / "index.sqlite3", check_same_thread=False)
        # A token's use is written down once an hour, by any request: not in the hours of these tests.
        self._index.execute("UPDATE tokens SET last_used = ?", (START + 10**9,))
        self._index.commit()
        self._pristine = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.backup(self._pristine)
        self._digest = self._state()

    def _secret(self, holder: Holder) -> str | None:
        if holder.title in ("nobody", "unknown"):
            return None if holder.title == "nobody" else "csv_unknown"
        lane = Lane(holder.lane) if holder.lane else None
        request = TokenRequest(holder.title, holder.role, holder.namespace, lane, never=True)
        created = tokens.create_token(self.reg.registry, None, request)
        self.ids = {**getattr(self, "ids", {}), holder: created.token}
        if holder.title == "revoked":
            tokens.revoke_token(self.reg.registry, ROOT, created.token)
        if holder.title == "expired":
            with self.reg.registry.index.write() as unit:
                unit.tokens.expire(created.token, START - 1)
        return created.secret

    def _fill(self, space: str) -> None:
        registry, namespace, name = self.reg.registry, Namespace(space), ShortName("model")
        signers.add_signer(registry, None, SignerRecord(space, self.removable[space]))
        victim = tokens.create_token(registry, None, TokenRequest("victim", "read", space))
        self.victims[space] = victim.token
        self.publishers[space] = publishers.add_publisher(registry, ROOT, _rule(space)).publisher
        # A receiver to which the application sends nothing, and no event of these tests: none waits for the
        # network, and no worker changes the index meanwhile.
        careless = replace(registry, outside=Outside(sender=Sender(Destinations(private=True))))
        inside_here = WebhookRequest(space, "https://127.0.0.1:1/", ("token.expiring",))
        self.webhooks[space] = webhooks.add_webhook(careless, ROOT, inside_here).webhook
        for text in LANES:
            lane = Lane(text) if text else None
            where = (space, text)
            common = {"namespace": space, "lane": text, "sequence": START * 1000}
            withheld = f"{space} {text}".encode()  # bytes that nothing else has
            self.made[where] = make(self.reg.key, name="model", content=withheld, **common)
            self.offered[where] = make(self.reg.key, name="offered", **common)
            self.fresh[where] = make(self.reg.key, name="fresh", **common)
            self.reg.publish(self.made[where])
            self.reg.publish(self.offered[where])
            quarantine.withdraw(registry, ROOT, self.made[where].revision, "so that it can be lifted")
            subject = ClaimSubject(namespace, name, Digest.of(b"environment"), lane=lane)
            self.claims[where] = claims.take(registry, ROOT, ClaimRequest(subject, HOLDER))
            with registry.index.write() as unit:
                for holder in self.ids:
                    unit.uploads.add(
                        Upload(
                            self.upload(holder, where),
                            self.ids[holder],
                            namespace,
                            name,
                            lane,
                            len(self.made[where].pack),
                            START + 10**6,
                        )
                    )

    def _next_trust(self, folder: Path) -> Draft:
        """Make the root and the targets that the registry would take next."""
        with self.reg.registry.index.read() as unit:
            root, targets = unit.trust.newest("root").data, unit.trust.newest("targets").data
        following, _ = next_targets(targets, START, lambda _: None)
        draft = Draft("", root.decode(), next_root(root, START, {}).decode(), following.decode())
        for role in ("root", "targets"):
            draft = draft.sign(SigningKey.load(folder / f"{role}.key"), role)
        return draft

    def upload(self, holder: Holder, where: Where) -> str:
        """The upload that this token began there, before its rights were what they are now."""
        return "u-" + hashlib.sha256(repr((holder.title, where)).encode()).hexdigest()[:32]

    def _state(self) -> str:
        lines = "\n".join(self._index.iterdump())
        return hashlib.sha256(repr((lines, sorted(self.reg.blobs()))).encode()).hexdigest()

    def changed(self) -> bool:
        """Returns whether index or store differ from what they were."""
        return self._state() != self._digest

    def restore(self) -> None:
        """Puts the index and the memory of the process back to what they were."""
        self._pristine.backup(self._index)
        known = {facts.key for facts in self.reg.registry.packs.blobs.list()}
        for key in known - self.reg.referenced():
            self.reg.registry.packs.blobs.delete(key)
        self.reg.clock.now += 6  # nothing that was cached counts any more
        assert not self.changed()

    def version(self) -> int:
        """Returns a number that changes with each transaction that wrote."""
        return self._index.execute("PRAGMA data_version").fetchone()[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("matrix")
    limits = Limits(lease_seconds=10**6, grace_seconds=10**6, claim_seconds=10**6)
    with inside(folder, SigningKey.generate(), Clock(), limits) as reg:
        reg.registry = replace(reg.registry, trust_keys=TrustKeys(folder), peers=True)
        metadata.prepare(reg.registry)
        application = Application(reg.registry)
        with application.running():
            yield World(folder, reg, application)


def _rule(namespace: str) -> PublisherRequest:
    claims = {"repository": "team/models", "ref": "refs/heads/main"}
    return PublisherRequest("https://ci.example.com", "cachesvc", claims, Namespace(namespace))


Request = tuple[str, dict[str, Any], Any]
"""Path, query and body."""


def _path(world: World, holder: Holder, where: Where, template: str) -> str:
    made = (world.offered if template.endswith("/pack") else world.made)[where]
    values = {
        "namespace": where[0],
        "entry": made.manifest.entry,
        "revision": made.revision,
        "other": made.revision,
        "kind": "revision",
        "beginning": made.revision.hex[:40],
        "upload": world.upload(holder, where),
        "token_id": world.victims[where[0]],
        "publisher": world.publishers[where[0]],
        "webhook": world.webhooks[where[0]],
        "file": "1.root.json",
    }
    return template.format(**values)


def _body(world: World, where: Where, method: str, path: str) -> Any:
    """The body that makes the request a success for who may send it."""
    namespace, lane = where
    made, fresh, claim = world.made[where], world.fresh[where], world.claims[where]
    shown = {"key": claim.key, "holder": HOLDER, "fence": claim.fence}
    place = {"namespace": namespace, "name": "model", **({"lane": lane} if lane else {})}
    subject = {**place, "environment": Digest.of(b"another")}
    outcome = {"revision": made.revision, "state": "hit"}
    bodies: dict[tuple[str, str], Any] = {
        ("POST", "/v1/resolve"): {**place, "fingerprint": FINGERPRINT},
        ("POST", "/v1/reports"): {"node": HOLDER, "fingerprint": FINGERPRINT, "revisions": [outcome]},
        ("POST", "/v1/peers"): {"namespace": namespace, "agent": HOLDER, "address": "10.4.0.17"},
        ("POST", "/v1/uploads"): {**place, "size": 10},
        ("PUT", "/v1/uploads/{upload}/pack"): made.pack,
        ("POST", "/v1/uploads/{upload}/commit"): {"envelope": made.envelope.decode()},
        ("POST", "/v1/bundles"): bundle_head(fresh.envelope) + fresh.pack,
        ("POST", "/v1/claims"): {"subject": subject, "holder": HOLDER},
        ("POST", "/v1/claims/renew"): shown,
        ("POST", "/v1/claims/release"): {"claim": shown},
        ("PUT", "/v1/revisions/{revision}/pin"): {"why": "matrix"},
        ("PUT", "/v1/revisions/{revision}/quarantine"): {"why": "matrix"},
        ("POST", "/v1/tokens"): {"label": "x", "role": "read", "namespace": namespace},
        ("PUT", "/v1/tokens/{token_id}/expiry"): {"days": 1},
        ("POST", "/v1/tokens/{token_id}/rotation"): {"overlap_seconds": 60},
        ("POST", "/v1/signers"): {"namespace": namespace, "key": world.reg.key.public},
        ("POST", "/v1/revocations"): {"namespace": namespace, "key": world.removable[namespace]},
        ("POST", "/v1/revocations/plan"): {"namespace": namespace, "key": world.removable[namespace]},
        ("POST", "/v1/publishers"): codec.plain(_rule(namespace)),
        ("POST", "/v1/webhooks"): {
            "namespace": namespace,
            "url": "https://hooks.example/",
            "events": ["token.expiring"],
        },
        ("POST", "/v1/oidc/token"): {"token": "no.job's.token"},
        ("PUT", "/v1/trust/root"): {"root": world.trust.root},
        ("PUT", "/v1/trust/targets"): {"targets": world.trust.targets},
        ("POST", "/v1/trust/keys"): {"keys": []},
        ("PUT", "/v1/namespaces/{namespace}/policy"): {"keep_days": 7},
        ("PUT", "/v1/namespaces/{namespace}/require"): {"require": "builder=https://github.com/org/*"},
        ("POST", "/v1/fsck/repair"): {"problem": "orphan", "key": "packs/none", "said": "", "repair": ""},
    }
    return bodies.get((method, path))


def _query(world: World, where: Where, method: str, path: str) -> dict[str, Any]:
    namespace, lane = where
    in_lane = {"lane": lane} if lane else {}
    queries: dict[tuple[str, str], dict[str, Any]] = {
        ("POST", "/v1/bundles"): {"namespace": namespace, "name": "fresh", **in_lane},
        ("GET", "/v1/namespaces/{namespace}/environments"): {"name": "bert", **in_lane},
        ("GET", "/v1/namespaces/{namespace}/wanted"): {"name": "bert", **in_lane},
        ("DELETE", "/v1/signers"): {"namespace": namespace, "key": world.removable[namespace]},
        ("GET", "/v1/entries"): {"namespace": namespace},
        ("GET", "/v1/misses"): {"namespace": namespace},
        ("GET", "/v1/stats"): {"namespace": namespace},
    }
    return queries.get((method, path), {})


def routes(world: World) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI document."""
    document = world.application.app.openapi()
    return [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]


def ask(world: World, holder: Holder, where: Where, method: str, template: str) -> Answer:
    """Sends the request of a row, as this token, for this place."""
    return world.application.request(
        method,
        _path(world, holder, where, template),
        secret=world.secrets[holder],
        query=_query(world, where, method, template),
        body=_body(world, where, method, template),
    )


def test_every_route_has_a_row_and_every_row_a_route(world: World) -> None:
    assert sorted(routes(world)) == sorted(ROWS)


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.title.replace(", ", "-"))
def test_a_token_does_what_the_table_says_and_nothing_else(world: World, holder: Holder) -> None:
    """Each request of the matrix; a refused one leaves no trace in the index and in the store."""
    wrong: list[str] = []
    for (method, path), where in itertools.product(
        sorted(routes(world)), itertools.product((OWN, OTHER), LANES)
    ):
        expected = ROWS[method, path].expected(holder, where)
        before = world.version()
        answer = ask(world, holder, where, method, path)
        place = f"{method} {path} in {where[0]}, lane {where[1]}"
        if answer.status not in expected:
            wrong.append(f"{place}: {answer.status}, expected {expected}: {answer.body[:120]!r}")
        if world.version() != before:
            refused = answer.status in (401, 403, 404, 409) or ROWS[method, path].least in ("", "read")
            if refused and world.changed():
                wrong.append(f"{place}: answered {answer.status}, and changed something")
            world.restore()
    assert wrong == []


def test_an_upload_belongs_to_the_token_that_began_it(world: World) -> None:
    """A writer of the same namespace and lane cannot fill, commit or end it; an admin can end it."""
    owner = HOLDERS[ROLES.index("admin")]
    writer = next(holder for holder in HOLDERS if holder.title == "write, trunk")
    upload = world.upload(owner, (OWN, None))
    for method, suffix in (("PUT", "/pack"), ("POST", "/commit"), ("DELETE", "")):
        body = {"envelope": "{}"} if suffix == "/commit" else b"x"
        answer = world.application.request(
            method, f"/v1/uploads/{upload}{suffix}", secret=world.secrets[writer], body=body
        )
        assert answer.status == 404
    assert not world.changed()
    other = world.upload(writer, (OWN, None))
    ended = world.application.request("DELETE", f"/v1/uploads/{other}", secret=world.secrets[owner])
    assert ended.status == 204
    world.restore()
