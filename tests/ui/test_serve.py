"""``cachesvc serve`` has the web page, unless a setting turns it off."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from registry_making import Server

from tests.services.process import free_port

from .provider import CLIENT_ID, ROLES, SECRET, running_provider
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


def test_serve_lets_people_in_as_its_settings_say(tmp_path: Path) -> None:
    """The settings of a file and of variables, the secret's file, and the start without the provider."""
    port = free_port()
    with running_provider(time.time) as provider:
        (tmp_path / "secret").write_text(f"{SECRET}\n")
        provider.redirect_uri = f"http://127.0.0.1:{port}/ui/login/callback"
        server = Server(tmp_path / "data", ["--port", str(port)], prepared=False)
        server.env |= {
            "CACHESVC_SERVER_PUBLIC_URL": f"http://127.0.0.1:{port}/",
            "CACHESVC_SERVER_OIDC_ISSUER": provider.issuer.url,
            "CACHESVC_SERVER_OIDC_CLIENT_ID": CLIENT_ID,
            "CACHESVC_SERVER_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
            "CACHESVC_SERVER_OIDC_ROLES": json.dumps(ROLES),
        }
        provider.down = True
        with server.running():
            browser = Browser(server.url)
            page = browser.page("/ui/login")
            assert browser.send(page, "/ui/login/provider").status_code == 503
            assert browser.log_in(server.token).status_code == 303
        provider.down = False
        with server.running():
            browser = Browser(server.url)
            answer = browser.send(browser.page("/ui/login"), "/ui/login/provider")
            back = provider.log_in(answer.headers["refresh"].partition("url=")[2], "ada")
            assert browser.get(back).headers["refresh"] == "0; url=/ui"
            assert "admin in every namespace" in browser.page("/ui").text
