"""Defines the revocation of a signing key, version 1: what an operator asks for, and what it withholds.

Times are seconds of UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc_client.wire.names import Lane, Namespace, ShortName

from .entries import MAX_WHY, Descendant


@dataclass(frozen=True, slots=True)
class RevocationRequest:
    """Asks to revoke a key in ``namespace``; ``None``: in all that the token administers. ``why``: one
    printable line, which services log."""

    key: str
    namespace: str | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if len(self.why) > MAX_WHY or not self.why.isprintable():
            raise ValueError(f"why: at most {MAX_WHY} printable characters")


@dataclass(frozen=True, slots=True)
class RevokedSigner:
    """Describes a key that ``namespace`` (or ``*``, all) refuses. ``by``: a token's id, or ``console``."""

    namespace: str
    key: str
    revoked: int
    why: str
    by: str


@dataclass(frozen=True, slots=True)
class WithheldName:
    """Counts the revisions that a revocation withholds under one name and lane. ``offered``: time at which
    one of them was last offered to a start, exact to a few hours."""

    namespace: Namespace
    name: ShortName
    revisions: int
    lane: Lane | None = None
    offered: int | None = None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """Describes a node that reported some of the ``revisions`` in the last 30 days. ``node``: 32 hex digits,
    which `cachesvc-client doctor` prints on that node. ``label``: of the token. ``used``: whether its last
    report of one of them says that its files were used."""

    node: str
    token: str
    label: str
    seen: int
    revisions: int
    used: bool


@dataclass(frozen=True, slots=True)
class Revocation:
    """Describes what a revocation does, or did. ``namespace``: where the key is refused, or ``*``.
    ``signer_of``: the namespaces (or ``*``) that accepted the key until then. ``nodes`` has the first of
    them; ``more_nodes`` says whether there are more. ``descendants``: revisions that were made with what the
    key signed, at most ``MAX_DESCENDANTS``."""

    key: str
    namespace: str
    signer_of: tuple[str, ...]
    revisions: int
    names: tuple[WithheldName, ...]
    nodes: tuple[SeenNode, ...]
    more_nodes: bool = False
    descendants: tuple[Descendant, ...] = ()
