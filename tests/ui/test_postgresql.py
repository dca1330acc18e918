"""The pages over PostgreSQL are those over SQLite."""

from __future__ import annotations

import re
from pathlib import Path

from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.store import BlobStore
from cachesvc.index.engine import open_postgresql
from cachesvc.index.unit import Index

from .site import Site, site

PAGES = (
    "/ui",
    "/ui/names",
    "/ui/names?q=am%2Fb",
    "/ui/names/team/bert",
    "/ui/coverage/team/llm/llama-8b",
    "/ui/explain/team/llm/llama-8b",
    "/ui/usage",
    "/ui/claims",
    "/ui/collection",
    "/ui/quarantine",
    "/ui/audit?action=token&subject=t-",
)
ENTRIES = ("llama", "decode", "bert", "tagged")


class OnPostgresql:
    """The index in a database of PostgreSQL, and the packs in a folder."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, folder: Path) -> tuple[Index, BlobStore]:
        return open_postgresql(self._url), LocalBlobStore(folder)


def words(one: Site) -> list[list[str]]:
    """Return the words of each page, sorted: digests decide the order of what happened in one second. Ids,
    keys and digests are new in each registry, and left out."""
    browser = one.browser("admin")
    entries = [f"/ui/entries/{one.published[what].manifest.entry}" for what in ENTRIES]
    pages = [browser.page(path).text for path in (*PAGES, *entries)]
    new = re.compile(r"ed25519:[\w+/=…]+|t-[0-9a-f]{16}|[0-9a-f]{12,}")
    return [sorted(new.sub(" ", text).split()) for text in pages]


def test_every_page_says_the_same(database: str, tmp_path: Path) -> None:
    for name in ("sqlite", "postgresql"):
        (tmp_path / name).mkdir()
    with site(tmp_path / "sqlite") as one:
        embedded = words(one)
    with site(tmp_path / "postgresql", column=OnPostgresql(database)) as one:
        assert words(one) == embedded
