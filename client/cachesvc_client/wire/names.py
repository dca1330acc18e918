"""Defines names of entries, ``namespace/name[:tag]``, and lanes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .text import ValidText

_PART = r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?"
"""Matches one part of a name."""


class Namespace(ValidText):
    """Names a unit of trust and of access: tokens and signers are scoped to it."""

    pattern = re.compile(_PART)
    what = "namespace (lower-case letters, digits, and . _ - inside; at most 128)"
    __slots__ = ()


class Lane(ValidText):
    """Names an overlay of a namespace for untrusted writers, such as ``pr-123``."""

    pattern = re.compile(_PART)
    what = "lane (lower-case letters, digits, and . _ - inside; at most 128)"
    __slots__ = ()


class ShortName(ValidText):
    """Names what stands between the namespace and the tag. It may hold ``/`` for grouping."""

    pattern = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
    what = "name (lower-case letters, digits, and . _ - / inside)"
    __slots__ = ()


class Tag(ValidText):
    """Names a version of a name; ``latest`` if the user names none."""

    pattern = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
    what = "tag (letters, digits and . _ -; at most 128)"
    __slots__ = ()


class Target(ValidText):
    """Names what one line of a warm spec compiles, with its variant, such as ``bert/bf16/default``."""

    pattern = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/=+-]{0,254}[A-Za-z0-9_])?")
    what = "target (letters, digits and . _ - / = +; at most 256)"
    __slots__ = ()


LATEST = Tag("latest")
"""Tag of a name that the user wrote without one."""


@dataclass(frozen=True, slots=True)
class Name:
    """Names all entries under ``namespace/name[:tag]``.

    >>> Name.parse("team/bert:v3")
    Name(namespace='team', name='bert', tag='v3')
    """

    namespace: Namespace
    name: ShortName
    tag: Tag = LATEST

    @classmethod
    def parse(cls, text: str) -> Name:
        """Parses the text form. Raises ``ValueError`` with what is allowed."""
        namespace, slash, rest = text.partition("/")
        if not slash:
            raise ValueError(f"not a name: {text[:120]!r} (expected namespace/name or namespace/name:tag)")
        name, colon, tag = rest.partition(":")
        return cls(Namespace(namespace), ShortName(name), Tag(tag) if colon else LATEST)

    def tags(self, fallback: Iterable[Tag]) -> tuple[Tag, ...]:
        """Lists the name's own tag and the ones to try after it, each once.

        >>> Name.parse("team/bert:v3").tags((Tag("latest"), Tag("v3")))
        ('v3', 'latest')
        """
        return tuple(dict.fromkeys((self.tag, *fallback)))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.tag}"
