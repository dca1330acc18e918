"""Requests and answers of the registry's HTTP API, version 1.

Server and client use the same records; ``/openapi.json`` is made from them. Errors have the form
of ``errors.to_wire``. Every answer carries the header ``X-Cachesvc-Api: 1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .claims import ClaimRef
from .codec import canonical
from .compare import INERT, WITHDRAWN, Difference
from .digest import Digest
from .factors import FactorValue
from .names import Lane, Namespace, ShortName, Tag, Target

API_VERSION = 1
API_HEADER = "X-Cachesvc-Api"
MAX_RESOLVED = 256
"""Revisions in one answer, at most; the newest first."""

DEEDS = ("tag", "rollback", "import")
"""What an operator may do by publishing a revision again; the audit log names it."""


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
        try:
            canonical(self.fingerprint)
        except ValueError:  # halves of characters, infinities: they have no digest
            raise ValueError("fingerprint: a text or number that JSON cannot carry") from None


def pack_path(revision: Digest) -> str:
    """The registry's own route to a revision's pack: it needs a token, and no store that can be reached."""
    return f"/v1/revisions/{revision}/pack"


@dataclass(frozen=True, slots=True)
class ResolvedRevision:
    """``envelope``: the DSSE envelope's exact bytes as text. ``pack_url``: absolute (a link to the store,
    good for minutes: no token is sent to it), or :func:`pack_path`."""

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

    @property
    def withheld(self) -> bool:
        """Whether it fits by every factor, and is not offered because of an operator or of reports."""
        return any(difference.factor in (INERT, WITHDRAWN) for difference in self.differences)


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
    the entry must not have one. ``claim``: under which it was compiled; once it is somebody else's, the
    commit is refused. ``deed``: what an operator does by it, for the audit log; ``None`` for what somebody
    has built."""

    envelope: str
    head: Digest | None = None
    claim: ClaimRef | None = None
    deed: str | None = None

    def __post_init__(self) -> None:
        _check_deed(self.deed)


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """A publication in one request: the query beside a bundle (``bundle.file``) as the body. ``head``,
    ``claim`` and ``deed``: see ``CommitRequest``. The same again is a success."""

    namespace: Namespace
    name: ShortName
    lane: Lane | None = None
    head: Digest | None = None
    claim: ClaimRef | None = None
    deed: str | None = None

    def __post_init__(self) -> None:
        _check_deed(self.deed)


def _check_deed(deed: str | None) -> None:
    if deed is not None and deed not in DEEDS:
        raise ValueError(f"deed: {deed[:40]!r}; one of {', '.join(DEEDS)}")


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
class EnvironmentUse:
    """What the starts of one environment came to with one revision: starts by state, seconds that compiling
    took there in all, and that the restore saved (against the builder's first call).

    ``facts``: what people tell the environment by. ``inert_hosts``: that the rule counts now.
    ``quarantined``: since when (seconds of UTC) the revision is not offered there. ``why``: what differed, as
    the last start that was inert or partial had it.
    """

    environment: Digest
    facts: dict[str, str] = field(default_factory=dict)
    hit: int = 0
    partial: int = 0
    inert: int = 0
    miss: int = 0
    unused: int = 0
    saved: float = 0.0
    spent: float = 0.0
    first_seen: int = 0
    last_seen: int = 0
    inert_hosts: int = 0
    quarantined: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One row of a listing. ``usefulness``: of the head, by environment, the last seen first."""

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
    usefulness: tuple[EnvironmentUse, ...] = ()


@dataclass(frozen=True, slots=True)
class NameSummary:
    """One name of a namespace."""

    namespace: Namespace
    name: ShortName
    tags: tuple[Tag, ...]
    entries: int
    bytes: int


DEFAULT_TOKEN_DAYS = 90
"""Days until a token expires whose request says neither ``days`` nor ``never``."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """``role``: read, report (read, and tell what came of it), write or admin. ``namespace``: one, or ``*``
    for all. ``days``: until it expires (``DEFAULT_TOKEN_DAYS`` if absent); ``never``: it does not expire."""

    label: str
    role: str
    namespace: str
    lane: Lane | None = None
    days: int | None = None
    never: bool = False


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
    revoked: int | None = None


@dataclass(frozen=True, slots=True)
class SignerRecord:
    """A public key (``ed25519:<base64>``) whose signatures ``namespace`` (or ``*``, all) accepts."""

    namespace: str
    key: str
    label: str = ""
