"""Define what operators change of tokens, and the log of what they did."""

from __future__ import annotations

from dataclasses import dataclass, field


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
