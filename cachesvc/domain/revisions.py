"""Decide which revision may follow which: the compare-and-set rule of an entry's head."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import HeadConflict


@dataclass(frozen=True, slots=True)
class Head:
    """The newest revision of an entry."""

    revision: Digest
    sequence: int


def advances(head: Head | None, *, expected: Digest | None, revision: Digest, sequence: int) -> bool:
    """Returns whether ``revision`` becomes the head: false if it is the head already (a success, nothing to
    do).

    Raises ``HeadConflict`` if the head is not ``expected`` (``None``: the entry must be new), or if
    ``sequence`` does not exceed the head's, so that no one rolls an entry back by publishing again.
    """
    if head is not None and head.revision == revision:
        return False
    current = head.revision if head else None
    if current != expected:
        raise HeadConflict(
            f"the entry's head is {_short(current)}, not {_short(expected)}",
            "somebody published in between: look at the new head, then publish over it by naming it",
        )
    if head is not None and sequence <= head.sequence:
        raise HeadConflict(
            f"sequence {sequence} is not above the head's {head.sequence}",
            "sign again; the sequence is milliseconds of UTC: check the clock",
        )
    return True


def _short(revision: Digest | None) -> str:
    return revision[:19] if revision else "none"
