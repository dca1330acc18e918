"""Owns what this client accepts: whether anybody is trusted, and the checks of a revision's envelope.

`restore` makes the same checks in its own steps. All commands, `warm` and `admin` make them here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..bundle.check import (
    ExpectedStatement,
    Policy,
    Verified,
    check_age,
    check_envelope,
    check_requirement,
    check_sequence,
)
from ..bundle.seal import PublicKey, TrustedKey
from ..config import Config, Login
from ..node.store import NodeStore, default_root
from ..trust_root.registry_metadata import policy_of
from ..wire.errors import Untrusted
from ..wire.names import Lane, Name, Target
from ..wire.records import Statement
from ..wire.requirement import Requirement

if TYPE_CHECKING:
    from ..http.registry import Remote


_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}
"""Names of the loopback that users mix up."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decides which revisions a restore with a configuration would accept, as far as the envelope decides it.

    ``policy``: decides about signers by the registry's trust metadata; ``None`` without a pinned root.
    ``max_age``, ``require``: as in `Config`.
    """

    trusted: Sequence[PublicKey | TrustedKey]
    policy: Policy | None = None
    max_age: float | None = None
    require: Requirement | None = None

    @classmethod
    def of(cls, config: Config, policy: Policy | None) -> Acceptance:
        """Return what a configuration accepts."""
        return cls(config.trusted_keys, policy, config.max_age, config.require)

    def trusting(self, *keys: PublicKey | TrustedKey) -> Acceptance:
        """Return the same with more trusted keys, such as the user's own.

        Where a pinned root decides alone, it goes on to do so: these keys count if the root names them.
        """
        if self.policy is not None and not self.trusted:
            return self
        return replace(self, trusted=tuple(dict.fromkeys((*self.trusted, *keys))))

    def check_signed(self, envelope: bytes, expected: ExpectedStatement | None) -> Verified:
        """Return the manifest of a revision whose signature counts here and whose statement is the
        ``expected`` one. Raise ``Untrusted``, ``Corrupt``."""
        return check_envelope(
            envelope, trusted=self.trusted, expected=expected, now=time.time(), policy=self.policy
        )

    def check_build(self, verified: Verified) -> None:
        """Raise ``Untrusted`` for a revision that is too old, or that was not built as the user requires."""
        check_age(verified, self.max_age, time.time())
        check_requirement(verified, self.require)

    def check_publisher(self, key: PublicKey, name: Name, lane: Lane | None) -> None:
        """Raise ``Untrusted`` if the pinned root does not let ``key`` sign for a name and lane: every service
        that has pinned it would refuse what the key signs."""
        if self.policy is None:
            return
        statement = Statement(name.namespace, name.name, Target("any"), 1, name.tag, lane)
        try:
            self.policy.check(statement, [key])
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


def other_login(config: Config) -> str | None:
    """Return the URL of a stored login that differs from the configured URL by the name of this machine alone
    (``localhost``, ``127.0.0.1``); ``None`` if there is none. A login counts for its own URL only."""
    if config.url is None:
        return None
    mine = urlsplit(config.url)
    for url, row in Login.read().registries.items():
        other = urlsplit(url)
        same = (other.scheme, other.port, other.path) == (mine.scheme, mine.port, mine.path)
        if row.token and url != config.url and same and {mine.hostname, other.hostname} <= _THIS_MACHINE:
            return url
    return None


def registry_policy(config: Config, remote: Remote) -> Policy | None:
    """Return who decides about signers by the registry's present trust metadata; ``None`` without a pinned
    root, and then the node store, which keeps the metadata, is not opened. Raise as `policy_of` does."""
    if config.trust_root is None:
        return None
    return policy_of(config, NodeStore(config.store or default_root()), remote)


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
    acceptance = Acceptance.of(config, policy)
    verified = acceptance.check_signed(envelope, expected)
    if store is not None:
        check_sequence(verified, store.highest_sequence(verified.manifest.entry))
    acceptance.check_build(verified)
    return verified
