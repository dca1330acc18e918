"""Owns the questions about trust that commands ask before they check a revision: whether any key is trusted,
who decides by a pinned root, and what the user can do where nobody is trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.login import Login
from ..config.settings import Config
from ..console.answers import other_login
from ..node.store import NodeStore, default_root
from ..trust_root.registry_metadata import policy_of, policy_of_node
from ..wire.errors import Untrusted
from ..wire.manifest.records import Statement
from ..wire.names import Lane, Name, Target

if TYPE_CHECKING:
    from ..bundle.check import Policy
    from ..bundle.seal import PublicKey
    from ..http.registry import Remote


def check_publisher(policy: Policy | None, key: PublicKey, name: Name, lane: Lane | None) -> None:
    """Raise ``Untrusted`` if the pinned root does not let ``key`` sign for a name and lane: every service
    that has pinned it would refuse what the key signs."""
    if policy is None:
        return
    statement = Statement(name.namespace, name.name, Target("any"), 1, name.tag, lane)
    try:
        policy.check(statement, [key])
    except Untrusted as error:
        raise Untrusted(
            f"services would refuse what this key signs: {error.message}",
            f"an admin names it: cachesvc admin signers add {key} -n {name.namespace}",
        ) from None


def trusts_anybody(config: Config) -> bool:
    """Return whether the configuration names a trusted key or a pinned root."""
    return bool(config.trusted_keys) or config.trust_root is not None


def demand_trust(config: Config) -> None:
    """Raise ``Untrusted`` if the configuration trusts nobody: then no revision can be accepted."""
    if not trusts_anybody(config):
        where = f" for {config.url}" if config.url else ""
        raise Untrusted(f"no key is trusted{where}", _how_to_trust(config))


def _how_to_trust(config: Config) -> str:
    """Return what to do where nobody is trusted: often the URL is not that of the login."""
    if other := other_login(config):
        return f"your login is for {other}: use that URL"
    hint = "set CACHESVC_TRUSTED_KEYS, or log in with --trust KEY"
    default = Login.read().default
    if config.url and default and default != config.url:
        return f"{hint}; your login is for {default}, and its keys count for that URL alone"
    return hint


def node_store(config: Config) -> NodeStore:
    """Return the store of this node, which keeps packs, answers and trust metadata."""
    return NodeStore(config.store or default_root())


def registry_policy(config: Config, remote: Remote) -> Policy | None:
    """Return who decides about signers by the registry's present trust metadata; ``None`` without a pinned
    root, and then the node store, which keeps the metadata, is not opened. Raise as `policy_of` does."""
    if config.trust_root is None:
        return None
    return policy_of(config, node_store(config), remote)


def policy_here(config: Config) -> tuple[Policy | None, NodeStore]:
    """Return who decides about signers by the trust metadata that this node has, and the node store, which
    keeps them; no registry is asked. Raise as `policy_of_node` does."""
    store = node_store(config)
    return policy_of_node(config, store)[0], store
