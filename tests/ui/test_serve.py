"""``cachesvc serve`` has the web page, unless a setting turns it off."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_making import Server

from .site import Browser


@pytest.mark.parametrize(("value", "status"), [(None, 401), ("false", 404)])
def test_serve_has_the_page_unless_it_is_turned_off(tmp_path: Path, value: str | None, status: int) -> None:
    server = Server(tmp_path / "data", prepared=False)
    if value is not None:
        server.env["CACHESVC_SERVER_WEB_PAGE"] = value
    with server.running():
        browser = Browser(server.url)
        assert browser.get("/ui").status_code == status
        if status == 401:
            assert browser.log_in(server.token).headers["location"] == "/ui"
            assert "Nothing went cold today" in browser.page("/ui").text
            assert "Nothing is published yet" in browser.page("/ui/names").text
            assert "Nothing is published yet" in browser.page("/ui/usage").text
