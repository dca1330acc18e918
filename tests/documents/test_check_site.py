"""Test that the site loads nothing from another host, and that the check finds what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_site import foreign_loads

LOADED = (
    '<script src="https://cdn.example/x.js"></script>',
    '<link rel="stylesheet" href="//fonts.example/x.css">',
    '<img src="http://pictures.example/x.png">',
)
HARMLESS = (
    '<a href="https://example.com">a link that a reader may follow</a>',
    '<link rel="canonical" href="https://example.com/page.html">',
    '<script src="assets/x.js"></script>',
)


@pytest.mark.parametrize("element", LOADED)
def test_a_foreign_load_of_a_page_is_found(tmp_path: Path, element: str) -> None:
    (tmp_path / "page.html").write_text(f"<html><body>{element}</body></html>")
    [load] = foreign_loads(tmp_path)
    assert load.startswith("page.html: <")


def test_a_foreign_load_of_a_style_sheet_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text('@font-face { src: url("https://fonts.example/x.woff2") }')
    assert foreign_loads(tmp_path) == ["style.css: https://fonts.example/x.woff2"]


@pytest.mark.parametrize("element", HARMLESS)
def test_links_and_own_files_are_allowed(tmp_path: Path, element: str) -> None:
    (tmp_path / "page.html").write_text(f"<html><body>{element}</body></html>")
    assert foreign_loads(tmp_path) == []
