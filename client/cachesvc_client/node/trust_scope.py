"""Names the private cache folder that a process uses, by whom it trusts, what it asks for and what it
accepts.

Two processes share a folder only if all of these are the same. So code that was installed for one trust scope
is never opened by another, and a revision that is revoked, quarantined or replaced lies in a folder that no
later process opens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.factors import Fingerprint
from ..wire.partitions import partition

if TYPE_CHECKING:
    from ..bundle.seal import TrustedKey
    from ..wire.manifest.requirement import Requirement
    from ..wire.names import Lane, Name, Tag


class ScopeConfig(Protocol):
    """Declares the settings that decide a trust scope."""

    @property
    def trusted_keys(self) -> Iterable[TrustedKey]:
        """Return the keys whose signatures are accepted."""

    @property
    def names(self) -> Iterable[Name]:
        """Return the names that a session asks for."""

    @property
    def tag_fallback(self) -> Iterable[Tag]:
        """Return the tags to fall back to."""

    @property
    def lane(self) -> Lane | None:
        """Return the lane; ``None`` for the trunk alone."""

    @property
    def require(self) -> Requirement | None:
        """Return who must have built a revision; ``None`` for anybody."""

    @property
    def url(self) -> str | None:
        """Return the registry's address."""

    @property
    def bundle(self) -> Path | None:
        """Return the bundle file or folder that replaces the registry."""

    @property
    def trust_root(self) -> Path | None:
        """Return the path of the pinned root; ``None`` if the trusted keys decide alone."""


def trust_scope(config: ScopeConfig) -> Digest:
    """Names whom a session trusts and what it asks for: keys, names, tags to fall back to, lane, what it
    requires of a builder, and the registry or the bundle."""
    scope = {
        "trusted": sorted(str(key) for key in config.trusted_keys),
        "names": sorted(str(name) for name in config.names),
        "fallback": [str(tag) for tag in config.tag_fallback],
        "lane": str(config.lane or ""),
        "registry": "" if config.bundle else config.url or "",
        "bundle": str(config.bundle or ""),
    }
    # What is not set is left out, so that the folders of older clients stay in use.
    if config.require:
        scope["require"] = str(config.require)
    if config.trust_root is not None:
        scope["root"] = str(config.trust_root)
    return Digest.of(canonical(scope))


def folder_name(fingerprint: Fingerprint, accepted: Mapping[Digest, Collection[Digest]]) -> Digest:
    """Names the private folder of a process. ``accepted``: trust scope -> the revisions that were accepted
    for it."""
    accepted_text = {str(scope): sorted(map(str, revisions)) for scope, revisions in accepted.items()}
    return Digest.of(canonical([str(partition(fingerprint, ("gpu", "host"))), accepted_text]))
