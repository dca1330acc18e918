"""Find the names that a user means by a part of one or by a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from cachesvc_client.wire.admin import NamespaceRecord
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.names import Namespace, ShortName, Tag
from cachesvc_client.wire.protocol import NameSummary
from cachesvc_client.wire.suggestion import did_you_mean

from .connection import Connection


@dataclass(frozen=True, slots=True)
class Place:
    """Names entries: those of a namespace, of a name there, or of a tag of the name."""

    namespace: Namespace
    name: ShortName | None = None
    tag: Tag | None = None


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards, as file names have them."""
    return any(character in text for character in "*?[")


def namespaces_of(registry: Connection) -> list[Namespace]:
    """Return the namespaces that the user may see."""
    return [row.namespace for row in registry.rows("/v1/namespaces", NamespaceRecord)]


def all_names(registry: Connection) -> list[NameSummary]:
    """Return the names of every namespace that the user may see."""
    spaces = namespaces_of(registry)
    return [row for space in spaces for row in registry.rows(f"/v1/namespaces/{space}/names", NameSummary)]


def matching_names(registry: Connection, text: str) -> list[NameSummary]:
    """Return the names that ``text`` means: a pattern matches a name with its namespace, a namespace, or a
    name alone; another text is a part of a name with its namespace.

    Raises ``NotFound`` with the nearest name if there is none.
    """
    names = all_names(registry)
    if is_pattern(text):
        found = [row for row in names if any(fnmatchcase(word, text) for word in _words(row))]
    else:
        found = [row for row in names if text in f"{row.namespace}/{row.name}"]
    if found:
        return found
    known = dict.fromkeys(word for row in names for word in _words(row))
    raise NotFound(
        f"nothing is under {text[:80]}", did_you_mean(text, known, "see: cachesvc admin names list")
    )


def matching_places(registry: Connection, text: str) -> list[Place]:
    """Return the places that ``text`` means, which may have a tag, or a pattern for one. Raises ``NotFound``
    as `matching_names` does."""
    path, colon, tag = text.partition(":")
    names = matching_names(registry, path)
    if not colon:
        return [Place(row.namespace, row.name) for row in names]
    tags = [(row, one) for row in names for one in row.tags if fnmatchcase(one, tag)]
    if not tags:
        known = dict.fromkeys(one for row in names for one in row.tags)
        hint = did_you_mean(tag, known, "its tags: " + ", ".join([*known][:8]))
        raise NotFound(f"nothing is under {text[:80]}", hint)
    return [Place(row.namespace, row.name, one) for row, one in tags]


def check_namespace(registry: Connection, namespace: Namespace) -> None:
    """Raise ``NotFound`` with the nearest namespace if there is none of that name."""
    known = namespaces_of(registry)
    if namespace not in known:
        hint = did_you_mean(namespace, known, "see: cachesvc admin namespaces list")
        raise NotFound(f"namespace {namespace} does not exist", hint)


def _words(row: NameSummary) -> tuple[str, str, str]:
    return f"{row.namespace}/{row.name}", row.namespace, row.name
