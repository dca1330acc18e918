"""Owns the input of a restore: the requested names, the store, keys and folders, and the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config import DEFAULT_OFFLINE
from ..node.installed import StagedRevision
from ..wire.digest import Digest
from ..wire.errors import InvalidRequest
from ..wire.factors import Fingerprint
from ..wire.names import Lane, Name, Tag
from ..wire.protocol import ResolveRequest

if TYPE_CHECKING:
    from ..environment.support import Support
    from ..kinds.rules import KindRules
    from ..node.store import NodeStore
    from ..trust.accept import Acceptance
    from .node_offers import NodeOffers


@dataclass(frozen=True, slots=True)
class RestoreContext:
    """Holds what a restore works with.

    Attributes:
        acceptance: Decides which revisions count.
        roots: Returns the cache folder of each kind; called at install time.
        may_install: Called before every file. After it returns false, only the node store is filled.
        revisions: The restore appends the accepted revisions, and the caller installs them.
        lane: Bundles of this lane are accepted, beside those of the trunk.
        ahead: Whether packs are downloaded as soon as their revisions are accepted, because ranks agree
            before they install.
        offline: Seconds for which this node's last answer is used while the registry cannot be reached.
        support: What may be restored in this environment; ``None``: every entry that fits.
        fresh: Whether to ask the registry even if another process of this node asked the same a moment ago.
        most: If more revisions of a name fit, only those are restored that are known to be needed; ``None``:
            all are.
        offers: Answers from the lists of this node's agent; ``None`` without one.
        partial: The restore appends the names of which it left revisions out, with the tag that answered.
        whole: The restore notes the names of which it left nothing out, also those that have no entry.
        patience: Seconds that a start waits; what this node has seen to come too slowly for that is left to a
            thread. ``None``: however long.
    """

    store: NodeStore
    acceptance: Acceptance
    fingerprint: Fingerprint
    rules: Mapping[str, KindRules]
    roots: Callable[[], Mapping[str, Path]]
    may_install: Callable[[], bool] = lambda: True
    revisions: list[StagedRevision] = field(default_factory=list)
    lane: Lane | None = None
    ahead: bool = False
    offline: float = DEFAULT_OFFLINE
    support: Support | None = None
    fresh: bool = False
    most: int | None = None
    offers: NodeOffers | None = None
    partial: list[NameRequest] = field(default_factory=list)
    whole: dict[NameRequest, WholeAnswer] = field(default_factory=dict)
    patience: float | None = None

    def note_whole(self, name_request: NameRequest, tag: Tag | None) -> None:
        """Note that the answer of ``tag`` has all that fits now, ``None``: that nothing is published. Of a
        process that restores everything, such as a rank, nothing is noted."""
        if self.most is not None:
            self.whole[name_request] = WholeAnswer(name_request.of_tag(tag), time.monotonic())


@dataclass(frozen=True, slots=True)
class NameRequest:
    """Asks for a name, with the tags to fall back to and the model whose entries come first."""

    name: Name
    fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    model: Digest | None = None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """Return the name's own tag and then the fallback tags, each once."""
        return tuple(dict.fromkeys((self.name.tag, *self.fallback)))

    def of_tag(self, tag: Tag | None) -> NameRequest:
        """Return the same request for the one tag that an answer is of; ``None``: for each tag."""
        if tag not in self.tags:
            return self
        return replace(self, name=replace(self.name, tag=tag), fallback=())

    def request(
        self,
        fingerprint: Fingerprint,
        *,
        most: int | None = None,
        entries: tuple[Digest, ...] = (),
        keys: tuple[str, ...] | None = None,
    ) -> ResolveRequest:
        """Returns the request that asks a registry for this name; `ResolveRequest` explains the options.
        Raises ``InvalidRequest`` for a fingerprint that no registry takes."""
        try:
            return ResolveRequest(
                namespace=self.name.namespace,
                name=self.name.name,
                fingerprint=fingerprint,
                tags=self.tags,
                lane=self.lane,
                model=self.model,
                entries=entries,
                most=most,
                keys=keys,
            )
        except ValueError as error:
            raise InvalidRequest(str(error), "cachesvc-client doctor shows what was detected") from None


class WholeAnswer(NamedTuple):
    """Says that an answer had all that fits under a name, or that there is nothing. ``request``: of the tag
    that answered. ``at``: when, in seconds of ``time.monotonic``."""

    request: NameRequest
    at: float
