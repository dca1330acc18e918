"""Define what operators change of tokens, and the log of what they did."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachesvc_client.wire.names import Lane

DEFAULT_TOKEN_DAYS = 90
"""Days until a token expires whose request says neither ``days`` nor ``never``."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Asks for a new token. ``role``: read, report (read, and send reports), write or admin. ``namespace``:
    one namespace, or ``*`` for all. ``days``: days until it expires (``DEFAULT_TOKEN_DAYS`` if absent).
    ``never`` says that it does not expire."""

    label: str
    role: str
    namespace: str
    lane: Lane | None = None
    days: int | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """Describes a token. ``secret`` is in the answer to its creation and its rotation only; the registry
    stores a hash of it. ``last_used``: to an hour. ``previous_until``: in the answer to a rotation, until
    when the secret before it is valid. ``person``: who logged in to the web page at an identity provider, as
    ``ISSUER SUBJECT``; such a token has no secret."""

    token: str
    label: str
    role: str
    namespace: str
    lane: Lane | None = None
    created: int = 0
    expires: int | None = None
    secret: str | None = None
    revoked: int | None = None
    last_used: int | None = None
    previous_until: int | None = None
    person: str | None = None


@dataclass(frozen=True, slots=True)
class SignerRecord:
    """Describes a public key (``ed25519:<base64>``) whose signatures ``namespace`` (or ``*``, all)
    accepts."""

    namespace: str
    key: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Holds a time to live: either ``days`` from now (0: at once), or ``never``. The registry refuses one
    that says neither, or both."""

    days: int | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """Asks for a new secret of a token. ``overlap_seconds``: how long the secret that it has stays valid."""

    overlap_seconds: int = 86_400


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Describes one action of an operator. ``by``: a token's id, or ``console``. ``by_label``: the label of
    that token; empty if there is no such token any more."""

    id: int
    at: int
    by: str
    action: str
    namespace: str
    subject: str
    details: dict[str, str] = field(default_factory=dict)
    by_label: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Lists records of the audit log, the newest first."""

    rows: tuple[AuditRecord, ...]
    next: str | None = None
