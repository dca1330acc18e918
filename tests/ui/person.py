"""Log people in at an identity provider, as the tests of such logins do."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from cachesvc.domain.access import Token
from cachesvc.ui.page import HEADERS

from .provider import Provider
from .site import Browser, Page, Site
from .test_login import COOKIE, is_login

START, CALLBACK = "/ui/login/provider", "/ui/login/callback"


def begin(browser: Browser, next_page: str = "", **fields: str) -> str:
    """Begin a login, and return the address at the provider to which the page leads."""
    page = Page(browser.get("/ui/login", params={"next": next_page} if next_page else {}).text)
    answer = browser.send(page, START, **fields)
    assert answer.status_code == 200, answer.text
    return leads_to(answer)


def leads_to(answer: httpx.Response) -> str:
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    return answer.headers["refresh"].partition("; url=")[2]


def log_in(one: Site, provider: Provider, person: str, browser: Browser | None = None) -> Browser:
    """Return a browser in which a person has logged in."""
    browser = browser or one.browser()
    answer = browser.get(provider.log_in(begin(browser), person))
    assert answer.status_code == 200 and leads_to(answer) == "/ui", answer.text
    return browser


def refused(browser: Browser, answer: httpx.Response, status: int, *words: str) -> None:
    """Check that an answer is the login page with one line that says why, and that no session is open."""
    page = Page(answer.text)
    assert answer.status_code == status, answer.text
    assert "/ui/login" in page.forms and 'role="alert"' in answer.text
    assert all(word in page.text for word in words), page.text
    assert COOKIE not in browser.http.cookies
    assert "cachesvc_attempt" not in browser.http.cookies, "an answer counts once"
    assert is_login(browser.get("/ui/names"))


def fails(one: Site, provider: Provider, status: int, *words: str, person: str = "ada") -> None:
    """Check that a login that a person makes now is refused, and that no token was made for it."""
    before = logins(one)
    browser = one.browser()
    refused(browser, browser.get(provider.log_in(begin(browser), person)), status, *words)
    assert logins(one) == before


def logins(one: Site) -> dict[str, Token]:
    """Return the tokens of people."""
    with one.inside.registry.index.read() as unit:
        return {row.token: row for row in unit.tokens.all("*") if row.person is not None}


def changed(address: str, **parameters: str | None) -> str:
    """Return an address with other parameters; ``None`` leaves one out."""
    query = {**dict(parse_qsl(urlsplit(address).query)), **parameters}
    return f"{address.partition('?')[0]}?{urlencode({name: one for name, one in query.items() if one})}"
