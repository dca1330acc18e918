"""Find the word that a user meant."""

from __future__ import annotations

from collections.abc import Iterable

_CUTOFF = 0.6
"""How alike two words must be, by difflib's ratio."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like ``word``; ``None`` if none is like it."""
    import difflib  # takes milliseconds, and only mistakes need it

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=_CUTOFF)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the hint ``did you mean X?``, or ``otherwise`` if no known word is like ``word``."""
    near = nearest(word, known)
    return f"did you mean {near}?" if near else otherwise
