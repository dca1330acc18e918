"""Requests and answers of the registry's HTTP API, version 1.

Server and client use the same records; ``/openapi.json`` is made from them. Errors have the form
of ``errors.to_wire``. Every answer carries the header ``X-Cachesvc-Api: 1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .digest import Digest
from .factors import Difference, FactorValue
from .names import Lane, Namespace, ShortName, Tag, Target

API_VERSION = 1
API_HEADER = "X-Cachesvc-Api"
MAX_RESOLVED = 256
"""Revisions in one answer, at most; the newest first."""


@dataclass(frozen=True, slots=True)
class ResolveRequest:
    """Every head under a name that fits ``fingerprint``; or the heads of ``entries``, by key.

    ``tags`` are tried in order until one has an entry (the fallback that the caller allows).
    ``model``: a model hash that ranks its entries first; it excludes nothing.
    """

    namespace: Namespace
    name: ShortName
    fingerprint: dict[str, FactorValue]
    tags: tuple[Tag, ...] = (Tag("latest"),)
    lane: Lane | None = None
    entries: tuple[Digest, ...] = ()
    model: Digest | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.tags) <= 8 or len(self.entries) > MAX_RESOLVED:
            raise ValueError("tags: 1 to 8; entries: at most 256")


@dataclass(frozen=True, slots=True)
class ResolvedRevision:
    """``envelope``: the DSSE envelope's exact bytes as text. ``pack_url``: absolute, or a path of
    this registry; if it is of another origin, no token is sent to it."""

    entry: Digest
    revision: Digest
    envelope: str
    pack: Digest
    pack_size: int
    pack_url: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An entry that exists and does not fit, with the factors that decide, most important first."""

    entry: Digest
    target: Target
    tag: Tag
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class ResolveAnswer:
    """``tag``: the one that was found, or ``None``. ``rejected``: nearest first."""

    revisions: tuple[ResolvedRevision, ...]
    rejected: tuple[Rejected, ...] = ()
    tag: Tag | None = None
    api: int = API_VERSION


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """Begins an upload: takes a lease for ``size`` bytes under the name that will be published."""

    namespace: Namespace
    name: ShortName
    size: int
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class UploadAnswer:
    """``lease_expires``: seconds of UTC; each byte received extends it."""

    upload: str
    pack_path: str
    lease_expires: int


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What was received."""

    pack: Digest
    size: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """``envelope``: the DSSE envelope as text. ``head``: the revision that is replaced, ``None`` if
    the entry must not have one."""

    envelope: str
    head: Digest | None = None


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """``created``: false if this very manifest was the head already."""

    entry: Digest
    revision: Digest
    created: bool


@dataclass(frozen=True, slots=True)
class InfoAnswer:
    """What a client asks first: is this a registry, and of which versions."""

    service: str
    version: str
    api: int


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """The token in use."""

    token: str
    role: str
    namespace: str
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One row of a listing."""

    entry: Digest
    target: Target
    tag: Tag
    revision: Digest
    sequence: int
    pack_size: int
    files: int
    published: int
    fingerprint: dict[str, FactorValue]
    scopes: tuple[str, ...] = ()
    lane: Lane | None = None
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NameSummary:
    """One name of a namespace."""

    namespace: Namespace
    name: ShortName
    tags: tuple[Tag, ...]
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """``role``: read, write or admin. ``namespace``: one, or ``*``. ``days``: until it expires."""

    label: str
    role: str
    namespace: str = "*"
    lane: Lane | None = None
    days: int | None = None


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """``secret`` is answered once, at creation, and stored only as a hash."""

    token: str
    label: str
    role: str
    namespace: str
    lane: Lane | None = None
    created: int = 0
    expires: int | None = None
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class SignerRecord:
    """A public key (``ed25519:<base64>``) whose signatures ``namespace`` (or ``*``, all) accepts."""

    namespace: str
    key: str
    label: str = ""
