"""The door for foreign bytes: the one place that makes an `Accepted` revision.

Restores, the node agent, mirrors, bundles, OCI, `warm` and every command ask here. What installs, holds,
shows or passes on a revision takes an `Accepted`, and nothing else can make one: the type says that the
checks were made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Protocol

from ..bundle.check import CLOCK_SKEW_SECONDS, ExpectedStatement, Policy, Verified, check_envelope
from ..bundle.seal import PublicKey, TrustedKey
from ..wire.digest import Digest
from ..wire.durations import duration_text
from ..wire.errors import Untrusted
from ..wire.manifest.records import MAX_AHEAD_MILLISECONDS, Manifest, Statement
from ..wire.manifest.requirement import Requirement
from ..wire.names import Lane

_DOOR = object()
"""What only this module has, so that nothing else makes an `Accepted`."""
DEFAULT_MAX_AGE = 365 * 86_400.0
"""Seconds after its signature for which a revision counts, where neither the user nor a root says another
time: as long as a root itself counts."""
TRUST_HINT = "set CACHESVC_TRUSTED_KEYS or run: cachesvc login URL"


@dataclass(frozen=True, slots=True)
class Accepted(Verified):
    """A revision that someone who counts here has signed, for what was asked. Only `Acceptance` makes
    one."""

    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _DOOR:
            raise TypeError("an Accepted is made by Acceptance alone")

    @property
    def lane(self) -> Lane | None:
        """Return the lane that the revision is signed for; ``None`` for the trunk."""
        return self.manifest.statement.lane


class SequenceRecord(Protocol):
    """Declares what a node remembers of the revisions that it accepted."""

    def sequences(self, entry: Digest) -> Mapping[str, int]:
        """Return by signer the highest sequence of an entry that was accepted."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decides which revisions count, by one configuration.

    ``policy``: decides about signers by the registry's trust metadata; ``None`` without a pinned root.
    ``max_age``: greatest seconds since a revision was signed; ``None``: what the root signs, or else the
    default. ``require``: who must have built it; ``None``: any. ``trust_hint``: how a user trusts one more
    key here, for messages.
    """

    trusted: Sequence[PublicKey | TrustedKey]
    policy: Policy | None = None
    max_age: float | None = None
    require: Requirement | None = None
    trust_hint: str = TRUST_HINT

    @property
    def trusts_nobody(self) -> bool:
        """Return whether no signature counts."""
        return not self.trusted and self.policy is None

    def trusting(self, *keys: PublicKey | TrustedKey) -> Acceptance:
        """Return the same with more trusted keys, such as the user's own.

        Where a pinned root decides alone, it goes on to do so: these keys count if the root names them.
        """
        if self.policy is not None and not self.trusted:
            return self
        return replace(self, trusted=tuple(dict.fromkeys((*self.trusted, *keys))))

    def accept(
        self, envelope: bytes, expected: ExpectedStatement | None, record: SequenceRecord | None = None
    ) -> Accepted:
        """Return the revision of an envelope that may be used here, as far as the envelope decides it.

        Its signer counts, its statement is the ``expected`` one (``None``: any), it is not older than what
        ``record`` has of its entry, and its age and builder are those that the user allows. Raise
        ``Untrusted``, ``Corrupt``.
        """
        accepted = self.accept_signed(envelope, expected, record)
        self.check_build(accepted)
        return accepted

    def accept_signed(
        self,
        envelope: bytes,
        expected: ExpectedStatement | None,
        record: SequenceRecord | None = None,
        now: float | None = None,
    ) -> Accepted:
        """Return the revision of an envelope whatever its age and builder: enough to judge it or to pass it
        on. ``now``: seconds of UTC; ``None``: this machine's clock. Raise as `accept` does."""
        verified = check_envelope(
            envelope,
            trusted=self.trusted,
            expected=expected,
            now=time.time() if now is None else now,
            policy=self.policy,
            trust_hint=self.trust_hint,
        )
        if record is not None:
            _check_sequence(verified, self.highest_sequence(record, verified.manifest, verified.signer))
        return Accepted(
            verified.manifest,
            verified.revision,
            verified.envelope,
            verified.signer,
            verified.provenance,
            made_by=_DOOR,
        )

    def highest_sequence(self, record: SequenceRecord, manifest: Manifest, signer: str) -> int | None:
        """Return the highest sequence below which a signer's revision of an entry is a replay; ``None`` if
        nothing of it was accepted.

        The signer's own counts, and that of each other key that counts here still. Of another key none of
        the future does: it would keep everybody else out.
        """
        latest = int(time.time() * 1000) + MAX_AHEAD_MILLISECONDS
        return max(
            (
                sequence
                for key, sequence in record.sequences(manifest.entry).items()
                if key == signer or (sequence <= latest and self._counts(key, manifest.statement))
            ),
            default=None,
        )

    def _counts(self, key: str, statement: Statement) -> bool:
        named = any(
            one.key == key and one.counts_for(statement.namespace)
            if isinstance(one, TrustedKey)
            else one == key
            for one in self.trusted
        )
        if self.policy is None:
            return named
        return (named or not self.trusted) and self.policy.counts(key, statement)

    def check_build(self, revision: Accepted) -> None:
        """Raise ``Untrusted`` for a revision that is too old, or that was not built as the user requires."""
        self._check_age(revision)
        _check_requirement(revision, self.require)

    def soon_too_old(self, revision: Accepted) -> bool:
        """Return whether a builder publishes a revision again: less than a tenth of its time is left."""
        statement = revision.manifest.statement
        return _age(statement) > 0.9 * self._longest_age(statement)[0]

    def _check_age(self, revision: Accepted) -> None:
        """Raise ``Untrusted`` if the revision was signed too long ago: whoever has old files may serve them,
        and withhold what was published since. What is signed for the future would never be too old."""
        statement = revision.manifest.statement
        bound, whose, longer = self._longest_age(statement)
        age = _age(statement)
        if age < -CLOCK_SKEW_SECONDS:
            raise Untrusted(
                f"{statement.full_name}: signed {duration_text(-age)} after this machine's time: a clock is "
                "wrong, and its age is not known",
                "set this machine's clock; if it is right: cachesvc warm publishes it again",
            )
        if age > bound + CLOCK_SKEW_SECONDS:
            raise Untrusted(
                f"{statement.full_name}: signed {duration_text(age)} ago, more than the "
                f"{duration_text(bound)} {whose}",
                f"cachesvc warm publishes it again; or allow more: {longer}",
            )

    def _longest_age(self, statement: Statement) -> tuple[float, str, str]:
        """Return for how many seconds a revision counts, who says so, and what allows more. The user may
        shorten what a root signs, and replace the default."""
        place = statement.namespace
        signed = None if self.policy is None else self.policy.max_age(place)
        if signed is not None and (self.max_age is None or signed < self.max_age):
            whose = f"that the root allows in {place}"
            return float(signed), whose, f"cachesvc admin trust max-age {place} AGE"
        if self.max_age is None:
            return DEFAULT_MAX_AGE, "that count by default", "CACHESVC_MAX_AGE"
        return self.max_age, "of CACHESVC_MAX_AGE", "CACHESVC_MAX_AGE"


def _age(statement: Statement) -> float:
    return time.time() - statement.sequence / 1000


def _check_sequence(verified: Verified, highest: int | None) -> None:
    """Raise ``Untrusted`` if this node accepted a higher sequence of the entry before: then someone replays
    an old revision."""
    statement = verified.manifest.statement
    if highest is not None and statement.sequence < highest:
        raise Untrusted(
            f"{statement.full_name}: sequence {statement.sequence} is older than {highest}, seen before",
            "a rolled-back registry? remove the entry from the node store's seen/ to accept it",
        )


def _check_requirement(revision: Accepted, requirement: Requirement | None) -> None:
    """Raise ``Untrusted`` if the revision was not built as this user requires."""
    if requirement is None:
        return
    difference = requirement.difference_of(revision.provenance)
    if difference is not None:
        raise Untrusted(
            f"{revision.manifest.statement.full_name}: {difference}; CACHESVC_REQUIRE asks for {requirement}",
            "warm it in that CI job with --oidc",
        )
