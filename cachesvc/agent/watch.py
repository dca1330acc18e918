"""Owns the patterns by which an agent chooses names, and the ones that a registry has for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import LATEST, Name, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import NameSummary

MAX_WATCHED = 1000
"""Largest number of names with their tags that one agent watches; the first ones of its patterns."""
_MAX_NAMES_BYTES = 4 << 20
"""Number of bytes that are read of a listing of names."""
_WILD = frozenset("*?[")
"""Characters that make a text a glob."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Chooses names of one namespace: ``team/bert``, ``team/*:prod``, ``team/llm/*:v*``.

    The globs are those of `fnmatch`; without a tag, the tag is ``latest``."""

    namespace: Namespace
    name: str
    tag: str = LATEST

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parses the text form. Raises ``ValueError`` with what is allowed."""
        namespace, slash, rest = text.partition("/")
        name, colon, tag = rest.partition(":")
        pattern = cls(Namespace(namespace), name, tag if colon else LATEST)
        if not slash or not name or not pattern.tag or len(text) > 400 or not text.isprintable():
            raise ValueError("allowed: namespace/name[:tag]; name and tag may have * and ?")
        if pattern.exact is None and _WILD.isdisjoint(name + pattern.tag):
            raise ValueError(f"{name[:80]}:{pattern.tag[:80]} is neither a name with a tag nor a glob")
        return pattern

    @property
    def exact(self) -> Name | None:
        """Returns the one name that the pattern chooses; ``None`` for a glob."""
        if not _WILD.isdisjoint(self.name + self.tag):
            return None
        try:
            return Name(self.namespace, ShortName(self.name), Tag(self.tag))
        except ValueError:
            return None

    def chooses(self, name: Name) -> bool:
        """Returns whether a name is one of the pattern."""
        here = name.namespace == self.namespace
        return here and fnmatchcase(name.name, self.name) and fnmatchcase(name.tag, self.tag)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True)
class FactorPattern:
    """Chooses entries by a factor of their fingerprint: ``gpu=NVIDIA H100*``. An entry without the factor is
    chosen: the factor does not decide about it."""

    factor: str
    glob: str

    @classmethod
    def parse(cls, text: str) -> FactorPattern:
        """Parses the text form. Raises ``ValueError`` with what is allowed."""
        factor, equals, glob = text.partition("=")
        if not equals or not factor or not glob:
            raise ValueError("allowed: FACTOR=GLOB, such as gpu=NVIDIA*")
        return cls(factor.strip(), glob.strip())

    def chooses(self, fingerprint: dict[str, FactorValue]) -> bool:
        """Returns whether an entry with this fingerprint is chosen."""
        value = fingerprint.get(self.factor)
        return value is None or fnmatchcase(str(value), self.glob)


def watched_names(remote: Remote, patterns: Iterable[Pattern]) -> list[Name]:
    """Lists the names that the patterns choose, each once and in their order, ``MAX_WATCHED`` at most.

    A registry is asked for the names of a namespace where a pattern is a glob. Raises as `Remote.names`."""
    names: dict[Name, None] = {}
    known: dict[Namespace, list[Name]] = {}
    for pattern in patterns:
        exact = pattern.exact
        if exact is None and pattern.namespace not in known:
            known[pattern.namespace] = list(_names_of(remote, pattern.namespace))
        rows = [exact] if exact else [name for name in known[pattern.namespace] if pattern.chooses(name)]
        names.update(dict.fromkeys(rows))
    return list(names)[:MAX_WATCHED]


def _names_of(remote: Remote, namespace: Namespace) -> Iterator[Name]:
    try:
        path = f"/v1/namespaces/{namespace}/names?trunk=true"
        rows = remote.rows(path, NameSummary, limit=_MAX_NAMES_BYTES)
    except NotFound:
        return
    for row in rows:
        if row.namespace == namespace:
            for tag in row.tags:
                yield Name(namespace, row.name, tag)
