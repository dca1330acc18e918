"""Declare for each route who may send it a body, where, how large, and how slowly. A route that is not in
``ROUTES`` cannot be made."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from cachesvc.domain.access import Role
from cachesvc_client.trust_root.updater import MAX_METADATA_BYTES, MAX_ROOT_BYTES
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES, MAX_PACK_BYTES
from cachesvc_client.wire.requests.protocol import MAX_FINGERPRINT_BYTES
from cachesvc_client.wire.requests.reports import MAX_REPORT_BYTES

from .shares import Bounds


class Scope(enum.Enum):
    """Where a token must have the route's role before the body is read. What a body names is judged later."""

    anybody = enum.auto()
    """No token is needed."""
    own = enum.auto()
    """In its own namespace and lane."""
    named = enum.auto()
    """In the namespace, and the lane, that the address names."""
    upload = enum.auto()
    """In the namespace and the lane of its own upload, which exists."""
    every = enum.auto()
    """In every namespace."""


MAX_COMMIT_BYTES = MAX_ENVELOPE_BYTES + (MAX_ENVELOPE_BYTES >> 3) + 4096
"""Bytes of a commit, at most: an envelope as JSON text, whose few quotes are escaped and whose base64 is
not."""

PLACES = Bounds(token=8, lane=8, lanes=12, namespace=16, process=32)
"""Bodies that threads store at once."""
MIB = 1 << 20
SMALL = Bounds(token=8 * MIB, lane=8 * MIB, lanes=12 * MIB, namespace=16 * MIB, process=32 * MIB)
"""Bytes of small bodies in memory at once. Large ones have bounds of their own, so that they keep no resolve
waiting."""
LARGE = Bounds(
    token=MAX_COMMIT_BYTES,
    lane=MAX_COMMIT_BYTES,
    lanes=MAX_COMMIT_BYTES + 2 * MIB,
    namespace=MAX_COMMIT_BYTES + 6 * MIB,
    process=MAX_COMMIT_BYTES + 26 * MIB,
)
"""Bytes of other bodies: the largest one fits, beside some of others."""
ANSWERS = Bounds(
    token=MAX_COMMIT_BYTES,
    lane=MAX_COMMIT_BYTES,
    lanes=MAX_COMMIT_BYTES + 2 * MIB,
    namespace=MAX_COMMIT_BYTES + 26 * MIB,
    process=MAX_COMMIT_BYTES + 74 * MIB,
)
"""Bytes of answers that are being sent and are not small: the largest one fits, beside some of others."""
OPEN = Bounds(token=4 * MIB, lane=0, lanes=0, namespace=16 * MIB, process=16 * MIB)
"""Bytes of such answers to strangers, by address: they use nothing of the others."""
MAKING = Bounds(token=2, lane=2, lanes=4, namespace=6, process=12)
"""Answers that are made at once, each until its bytes have their share: of lists, searches and pages, which
cost threads and memory before it is known how large they are. On two cores 6, 12, 24 and 48 make the same
number of large lists a second; 2 make fewer [measured]."""
FORWARDS = Bounds(token=96, lane=64, lanes=96, namespace=112, process=128)
"""Requests that a mirror forwards at once, beside those with packs. As many claims may wait at the upstream
beside them."""
PIECES = Bounds(token=16 * MIB, lane=8 * MIB, lanes=16 * MIB, namespace=32 * MIB, process=64 * MIB)
"""Bytes of the large pieces of packs, which who reads fast gets while there is room."""


class Share(enum.Enum):
    """What a body takes of the process until its request is answered."""

    memory = enum.auto()
    """Its bytes, of ``SMALL`` or ``LARGE``: it is read as a whole before the endpoint is called."""
    place = enum.auto()
    """A thread, of ``PLACES``, which stores it as it comes."""
    both = enum.auto()
    """A thread, and its bytes: a part of it is kept in memory meanwhile."""


@dataclass(frozen=True, slots=True)
class Body:
    """Bounds of a body. ``rate``: bytes in a second, on average, after a time of grace. ``deadline``: seconds
    from its first byte to its last."""

    size: int
    rate: int
    deadline: float
    share: Share = Share.memory


@dataclass(frozen=True, slots=True)
class Declared:
    """What a route demands. ``role``: the lowest that may use it; ``None``: no token is needed. ``is_made``:
    whether its answer has a place of ``MAKING``; otherwise it costs little, or has threads of its own. The
    bytes of every answer have a share: of ``ANSWERS``, ``OPEN`` or ``PIECES``."""

    role: Role | None
    scope: Scope
    body: Body
    is_made: bool


MAX_RESOLVE_BYTES = 4 * MAX_FINGERPRINT_BYTES
"""Bytes of a resolve, at most: a fingerprint whose characters may be escaped, entries, tags and names."""
MAX_TRUST_BYTES = 2 * (MAX_ROOT_BYTES + MAX_METADATA_BYTES)
"""Bytes of a body with a root and targets, at most: as text in JSON, each of their quotation marks is two."""
MAX_BUNDLE_BYTES = 16 << 20
"""Bytes of a bundle in one request, at most; clients send those of 4 MB so."""
MAX_SMALL_BYTES = 64 << 10

_NOTHING = Body(0, 1024, 20)
_FORM = Body(16 << 10, 1024, 20)
_EXCHANGE = Body(20 << 10, 1024, 20)
_SMALL = Body(MAX_SMALL_BYTES, 1024, 60)
_RESOLVE = Body(MAX_RESOLVE_BYTES, 4096, 60)
_REPORT = Body(MAX_REPORT_BYTES, 4096, 60)
_TRUST = Body(MAX_TRUST_BYTES, 16 << 10, 120)
_COMMIT = Body(MAX_COMMIT_BYTES, 16 << 10, 300)
_BUNDLE = Body(MAX_BUNDLE_BYTES, 4096, 600, Share.both)
_PACK = Body(MAX_PACK_BYTES, 4096, 6 * 3600, Share.place)


def _of(
    role: Role | None, scope: Scope, body: Body, *routes: str, is_made: bool = True
) -> dict[str, Declared]:
    return dict.fromkeys(routes, Declared(role, scope, body, is_made))


ROUTES: dict[str, Declared] = {
    **_of(
        None,
        Scope.anybody,
        _NOTHING,
        *("GET /", "GET /healthz", "GET /readyz", "GET /metrics", "GET /v1/info", "GET /openapi.json"),
        *("GET /ui/login", "GET /ui/static/{name}", "GET /ui/login/callback"),
        *(f"{method} /ui/{{path:path}}" for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")),
    ),
    **_of(
        None,
        Scope.anybody,
        _FORM,
        *("POST /ui/login", "POST /ui/login/provider", "POST /ui/logout"),
    ),
    **_of(None, Scope.anybody, _EXCHANGE, "POST /v1/oidc/token"),
    **_of(
        Role.read,
        Scope.own,
        _NOTHING,
        *("GET /v1/whoami", "GET /v1/revocations"),
        *("GET /v1/trust/update", "GET /v1/trust/state", "GET /v1/trust/{file}"),
        *("GET /v1/revisions/{revision}/pack", "HEAD /v1/revisions/{revision}/pack"),
        is_made=False,
    ),
    **_of(
        Role.read,
        Scope.own,
        _NOTHING,
        *("GET /v1/heads", "GET /v1/signers", "GET /v1/misses", "GET /ui/misses"),
        *("GET /v1/entries", "GET /v1/entries/{entry}", "GET /v1/entries/{entry}/revisions"),
        *("GET /v1/digests/{kind}/{beginning}", "GET /v1/revisions/{revision}"),
        *("GET /v1/revisions/{revision}/envelope", "GET /v1/revisions/{revision}/provenance"),
        "GET /v1/revisions/{revision}/difference/{other}",
        *("GET /ui", "GET /ui/names", "GET /ui/names/{namespace}/{name:path}", "GET /ui/entries/{entry}"),
        *("GET /ui/revisions/{revision}", "GET /ui/coverage/{namespace}/{name:path}"),
        *("GET /ui/explain/{namespace}/{name:path}", "GET /ui/environments/{namespace}/{name:path}"),
    ),
    **_of(
        Role.read,
        Scope.named,
        _NOTHING,
        *("GET /v1/namespaces/{namespace}/names", "GET /v1/namespaces/{namespace}/entries"),
        *("GET /v1/namespaces/{namespace}/environments", "GET /v1/namespaces/{namespace}/wanted"),
    ),
    **_of(Role.read, Scope.own, _RESOLVE, "POST /v1/resolve", is_made=False),
    **_of(Role.read, Scope.own, _SMALL, "POST /v1/peers", is_made=False),
    **_of(Role.report, Scope.own, _REPORT, "POST /v1/reports", is_made=False),
    **_of(
        Role.write,
        Scope.own,
        _SMALL,
        *("POST /v1/uploads", "POST /v1/claims", "POST /v1/claims/renew", "POST /v1/claims/release"),
        is_made=False,
    ),
    **_of(Role.write, Scope.upload, _PACK, "PUT /v1/uploads/{upload}/pack", is_made=False),
    **_of(Role.write, Scope.upload, _COMMIT, "POST /v1/uploads/{upload}/commit", is_made=False),
    **_of(Role.write, Scope.upload, _NOTHING, "DELETE /v1/uploads/{upload}", is_made=False),
    **_of(Role.write, Scope.named, _BUNDLE, "POST /v1/bundles", is_made=False),
    **_of(
        Role.admin,
        Scope.own,
        _NOTHING,
        *("GET /v1/quarantine", "GET /v1/stats", "GET /v1/tokens", "GET /v1/publishers", "GET /v1/webhooks"),
        *("GET /v1/namespaces", "GET /v1/audit", "DELETE /v1/signers", "DELETE /v1/tokens/{token_id}"),
        *("DELETE /v1/entries/{entry}", "DELETE /v1/revisions/{revision}"),
        *("DELETE /v1/revisions/{revision}/pin", "DELETE /v1/revisions/{revision}/quarantine"),
        *("DELETE /v1/publishers/{publisher}", "DELETE /v1/webhooks/{webhook}"),
        *("GET /ui/usage", "GET /ui/claims", "GET /ui/tokens", "GET /ui/signers", "GET /ui/quarantine"),
        *("GET /ui/audit", "GET /ui/change/revisions/{revision}/{action}"),
        "GET /ui/change/tokens/{token}/{action}",
    ),
    **_of(
        Role.admin,
        Scope.own,
        _SMALL,
        *("POST /v1/tokens", "PUT /v1/tokens/{token_id}/expiry", "POST /v1/tokens/{token_id}/rotation"),
        *("POST /v1/signers", "POST /v1/revocations", "POST /v1/revocations/plan", "POST /v1/publishers"),
        "POST /v1/webhooks",
        *("PUT /v1/revisions/{revision}/pin", "PUT /v1/revisions/{revision}/quarantine"),
    ),
    **_of(Role.admin, Scope.own, _SMALL, "POST /v1/webhooks/{webhook}/test", is_made=False),
    **_of(
        Role.admin,
        Scope.named,
        _SMALL,
        *("PUT /v1/namespaces/{namespace}/policy", "PUT /v1/namespaces/{namespace}/require"),
    ),
    **_of(Role.admin, Scope.every, _NOTHING, "GET /v1/gc", "GET /ui/collection"),
    **_of(
        Role.admin, Scope.every, _SMALL, "POST /v1/gc", "POST /v1/fsck", "POST /v1/fsck/repair", is_made=False
    ),
    **_of(Role.admin, Scope.every, _SMALL, "POST /v1/trust/keys"),
    **_of(Role.admin, Scope.every, _TRUST, "PUT /v1/trust/root", "PUT /v1/trust/targets"),
    **_of(
        Role.admin,
        Scope.own,
        _FORM,
        *("POST /ui/change/revisions/{revision}/{action}", "POST /ui/change/tokens/{token}/{action}"),
    ),
    **_of(Role.admin, Scope.every, _FORM, "POST /ui/collection"),
}


def declaration(methods: Iterable[str], path: str) -> Declared:
    """Return what a route declares. Raise ``LookupError`` for one that declares nothing."""
    for method in methods:
        if f"{method} {path}" not in ROUTES:
            raise LookupError(f"{method} {path} declares nothing: say in ROUTES what it demands")
    first, *others = {ROUTES[f"{method} {path}"] for method in methods}
    assert not others, f"{path}: methods of one route that declare different things"
    return first
