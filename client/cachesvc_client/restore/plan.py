"""The input of a restore: the requested names, and the store, keys and folders that it works with."""

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

    Attributes:
        roots: Returns the cache folder of each kind; called at install time.
        may_install: Called before every file. After it returns false, only the node store is filled.
        revisions: The restore appends the accepted revisions, and the caller installs them.
        lane: Bundles of this lane are accepted, beside those of the trunk.
        ahead: Whether packs are downloaded as soon as their revisions are accepted, because ranks agree
            before they install.
        fresh: Whether to ask the registry even if another process of this node asked the same a moment ago.
    """

    store: NodeStore
    trusted: Sequence[TrustedKey]
    fingerprint: Fingerprint
    rules: Mapping[str, KindRules]
    roots: Callable[[], Mapping[str, Path]]
    may_install: Callable[[], bool] = lambda: True
    revisions: list[StagedRevision] = field(default_factory=list)
    lane: Lane | None = None
    ahead: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class NameRequest:
    """A name to restore, with the tags to fall back to and the model whose entries come first."""

    name: Name
    fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    model: Digest | None = None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The name's own tag and then the fallback tags, each once."""
        return tuple(dict.fromkeys((self.name.tag, *self.fallback)))

    def request(self, fingerprint: Fingerprint) -> ResolveRequest:
        """Returns the request that asks a registry for this name."""
        return ResolveRequest(
            namespace=self.name.namespace,
            name=self.name.name,
            fingerprint=fingerprint,
            tags=self.tags,
            lane=self.lane,
            model=self.model,
        )
