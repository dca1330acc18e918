"""Owns what this client accepts: whether anybody is trusted, and the checks of a revision's envelope."""

from __future__ import annotations

import time

from ..bundle.check import (
    ExpectedStatement,
    Policy,
    Verified,
    check_age,
    check_envelope,
    check_requirement,
    check_sequence,
)
from ..config import Config
from ..node.store import NodeStore
from ..wire.errors import Untrusted


def trusts_anybody(config: Config) -> bool:
    """Return whether the configuration names a trusted key or a pinned root."""
    return bool(config.trusted_keys) or config.trust_root is not None


def demand_trust(config: Config) -> None:
    """Raise ``Untrusted`` if the configuration trusts nobody: then no revision can be accepted."""
    if not trusts_anybody(config):
        raise Untrusted("no key is trusted", "set CACHESVC_TRUSTED_KEYS, or log in with --trust KEY")


def check_accepted(
    envelope: bytes,
    config: Config,
    expected: ExpectedStatement | None,
    policy: Policy | None,
    store: NodeStore | None = None,
) -> Verified:
    """Return the manifest of a revision that a restore with this configuration would accept, as far as the
    envelope decides it.

    With a ``store`` the revision is not older than what this node accepted before. Raises ``Untrusted``,
    ``Corrupt``.
    """
    now = time.time()
    verified = check_envelope(
        envelope, trusted=config.trusted_keys, expected=expected, now=now, policy=policy
    )
    if store is not None:
        check_sequence(verified, store.highest_sequence(verified.manifest.entry))
    check_age(verified, config.max_age, now)
    check_requirement(verified, config.require)
    return verified
