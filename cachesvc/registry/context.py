"""Define the registry that every use case gets: its backends and limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cachesvc.blobs.store import BlobStore, Links, OnDisk
from cachesvc.blobs.wrappers import Meter
from cachesvc.domain.people import Grant
from cachesvc.domain.retention import Retention
from cachesvc.hot.store import Hot
from cachesvc.index.unit import Index
from cachesvc.oidc.issuers import Issuers
from cachesvc.oidc.login import Client
from cachesvc.reserve import Reserve
from cachesvc.tuf.keys import TrustKeys
from cachesvc.webhooks.sender import Sender
from cachesvc_client.wire.manifest.records import MAX_PACK_BYTES

from .mirror.state import Mirror


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a registry; times in seconds, sizes in bytes.

    ``lease_seconds``: how long an upload may be silent. ``link_seconds``: how long a link to the store is
    valid. ``grace_seconds``: how long an object outlives its last reference, at least as long as the longest
    download, and longer than ``link_seconds``. ``claim_seconds``: how long the holder of a claim may be
    silent. ``pack_bytes``: the largest pack. ``retention`` and ``quota_bytes`` are for namespaces without own
    bounds. ``max_ages``: by namespace, for how long revisions count by the targets that the registry signs.
    """

    lease_seconds: int = 900
    grace_seconds: int = 7200
    link_seconds: int = 120
    pack_bytes: int = MAX_PACK_BYTES
    claim_seconds: int = 60
    quota_bytes: int | None = None
    max_ages: Mapping[str, int] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class PersonLogin:
    """How people log in to the web page at an identity provider. ``rules``: what each value of ``claim``
    allows. ``seconds``: how long a login lasts. ``page``: the address of the login page, as browsers know
    it."""

    client: Client
    page: str
    claim: str
    rules: Mapping[str, tuple[Grant, ...]]
    seconds: int


@dataclass(frozen=True, slots=True)
class Packs:
    """Where the packs are. ``links``: makes links to the store that ``blobs`` wraps, if readers may use them.
    ``meter``: counts the calls of ``blobs``. ``on_disk``: the store that ``blobs`` wraps, if it is a
    folder of this machine. ``reserve``: of the disk of the data folder."""

    blobs: BlobStore
    links: Links | None = None
    meter: Meter = field(default_factory=Meter)
    on_disk: OnDisk | None = None
    reserve: Reserve = field(default_factory=Reserve)


@dataclass(frozen=True, slots=True)
class Outside:
    """Whom the registry calls. ``issuers``: the public keys of those who issue tokens to CI jobs and people.
    ``sender``: sends events to the receivers of webhooks. ``login``: how people log in at an identity
    provider; ``None`` if they cannot."""

    issuers: Issuers = field(default_factory=Issuers)
    sender: Sender = field(default_factory=Sender)
    login: PersonLogin | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """The backends and limits of one registry.

    ``hot``: hints that replicas share; an attacker who can write them gains nothing. ``own``: hints of this
    process alone; ``None`` if ``hot`` is of this process alone. ``clock``: seconds of UTC. ``trust_keys``:
    signs the trust metadata; ``None`` in a registry that has none. ``mirror``: what makes this registry a
    mirror of another; ``None`` if it is none. ``peers``: agents of nodes find packs at each other by this
    registry.
    """

    index: Index
    packs: Packs
    hot: Hot
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.time
    own: Hot | None = None
    outside: Outside = field(default_factory=Outside)
    trust_keys: TrustKeys | None = None
    mirror: Mirror | None = None
    peers: bool = False

    @property
    def memory(self) -> Hot:
        """The hot store of this process alone, for tokens, limits and answers: no other process can write
        there. Each replica reads the index for itself, at least every 5 s."""
        return self.own or self.hot

    @property
    def now(self) -> int:
        """The time in whole seconds of UTC."""
        return int(self.clock())

    @property
    def grace_ends(self) -> int:
        """When an object may be deleted that loses its last reference now: at once if the disk of the packs
        is full. A download under way has its file open, and ends."""
        hurry = self.packs.on_disk is not None and self.packs.reserve.tend()
        return 0 if hurry else self.now + self.limits.grace_seconds
