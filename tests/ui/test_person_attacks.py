"""What an attack on a login at an identity provider gets: an answer, a code or a session of somebody else."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest

from cachesvc.ui.open_routes import LOGIN_SECONDS, LOGINS

from .person import CALLBACK, START, begin, changed, fails, leads_to, log_in, refused
from .provider import Provider, let_people_in
from .site import Page, Site
from .test_login import COOKIE, is_login


def test_an_attacker_s_answer_logs_no_other_browser_in(shared_site: Site, provider: Provider) -> None:
    """Else a victim would act in the attacker's session, and what the victim enters would be for that one."""
    attacker, victim = shared_site.browser(), shared_site.browser()
    answer = provider.log_in(begin(attacker), "bob")
    refused(victim, victim.get(answer), 401, "for no login of this browser")
    begin(victim)
    refused(victim, victim.get(answer), 401, "for no login of this browser")
    for state in (None, "x", "", "x" * 43):
        begin(victim)
        refused(victim, victim.get(changed(answer, state=state)), 401, "for no login of this browser")
    victim.http.cookies.set("cachesvc_attempt", "secret=&next=/ui", domain="127.0.0.1", path="/")
    refused(victim, victim.get(answer), 401, "for no login of this browser")
    begin(victim)
    refused(victim, victim.get(answer + "&" + urlencode({"state": "x"})), 401, "twice")


def test_a_stolen_code_is_worth_nothing_in_the_thief_s_browser(shared_site: Site, provider: Provider) -> None:
    """The thief began a login too, so the state fits: the verifier does not."""
    victim, thief = shared_site.browser(), shared_site.browser()
    stolen = dict(parse_qsl(urlsplit(provider.log_in(begin(victim), "ada")).query))["code"]
    own = provider.log_in(begin(thief), "bob")
    refused(thief, thief.get(changed(own, code=stolen)), 401, "refused the code")


def test_the_token_of_another_login_does_not_count(shared_site: Site, provider: Provider) -> None:
    for nonce in (None, "", "x" * 43, 7):
        provider.claims = {"nonce": nonce}
        fails(shared_site, provider, 401, "token is of another login")


def test_an_answer_counts_once(shared_site: Site, provider: Provider) -> None:
    browser = shared_site.browser()
    address = begin(browser)
    attempt = browser.http.cookies["cachesvc_attempt"]
    back = provider.log_in(address, "bob")
    assert browser.get(back).status_code == 200
    second = shared_site.browser()
    second.http.cookies.set("cachesvc_attempt", attempt, domain="127.0.0.1", path="/")
    refused(second, second.get(back), 401, "refused the code")
    browser.http.cookies.delete(COOKIE)
    refused(browser, browser.get(back), 401, "for no login of this browser")


def test_an_answer_of_another_provider_is_not_taken_for_this_one_s(
    shared_site: Site, provider: Provider
) -> None:
    """A mix-up (RFC 9207): else this provider's code would go to whoever mixed the answers up."""
    provider.answer = {"iss": "https://evil.example"}
    fails(shared_site, provider, 401, "not of the provider that was asked")
    provider.answer = {"iss": None}
    fails(shared_site, provider, 401, "not of the provider that was asked")
    provider.discovery = {"authorization_response_iss_parameter_supported": None}
    let_people_in(shared_site, provider)
    log_in(shared_site, provider, "bob")
    provider.answer = {"iss": provider.issuer.url + "/"}
    fails(shared_site, provider, 401, "not of the provider that was asked")


def test_the_address_back_is_that_of_the_settings_whatever_a_request_says(
    shared_site: Site, provider: Provider
) -> None:
    browser = shared_site.browser()
    browser.http.headers["X-Forwarded-Host"] = "evil.example"
    sent = dict(parse_qsl(urlsplit(begin(browser)).query))
    assert sent["redirect_uri"] == f"{shared_site.url}{CALLBACK}" == provider.redirect_uri
    form = browser.page("/ui/login").forms[START]
    for host, more in (("localhost", {}), ("evil.example", {}), ("", {"X-Forwarded-Proto": "https"})):
        headers = {**({"Host": host} if host else {}), **more}
        page = Page(browser.get("/ui/login", headers=headers).text)
        assert START not in page.forms and f"{shared_site.url}/ui/login" in page.links
        jar = "; ".join(
            f"{prefix}cachesvc_login={browser.http.cookies['cachesvc_login']}" for prefix in ("", "__Host-")
        )
        answer = browser.http.post(START, data=form, headers={**headers, "Cookie": jar})
        assert answer.status_code == 403 and "this login begins at" in Page(answer.text).text.lower()
        assert "refresh" not in answer.headers


@pytest.mark.parametrize(
    "address",
    ["//evil.example/ui", "https://evil.example", "/\\evil.example", "/ui/../v1", "javascript:alert(1)"],
)
def test_a_login_at_the_provider_leads_to_these_pages_alone(
    shared_site: Site, provider: Provider, address: str
) -> None:
    browser = shared_site.browser()
    back = provider.log_in(begin(browser, address, next=address), "bob")
    assert leads_to(browser.get(back)) == "/ui"
    # Whoever can set a cookie of this host leads nobody elsewhere either.
    back = provider.log_in(begin(browser), "bob")
    attempt = dict(parse_qsl(browser.http.cookies["cachesvc_attempt"].strip('"')))
    cookie = f"cachesvc_attempt={urlencode({**attempt, 'next': address})}"
    assert leads_to(httpx.get(back, headers={"Cookie": cookie}, trust_env=False)) == "/ui"


def test_a_planted_session_is_not_the_one_after_the_login(shared_site: Site, provider: Provider) -> None:
    attacker, victim = shared_site.browser("other reader"), shared_site.browser()
    planted = attacker.http.cookies[COOKIE]
    victim.http.cookies.set(COOKIE, planted, domain="127.0.0.1", path="/")
    log_in(shared_site, provider, "ada", victim)
    present = [cookie.value for cookie in victim.http.cookies.jar if cookie.name == COOKIE]
    assert planted not in present and len(present) == 1
    assert is_login(attacker.get("/ui/names"))


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("how", ["missing", "wrong", "of another browser", "without a cookie"])
def test_another_site_begins_no_login_and_ends_no_session(shared_site: Site, how: str) -> None:
    browser = shared_site.browser("reader")
    form = browser.page("/ui/login").forms[START]
    if how == "missing":
        del form["csrf"]
    elif how == "wrong":
        form["csrf"] = "0" * 64
    elif how == "of another browser":
        form = shared_site.browser().page("/ui/login").forms[START]
    else:
        browser.http.cookies.delete("cachesvc_login")
    answer = browser.http.post(START, data=form)
    assert answer.status_code == 403 and "refresh" not in answer.headers
    browser.page("/ui/names")
    assert browser.get(START).status_code == 404


def test_an_address_that_tries_logins_at_the_provider_waits(shared_site: Site, provider: Provider) -> None:
    browser = shared_site.browser()
    page = browser.page("/ui/login")
    assert {browser.send(page, START).status_code for _ in range(LOGINS + 2)} == {200}
    asked = len(provider.issuer.requests)
    # An answer to no login of this browser is refused before the provider is asked.
    statuses = [
        browser.get(CALLBACK, params={"code": "x", "state": "x"}).status_code for _ in range(LOGINS + 2)
    ]
    assert set(statuses) == {401}
    assert len(provider.issuer.requests) == asked, "strangers make no traffic at the provider"

    def wrong_code() -> int:
        state = dict(parse_qsl(urlsplit(begin(browser)).query))["state"]
        answer = {"code": "x", "state": state, "iss": provider.issuer.url}
        return browser.get(CALLBACK, params=answer).status_code

    statuses = [wrong_code() for _ in range(LOGINS + 2)]
    assert statuses == [401] * LOGINS + [429] * 2
    assert browser.log_in(shared_site.secrets["reader"]).status_code == 303, "a token opens a session still"
    shared_site.inside.clock.now += LOGIN_SECONDS + 1
    log_in(shared_site, provider, "ada", shared_site.browser())


def test_an_answer_in_another_form_opens_nothing(shared_site: Site, provider: Provider) -> None:
    """As a form of another page, with other names, or at a path that a proxy reads otherwise."""
    browser = shared_site.browser()
    back = provider.log_in(begin(browser), "bob")
    path, _, query = back.partition("?")
    fields = dict(parse_qsl(query))
    tries = [
        lambda: browser.http.post(path, data=fields),
        lambda: browser.http.request("PUT", back),
        lambda: browser.get(f"{path}?{query.replace('code=', 'Code=')}"),
        lambda: browser.get(f"{path}?{query.replace('state=', 'state[]=')}"),
        lambda: browser.get(f"{path}?{query.replace('&', ';')}"),
        lambda: browser.get(changed(back, code="x" * 20_000)),
        lambda: browser.get(back.replace("/callback", "/callback/")),
        lambda: browser.get(back.replace("/login/callback", "//login/callback")),
        lambda: browser.get(back.replace("/callback", "/x/..%2fcallback")),
    ]
    attempt = browser.http.cookies["cachesvc_attempt"]
    for act in tries:
        browser.http.cookies.set("cachesvc_attempt", attempt, domain="127.0.0.1", path="/")
        answer = act()
        assert answer.status_code >= 400 and COOKIE not in browser.http.cookies, answer.text
