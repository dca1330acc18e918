"""What a restore is asked for, and what it works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.installed import StagedRevision
from ..wire.digest import Digest
from ..wire.factors import Fingerprint
from ..wire.names import Lane, Name, Tag
from ..wire.protocol import ResolveRequest

if TYPE_CHECKING:
    from ..bundle.seal import TrustedKey
    from ..kinds.rules import KindRules
    from ..node.store import NodeStore


@dataclass(frozen=True, slots=True)
class RestoreContext:
    """What a restore works with.

    ``roots`` is asked at install time (kind -> folder). ``may_install`` is asked before every file: once
    it says no, only the node store is filled. ``held``: gets the revisions that were accepted, for the caller
    to install. ``ahead``: their packs are put on this node at once, since ranks agree before they install.
    ``lane``: bundles of it are accepted beside the trunk's. ``fresh``: the registry is asked, whatever
    another process of this node was answered a moment ago.
    """

    store: NodeStore
    trusted: Sequence[TrustedKey]
    fingerprint: Fingerprint
    rules: Mapping[str, KindRules]
    roots: Callable[[], Mapping[str, Path]]
    may_install: Callable[[], bool] = lambda: True
    held: list[StagedRevision] = field(default_factory=list)
    lane: Lane | None = None
    ahead: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class NameRequest:
    """A name with the tags to fall back to, and what ranks the candidates."""

    name: Name
    fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    model: Digest | None = None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The name's own tag, then those to fall back to, once each."""
        return tuple(dict.fromkeys((self.name.tag, *self.fallback)))

    def request(self, fingerprint: Fingerprint) -> ResolveRequest:
        """The one request of a restore."""
        return ResolveRequest(
            namespace=self.name.namespace,
            name=self.name.name,
            fingerprint=fingerprint,
            tags=self.tags,
            lane=self.lane,
            model=self.model,
        )
