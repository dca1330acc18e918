"""Define what a namespace keeps and requires."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc_client.wire.names import Namespace

BOUNDS = {
    "keep_revisions": (1, 1 << 20),
    "keep_days": (0, 36_600),
    "unused_days": (1, 36_600),
    "keep_bytes": (0, 1 << 60),
    "quota_bytes": (0, 1 << 60),
}
"""Least and greatest value of each bound of a policy. The greatest value is as good as no bound."""
UNLIMITED = "none"
"""A bound of a policy that bounds nothing; the word that `namespaces set` takes for it."""
BY_DEFAULT = "default"
"""A bound of a policy that is as the registry's settings say."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Defines what a namespace keeps. ``None`` means: as the registry's settings say, or without a bound.

    The collector keeps the ``keep_revisions`` newest revisions of each entry, and every revision that is
    younger than ``keep_days``. It removes an entry, its head included, that was not offered to anybody for
    ``unused_days``. Above ``keep_bytes`` the collector evicts revisions; above ``quota_bytes`` the registry
    refuses to publish.
    """

    keep_revisions: int | None = None
    keep_days: int | None = None
    unused_days: int | None = None
    keep_bytes: int | None = None
    quota_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}: {least} to {most}")

    def as_answer(self) -> dict[str, int | str]:
        """Return the bounds as answers of commands have them."""
        return {name: _shown(getattr(self, name), most) for name, (_, most) in BOUNDS.items()}


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """Describes a namespace: its policy, how much its revisions hold, and what it requires of builders."""

    namespace: Namespace
    created: int
    entries: int
    revisions: int
    bytes: int
    policy: Policy
    require: str | None = None


@dataclass(frozen=True, slots=True)
class RequireRequest:
    """Sets what a namespace requires of the builders of its trunk (`requirement`); ``None``: nothing."""

    require: str | None = None


def _shown(value: int | None, most: int) -> int | str:
    if value is None:
        return BY_DEFAULT
    return UNLIMITED if value == most else value
