"""Define the tables. The docstrings say when a column is valid and what it may be trusted for.

Times are seconds of UTC as integers. The trunk is the lane ``''``: a value and not NULL, so that equality
and unique indexes mean what they say on both databases.
"""

from __future__ import annotations

from .access import (
    AuditRow,
    JobTokenRow,
    NamespaceRow,
    PublisherRow,
    RevokedSignerRow,
    SessionRow,
    SignerRow,
    TokenRow,
    TrustFileRow,
)
from .base import DIGEST, metadata
from .entries import (
    AncestorRow,
    ClaimRow,
    EntryRow,
    GraphKeyRow,
    ObjectRow,
    RevisionRow,
    UploadRow,
    WithdrawalRow,
    WithdrawnFileRow,
)
from .remote import DeliveryRow, MirrorRow, UpstreamTokenRow, WebhookRow
from .starts import (
    ColdStartRow,
    DailyStartsRow,
    EnvironmentRow,
    InertHostRow,
    OutcomeSums,
    RevisionNodeRow,
    UsefulnessRow,
)

__all__ = [
    "DIGEST",
    "AncestorRow",
    "AuditRow",
    "ClaimRow",
    "ColdStartRow",
    "DailyStartsRow",
    "DeliveryRow",
    "EntryRow",
    "EnvironmentRow",
    "GraphKeyRow",
    "InertHostRow",
    "JobTokenRow",
    "MirrorRow",
    "NamespaceRow",
    "ObjectRow",
    "OutcomeSums",
    "PublisherRow",
    "RevisionNodeRow",
    "RevisionRow",
    "RevokedSignerRow",
    "SessionRow",
    "SignerRow",
    "TokenRow",
    "TrustFileRow",
    "UploadRow",
    "UpstreamTokenRow",
    "UsefulnessRow",
    "WebhookRow",
    "WithdrawalRow",
    "WithdrawnFileRow",
    "metadata",
]
