"""Defines requests and answers of the registry's HTTP API, version 1.

Server and client use the same records; ``/openapi.json`` is made from them. Errors have the form of
``errors.to_wire``. Every answer carries the header ``X-Cachesvc-Api: 1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..codec import canonical
from ..compare import INERT, WITHDRAWN, Difference
from ..digest import Digest
from ..factors import FactorValue
from ..manifest.graph_keys import is_graph_key
from ..manifest.provenance import BuilderIdentity
from ..names import Lane, Namespace, ShortName, Tag, Target
from .claims import ClaimRef

API_VERSION = 1
"""Version of the API, in the answers and in the header."""
API_HEADER = "X-Cachesvc-Api"
"""Name of the header that carries the version of the API."""
ANSWER_SECONDS = 5.0
"""Seconds for which the answer to a resolve is used again, by replicas and nodes together: they begin before
the registry reads its index. So a node refuses what was revoked at each start that begins 5 s later."""
AGE_HEADER = "Age"
"""Name of the header that carries the age of such an answer in whole seconds (RFC 9111, section 5.1)."""
MAX_RESOLVED = 256
"""Largest number of revisions in one answer; the newest come first."""
FEW_RESOLVED = 16
"""Number of fitting revisions that a start restores whatever it will compile. Under a name with more of them
it restores those of its model, if these are few, and others when a compile needs them."""
MAX_WANTED = 16
"""Largest number of keys of graphs in one request."""
RESOLVED_OF_KEY = 4
"""Largest number of revisions in the answer for one key."""
MAX_FINGERPRINT_BYTES = 64 << 10
"""Number of bytes of the fingerprint in a request, at most: the registry compares it with every head under a
name. An honest fingerprint has a few thousand."""

DEEDS = ("tag", "rollback", "import")
"""Actions of an operator that publish a revision again; the audit log names them."""


@dataclass(frozen=True, slots=True)
class ResolveRequest:
    """Asks for every head under a name that fits ``fingerprint``, or for the heads of ``entries``, by key.

    The registry tries ``tags`` in order until one has an entry (the fallback that the caller allows).
    ``model``: a model hash, whose entries come first; it excludes no entry. ``most``: if more revisions
    of a large name fit, the answer has those of ``model`` if these are not more, else none, and says how many
    there are beside them; not in a lane. Entries of older models are omitted then. ``keys``: asks only for
    the heads that have one of these keys of compiled graphs.
    """

    namespace: Namespace
    name: ShortName
    fingerprint: dict[str, FactorValue]
    tags: tuple[Tag, ...] = (Tag("latest"),)
    lane: Lane | None = None
    entries: tuple[Digest, ...] = ()
    model: Digest | None = None
    most: int | None = None
    keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.most is not None and not 0 < self.most <= MAX_RESOLVED:
            raise ValueError(f"most: 1 to {MAX_RESOLVED}")
        keys = self.keys or ()
        if len(keys) > MAX_WANTED or not all(map(is_graph_key, keys)):
            raise ValueError(f"keys: at most {MAX_WANTED}, of 20 to 81 small letters and digits")
        if not 0 < len(self.tags) <= 8 or len(self.entries) > MAX_RESOLVED:
            raise ValueError("tags: 1 to 8; entries: at most 256")
        try:
            size = len(canonical(self.fingerprint))
        except ValueError:  # halves of characters, infinities: they have no digest
            raise ValueError("fingerprint: a text or number that JSON cannot carry") from None
        if size > MAX_FINGERPRINT_BYTES:
            raise ValueError(f"fingerprint: {size} bytes, at most {MAX_FINGERPRINT_BYTES}")


def pack_path(revision: Digest) -> str:
    """Returns the path of the registry's own route to a revision's pack. The route needs a token, and no
    access to the store."""
    return f"/v1/revisions/{revision}/pack"


@dataclass(frozen=True, slots=True)
class ResolvedRevision:
    """Describes a revision that fits. ``envelope``: the exact bytes of the DSSE envelope, as text.
    ``pack_url``: an absolute URL (a link to the store that is good for minutes, and to which no token is
    sent), or :func:`pack_path`."""

    entry: Digest
    revision: Digest
    envelope: str
    pack: Digest
    pack_size: int
    pack_url: str

    @property
    def envelope_bytes(self) -> bytes:
        """Returns the bytes of the envelope. A half of a character, which no envelope has, becomes ``?``."""
        return self.envelope.encode(errors="replace")


@dataclass(frozen=True, slots=True)
class Rejected:
    """Describes an entry that exists and does not fit, with the factors that decide, the most important
    first."""

    entry: Digest
    target: Target
    tag: Tag
    differences: tuple[Difference, ...]

    @property
    def withheld(self) -> bool:
        """Returns whether the entry fits by every factor, and is withheld because of an operator or of
        reports."""
        return any(difference.factor in (INERT, WITHDRAWN) for difference in self.differences)


@dataclass(frozen=True, slots=True)
class ResolveAnswer:
    """Answers a `ResolveRequest`. ``tag``: the tag that has an entry, or ``None``. ``rejected``: the nearest
    entry first. ``more``: number of fitting revisions that the answer omits, because the request said
    ``most``; an upper bound. ``older``: number of others that it omits then, since a newer model
    replaced theirs (`partitions.of_older_models`): they are found by their keys."""

    revisions: tuple[ResolvedRevision, ...]
    rejected: tuple[Rejected, ...] = ()
    tag: Tag | None = None
    api: int = API_VERSION
    more: int | None = None
    older: int | None = None


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """Begins an upload: takes a lease for ``size`` bytes under the name that will be published."""

    namespace: Namespace
    name: ShortName
    size: int
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class UploadAnswer:
    """Answers an `UploadRequest`. ``lease_expires``: seconds of UTC; each byte that the registry receives
    extends the lease."""

    upload: str
    pack_path: str
    lease_expires: int


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """Describes the pack that the registry received."""

    pack: Digest
    size: int


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Publishes an uploaded pack. ``envelope``: the DSSE envelope as text. ``head``: the revision that is
    replaced; ``None`` if the entry must not have one. ``claim``: the claim under which the pack was compiled;
    the registry refuses the commit once the claim has another holder. ``deed``: an operator's action, for the
    audit log; ``None`` for the publication of a build."""

    envelope: str
    head: Digest | None = None
    claim: ClaimRef | None = None
    deed: str | None = None

    def __post_init__(self) -> None:
        _check_deed(self.deed)


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """Publishes in one request: this is the query, and a bundle (``bundle.file``) is the body. ``head``,
    ``claim`` and ``deed``: see ``CommitRequest``. To send the same request again is a success."""

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
    """Answers a publication. ``created`` is false if this very manifest was the head already."""

    entry: Digest
    revision: Digest
    created: bool


@dataclass(frozen=True, slots=True)
class InfoAnswer:
    """Answers a client's first request: that this is a registry, and of which versions."""

    service: str
    version: str
    api: int


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """Describes the token in use. ``builder``: the CI job to which it was given; absent for another token.
    ``label``: what it is for; empty of a registry that does not say it."""

    token: str
    role: str
    namespace: str
    expires: int | None = None
    builder: BuilderIdentity | None = None
    label: str = ""
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentUse:
    """Counts what the starts of one environment achieved with one revision: starts by state, seconds that
    compiling took there in all, and seconds that the restore saved (against the builder's first call).

    ``facts``: the facts by which people recognise the environment. ``inert_hosts``: number of hosts that the
    rule for a quarantine counts now. ``quarantined``: time (seconds of UTC) since which the revision is not
    offered there. ``why``: what differed in the last start that was inert or partial.
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
    """Describes one entry of a listing. ``usefulness``: use of its head by environment, the last seen
    first."""

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
    """Describes one name of a namespace."""

    namespace: Namespace
    name: ShortName
    tags: tuple[Tag, ...]
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TrustAnswer:
    """Holds files of trust metadata, which are signed, by TUF's names of them, such as ``timestamp.json``."""

    files: dict[str, str]
