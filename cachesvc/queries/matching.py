"""Find the names and entries that a user means by a name, a part of one or a pattern."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cachesvc.schema.entries import EntryPage
from cachesvc_client.queries.names import Connection, all_names, namespaces_of
from cachesvc_client.wire.errors import Forbidden, InvalidRequest, NotFound
from cachesvc_client.wire.names import Name, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import NameSummary
from cachesvc_client.wire.suggestion import did_you_mean

from .registry_calls import all_pages

_LIST_NAMES = "the command ls lists the names"


@dataclass(frozen=True, slots=True)
class Place:
    """Names entries: those of a namespace, of a name there, or of a tag of the name."""

    namespace: Namespace
    name: ShortName | None = None
    tag: Tag | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse ``namespace``, ``namespace/name`` or ``namespace/name:tag``. Raises ``InvalidRequest``."""
        try:
            if "/" not in text:
                return cls(Namespace(text))
            name = Name.parse(text)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        return cls(name.namespace, name.name, name.tag if ":" in text else None)

    def query(self) -> dict[str, object]:
        """Return the place as the query of a search for entries."""
        return {"namespace": self.namespace, "name": self.name, "tag": self.tag}


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards, as file names have them."""
    return any(character in text for character in "*?[")


def matching_names(registry: Connection, text: str) -> list[NameSummary]:
    """Return the names that ``text`` means: a pattern matches a name with its namespace, a namespace, or a
    name alone; another text is a part of a name with its namespace.

    Raises ``NotFound`` with the nearest name if there is none.
    """
    named = _namespace_in(text)
    names = all_names(registry, [named]) if named else []
    if not (rows := _matching(names, text)):
        with suppress(Forbidden) if named else nullcontext():
            names = all_names(registry)
        rows = _matching(names, text)
    if rows:
        return rows
    known = dict.fromkeys(word for row in names for word in _words(row))
    raise NotFound(f"nothing is under {text[:80]}", did_you_mean(text, known, _LIST_NAMES))


def names_in(registry: Connection, text: str | None) -> list[NameSummary]:
    """Return the names of the place that ``text`` is, else those that match it; ``None``: all. Raises
    ``NotFound`` as `matching_names` does."""
    if text is None:
        return all_names(registry)
    rows = matching_names(registry, text.rstrip("/"))
    return [row for row in rows if text in (row.namespace, f"{row.namespace}/{row.name}")] or rows


def _matching(names: list[NameSummary], text: str) -> list[NameSummary]:
    if is_pattern(text):
        return [row for row in names if any(fnmatchcase(word, text) for word in _words(row))]
    return [row for row in names if text in f"{row.namespace}/{row.name}"]


def _namespace_in(text: str) -> Namespace | None:
    """Return the namespace that a text with a slash begins with; ``None`` if that part has wildcards or there
    is no slash."""
    namespace, slash, _ = text.partition("/")
    return Place.parse(namespace).namespace if slash and not is_pattern(namespace) else None


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


def places_of(registry: Connection, text: str | None) -> list[Place | None]:
    """Return the places that a text means: the one of that very name, else those that match it. ``None`` is
    every place."""
    if text is None:
        return [None]
    if not is_pattern(text):
        place = Place.parse(text)
        if place.name is None and place.namespace in namespaces_of(registry):
            return [place]  # it may hold nothing
        if any(True for _ in all_pages(registry, "/v1/entries", EntryPage, 1, **place.query())):
            return [place]
    return [*matching_places(registry, text)]


def entries_in(registry: Connection, text: str | None, most: int | None = None, **facts: object) -> list[Any]:
    """Return the entries of the places that ``text`` means (``EntryRecord``), the newest first in each, at
    most ``most``. ``facts``: the query of `GET /v1/entries`. Raises ``NotFound`` as `matching_names` does."""
    rows: list[Any] = []
    for place in places_of(registry, text):
        query = {**(place.query() if place else {}), **facts}
        left = None if most is None else most - len(rows)
        rows += all_pages(registry, "/v1/entries", EntryPage, left, **query)
    return rows


def check_namespace(registry: Connection, namespace: Namespace) -> None:
    """Raise ``NotFound`` with the nearest namespace if there is none of that name."""
    known = namespaces_of(registry)
    if namespace not in known:
        hint = did_you_mean(namespace, known, "see: cachesvc admin namespaces list")
        raise NotFound(f"namespace {namespace} does not exist", hint)


def _words(row: NameSummary) -> tuple[str, str, str]:
    return f"{row.namespace}/{row.name}", row.namespace, row.name
