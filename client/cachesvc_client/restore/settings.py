"""Owns what a restore works by: `RestoreSettings`, `RestoreTarget`, and `Inquiry`, which asks a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import DEFAULT_OFFLINE
from ..kinds import RULES
from ..wire.factors import Fingerprint
from ..wire.names import Lane
from .request import Coverage

if TYPE_CHECKING:
    from ..environment.support import Support
    from ..http.registry import Remote
    from ..kinds.rules import KindRules
    from ..node.installed import RestoreResult
    from ..node.store import NodeStore
    from ..trust.accept import Acceptance
    from .node_offers import NodeOffers


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Says what a start asks for and accepts.

    Attributes:
        acceptance: Decides which revisions count.
        fingerprint: The environment that they must fit.
        support: What may be restored in this environment; ``None``: every entry that fits.
        lane: Bundles of this lane are accepted, beside those of the trunk.
        offline: Seconds for which this node's last answer is used while the registry cannot be reached.
        limit: If more revisions of a name fit, only those are restored that are known to be needed; ``None``:
            all are.
        patience: Seconds that a start waits; what this node has seen to come too slowly for that is left to a
            thread. ``None``: however long.
        prefetch: Whether packs are downloaded as soon as their revisions are accepted, because ranks agree
            before they install.
        bypass_cache: Whether to ask the registry even if another process of this node asked the same a moment
            ago.
    """

    acceptance: Acceptance
    fingerprint: Fingerprint
    support: Support | None = None
    lane: Lane | None = None
    offline: float = DEFAULT_OFFLINE
    limit: int | None = None
    patience: float | None = None
    prefetch: bool = False
    bypass_cache: bool = False


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Says where a restore looks for packs and answers of this node, and where it installs.

    Attributes:
        store: The node store of this user.
        roots: Returns the cache folder of each kind; called at install time.
        offers: Answers from the lists of this node's agent; ``None`` without one.
        rules: What each kind allows in its folder.
    """

    store: NodeStore
    roots: Callable[[], Mapping[str, Path]]
    offers: NodeOffers | None = None
    rules: Mapping[str, KindRules] = field(default_factory=lambda: RULES)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Asks a registry for names, and keeps what it says.

    Attributes:
        remote: The connection to the registry.
        settings: What the start asks for and accepts.
        target: Where packs and answers of this node are.
        result: Where seconds, warnings and what does not fit are noted.
        coverage: Where it is noted of which names the answers have everything.
        others: Whether revisions of other names were accepted, so that a name of which nothing fits is no
            error.
    """

    remote: Remote
    settings: RestoreSettings
    target: RestoreTarget
    result: RestoreResult
    coverage: Coverage = field(default_factory=Coverage)
    others: bool = False
