"""``namespace/name[:tag]`` and lanes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .text import ValidText

_PART = r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?"


class Namespace(ValidText):
    """The unit of trust and of access: tokens and signers are scoped to it."""

    pattern = re.compile(_PART)
    what = "namespace (lower-case letters, digits, and . _ - inside; at most 128)"
    __slots__ = ()


class Lane(ValidText):
    """An overlay of a namespace for untrusted writers, such as ``pr-123``."""

    pattern = re.compile(_PART)
    what = "lane (lower-case letters, digits, and . _ - inside; at most 128)"
    __slots__ = ()


class ShortName(ValidText):
    """What stands between the namespace and the tag; may hold ``/`` for grouping."""

    pattern = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
    what = "name (lower-case letters, digits, and . _ - / inside)"
    __slots__ = ()


class Tag(ValidText):
    """``latest`` if none is given."""

    pattern = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
    what = "tag (letters, digits and . _ -; at most 128)"
    __slots__ = ()


class Target(ValidText):
    """What one line of a warm spec compiles, with variant, such as ``bert/bf16/default``."""

    pattern = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/=+-]{0,254}[A-Za-z0-9_])?")
    what = "target (letters, digits and . _ - / = +; at most 256)"
    __slots__ = ()


LATEST = Tag("latest")


@dataclass(frozen=True, slots=True)
class Name:
    """``namespace/name[:tag]``: all entries under it.

    >>> Name.parse("team/bert:v3")
    Name(namespace='team', name='bert', tag='v3')
    """

    namespace: Namespace
    name: ShortName
    tag: Tag = LATEST

    @classmethod
    def parse(cls, text: str) -> Name:
        """Raises ``ValueError`` with what is allowed."""
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
