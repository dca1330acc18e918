"""Owns `RegistryAccess`: how a restore reaches the registry of a configuration, and whom it trusts there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config.settings import Config
    from ..http.registry import Remote
    from ..node.installed import RestoreResult
    from ..trust.accept import Acceptance
    from .settings import RestoreTarget


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Connects to a registry and decides which of its revisions count. ``result``: where warnings and the
    seconds of the trust metadata go."""

    config: Config
    target: RestoreTarget
    result: RestoreResult

    def connect(self) -> Remote:
        """Return a connection that leaves a compile half of its deadline: a registry that hangs leaves time
        for the answer that the node remembers."""
        from ..http.registry import Remote

        config = self.config
        seconds = min(10.0, max(0.2, config.deadline / 2))
        return Remote(config.url or "", config.token, timeout=seconds, allow_links=config.allow_links)

    def acceptance(self, remote: Remote, seconds: float) -> Acceptance:
        """Return what decides which revisions count, by trust metadata that are refreshed first, if a root is
        pinned. ``seconds``: how long the registry may take, before the metadata of this node are used."""
        from ..trust_root.registry_metadata import AgentMetadata, refresh_policy

        config, offers = self.config, self.target.offers
        if config.trust_root is None:
            return config.acceptance()
        agent = None if offers is None else AgentMetadata(offers.store.trust_folder, offers.max_age)
        with self.result.timed("trust"):
            folder, deadline = self.target.store.trust_folder, time.monotonic() + seconds
            policy, warning = refresh_policy(config.trust_root, folder, remote, deadline, agent)
        if warning:
            self.result.warn(warning)
        return config.acceptance(policy)

    def acceptance_of_bundles(self) -> Acceptance:
        """Return the same by the trust metadata that this node has; see `policy_of_node`."""
        from ..trust_root.registry_metadata import policy_of_node

        policy, warning = policy_of_node(self.config, self.target.store)
        if warning:
            self.result.warn(f"bundles: {warning}")
        return self.config.acceptance(policy)
