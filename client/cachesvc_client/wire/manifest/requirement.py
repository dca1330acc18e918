"""Defines what a user requires of the builder of a revision, such as
``builder=https://github.com/org/app/*, ref=refs/heads/main``.

The grammar is small, because a requirement that is misread lets strangers in: conditions with commas, each
``NAME=VALUE`` and each name once; a ``*`` stands at the end of a value or nowhere.
"""

from __future__ import annotations

import re

from ..text import ValidText
from .provenance import CHANGED, CLEAN, LOCAL_BUILDER, UNKNOWN, Provenance, is_uri

_EXAMPLE = "builder=https://github.com/org/app/*, ref=refs/heads/main"
_NAMES = ("builder", "ref", "tree")
_TREES = {
    CHANGED: "files that are not those of its commit",
    UNKNOWN: "files of which nobody says whether they are those of its commit",
}
_MAX_TEXT = 1000
"""Largest number of characters of a requirement."""
_WIDE_BUILDER = re.compile(r"[a-z][a-z0-9+.-]*://[^/@#]+(?:/[^/@#]+)+[/@#]")
"""Matches a beginning that names the owner too, and that ends where a name ends."""
_REF = re.compile(r"refs/[a-z-]+/[!-+\--~]*")
"""Matches a whole ref, or the beginning of one."""


class Requirement(ValidText):
    """Holds a requirement in one spelling: ``builder=PATTERN``, perhaps ``, ref=PATTERN`` and perhaps
    ``, tree=clean``."""

    pattern = re.compile(r"builder=[!-+\--~]+(?:, ref=[!-+\--~]+)?(?:, tree=[a-z]+)?")
    what = f"requirement of a builder, such as {_EXAMPLE}"
    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Returns the requirement that a user wrote. Raises ``ValueError`` with what is allowed."""
        if len(text) > _MAX_TEXT:
            raise ValueError(f"more than {_MAX_TEXT} characters")
        values: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if name not in _NAMES or not equals or not value:
                raise ValueError(f"{part.strip()[:80]!r} is no condition; write: {_EXAMPLE}")
            if name in values:
                raise ValueError(f"{name} stands twice")
            values[name] = value
        if "builder" not in values:
            raise ValueError(f"builder is missing: nothing else says who vouches; write: {_EXAMPLE}")
        return cls(", ".join(f"{name}={values[name]}" for name in _NAMES if name in values))

    def __new__(cls, text: object) -> Requirement:
        requirement = super().__new__(cls, text)
        _check_builder(requirement.builder)
        if requirement.ref is not None:
            _check_ref(requirement.ref, requirement.builder)
        if requirement.tree not in (None, CLEAN):
            raise ValueError(f"tree: {requirement.tree!r}; only tree={CLEAN} is a condition")
        return requirement

    @property
    def builder(self) -> str:
        """Returns the pattern of the builder."""
        return self.split(", ")[0].removeprefix("builder=")

    @property
    def ref(self) -> str | None:
        """Returns the pattern of the ref; ``None`` accepts every ref."""
        return self._condition("ref")

    @property
    def tree(self) -> str | None:
        """Return how the files of the checkout must be, compared with its commit; ``None`` accepts all."""
        return self._condition("tree")

    def _condition(self, name: str) -> str | None:
        parts = (part.partition("=") for part in self.split(", "))
        return next((value for key, _, value in parts if key == name), None)

    def difference(self, builder: str | None, ref: str | None, tree: str | None) -> str | None:
        """Returns why a revision does not meet this requirement; ``None`` if it does.

        ``builder``: the builder in its provenance, ``None`` if it has no provenance. ``ref``: the ref for
        which a registry vouches. ``tree``: how the builder found the files of its checkout.
        """
        if not builder:
            return "nothing says who built it"
        if not _fits(self.builder, builder):
            return f"it was built by {builder}"
        if self.ref is not None and not _fits(self.ref, ref or ""):
            return f"it was built from {ref or 'no ref that anybody vouches for'}"
        if self.tree is not None and tree != self.tree:
            return f"it was built from {_TREES.get(tree or '', _TREES[UNKNOWN])}"
        return None

    def difference_of(self, provenance: Provenance | None) -> str | None:
        """Returns why the build of a revision does not meet this requirement; ``None`` if it does."""
        if provenance is None:
            return self.difference(None, None, None)
        return self.difference(provenance.builder, provenance.ref, provenance.tree)


def _check_builder(pattern: str) -> None:
    beginning = _beginning(pattern, "builder")
    if beginning is None:
        if not is_uri(pattern):
            raise ValueError(f"builder: {pattern[:120]!r} is no URI; write: {_EXAMPLE}")
    elif not _WIDE_BUILDER.fullmatch(beginning) or not is_uri(f"{beginning}x"):
        raise ValueError(
            f"builder: {pattern[:120]!r} fits strangers; name the owner too, and end with /*, @* or #*"
        )


def _check_ref(pattern: str, builder: str) -> None:
    beginning = _beginning(pattern, "ref")
    if not _REF.fullmatch(pattern if beginning is None else beginning) or pattern.endswith("/"):
        raise ValueError(f"ref: {pattern[:120]!r}; write it whole: refs/heads/main, or refs/tags/*")
    if builder == LOCAL_BUILDER:
        raise ValueError(f"ref: nobody vouches for the ref of {LOCAL_BUILDER}")


def _beginning(pattern: str, name: str) -> str | None:
    """Returns what stands before the ``*``; ``None`` for a pattern without one."""
    if "*" in pattern[:-1]:
        raise ValueError(f"{name}: {pattern[:120]!r} has a * that is not at its end")
    return pattern[:-1] if pattern.endswith("*") else None


def _fits(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
