"""Login and logout: what opens a session, what ends it, and what a forged request gets."""

from __future__ import annotations

import httpx
import pytest
from registry_inside import ROOT

from benchmarks.serving import serving
from cachesvc.domain.retention import DAY
from cachesvc.registry.access import tokens
from cachesvc.registry.access.sessions import MOST_SESSIONS, SESSION_SECONDS
from cachesvc.schema.access import Expiry
from cachesvc.ui.open_routes import LOGINS

from .site import Browser, Page, Site

COOKIE = "cachesvc_session"


def is_login(answer: httpx.Response) -> bool:
    return answer.status_code == 401 and "/ui/login" in Page(answer.text).forms


def with_session(one: Site, secret: str) -> Browser:
    """Return a browser with this cookie."""
    browser = one.browser()
    browser.http.headers["Cookie"] = f"{COOKIE}={secret}"
    return browser


def set_cookies(answer: httpx.Response) -> dict[str, str]:
    """Return the attributes of each cookie that an answer sets."""
    lines = answer.headers.get_list("set-cookie")
    return {line.partition("=")[0]: line.partition(";")[2] for line in lines}


def test_a_token_opens_a_session_that_ends_with_the_logout(shared_site: Site) -> None:
    browser = shared_site.browser()
    assert is_login(browser.get("/ui/names"))
    answer = browser.log_in(shared_site.secrets["reader"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
    page = browser.page("/ui/names")
    assert "reader · read in team" in page.text
    stolen = browser.http.cookies[COOKIE]
    answer = browser.send(page, "/ui/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
    assert COOKIE not in browser.http.cookies
    assert is_login(with_session(shared_site, stolen).get("/ui/names"))


def test_the_session_s_cookie_is_for_these_pages_and_no_script(shared_site: Site) -> None:
    browser = shared_site.browser()
    cookie = set_cookies(browser.log_in(shared_site.secrets["reader"]))[COOKIE].lower()
    assert {part.strip() for part in cookie.split(";")} == {
        "httponly",
        "path=/",
        "samesite=strict",
        f"max-age={SESSION_SECONDS}",
    }
    assert shared_site.secrets["reader"] not in str(dict(browser.http.cookies))


def test_over_https_the_cookies_are_secure_and_bound_to_this_host(shared_site: Site) -> None:
    """A proxy that ends TLS says so in a header."""
    browser = shared_site.browser()
    browser.http.headers["X-Forwarded-Proto"] = "https"
    answer = browser.get("/ui/login")
    assert set_cookies(answer)["__Host-cachesvc_login"].lower().count("secure") == 1
    # httpx sends no cookie that is secure over plain HTTP, as the connection to the proxy is.
    login = answer.headers["set-cookie"].partition(";")[0]
    fields = {**Page(answer.text).forms["/ui/login"], "token": shared_site.secrets["reader"]}
    answer = browser.http.post("/ui/login", data=fields, headers={"Cookie": login})
    assert answer.status_code == 303
    session = set_cookies(answer)["__Host-cachesvc_session"].lower()
    assert "secure" in session and "path=/" in session and "domain" not in session


@pytest.mark.parametrize("encoded", ["", "csv_" + "x" * 43, "REVOKED", "%ED%A0%80", "%00", "%27+OR+1=1+--"])
def test_a_wrong_token_opens_nothing(shared_site: Site, encoded: str) -> None:
    browser = shared_site.browser()
    form = Page(browser.get("/ui/login").text).forms["/ui/login"]
    encoded = shared_site.secrets["revoked"] if encoded == "REVOKED" else encoded
    answer = browser.http.post(
        "/ui/login",
        content=f"{httpx.QueryParams(form)}&token={encoded}",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert is_login(answer)
    assert COOKIE not in browser.http.cookies
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize("how", ["missing", "wrong", "of another browser", "without a cookie"])
def test_a_login_that_no_page_has_sent_is_refused(shared_site: Site, how: str) -> None:
    """Else another site could log a browser in with its own token."""
    browser = shared_site.browser()
    form = Page(browser.get("/ui/login").text).forms["/ui/login"]
    if how == "missing":
        del form["csrf"]
    elif how == "wrong":
        form["csrf"] = "0" * 64
    elif how == "of another browser":
        form = Page(shared_site.browser().get("/ui/login").text).forms["/ui/login"]
    else:
        browser.http.cookies.clear()
    answer = browser.http.post("/ui/login", data={**form, "token": shared_site.secrets["admin"]})
    assert answer.status_code == 403
    assert COOKIE not in browser.http.cookies
    assert "was not sent by a page" in Page(answer.text).text


@pytest.mark.parametrize("how", ["missing", "wrong", "of another session"])
def test_a_logout_that_no_page_has_sent_is_refused(shared_site: Site, how: str) -> None:
    browser = shared_site.browser("reader")
    form = browser.page("/ui/names").forms["/ui/logout"]
    if how == "missing":
        del form["csrf"]
    elif how == "wrong":
        form["csrf"] = form["csrf"][::-1]
    else:
        form = shared_site.browser("reader").page("/ui/names").forms["/ui/logout"]
    answer = browser.http.post("/ui/logout", data=form)
    assert answer.status_code == 403
    browser.page("/ui/names")


def test_every_form_that_sends_something_has_its_token(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    for path in ("/ui", "/ui/names", "/ui/usage", "/ui/tokens", "/ui/audit", "/ui/signers", "/ui/quarantine"):
        page = browser.page(path)
        posts = [form["action"] for form in page.all("form") if form["method"] == "post"]
        assert posts == ["/ui/logout"]
        assert len(page.forms["/ui/logout"]["csrf"]) == 64


def test_a_session_that_was_there_before_the_login_is_not_the_one_after_it(shared_site: Site) -> None:
    """An attacker plants a session that is known to the attacker, and waits for the login."""
    attacker = shared_site.browser("other reader")
    planted = attacker.http.cookies[COOKIE]
    victim = shared_site.browser()
    victim.http.cookies.set(COOKIE, planted, domain="127.0.0.1", path="/")
    form = Page(victim.get("/ui/login").text)
    victim.send(form, "/ui/login", token=shared_site.secrets["admin"])
    present = [cookie.value for cookie in victim.http.cookies.jar if cookie.name == COOKIE]
    assert planted not in present and len(present) == 1
    assert is_login(attacker.get("/ui/names"))


def test_a_cookie_that_nobody_gave_opens_nothing(shared_site: Site) -> None:
    for value in ("x", "", "t-root", shared_site.secrets["admin"], "a" * 5000):
        assert is_login(with_session(shared_site, value).get("/ui/names"))


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example/ui",
        "https://evil.example/ui",
        "/\\evil.example",
        "/ui\\..\\..",
        "/ui//evil.example",
        "/ui/../v1/tokens",
        "/ui/%0d%0aSet-Cookie:x",
        "javascript:alert(1)",
        "/uinames",
        "/v1/whoami",
        "/ui/logout",
        "/ui@evil.example",
        "\t//evil.example",
    ],
)
def test_a_login_leads_to_these_pages_alone(shared_site: Site, address: str) -> None:
    browser = shared_site.browser()
    asked = browser.get("/ui/login", params={"next": address})
    assert asked.status_code == 200
    form = Page(asked.text).forms["/ui/login"]
    answer = browser.http.post(
        "/ui/login", data={**form, "next": address, "token": shared_site.secrets["reader"]}
    )
    assert answer.status_code == 303
    led = httpx.URL(shared_site.url).join(answer.headers["location"])
    assert str(led).startswith(shared_site.url + "/ui") and ".." not in str(led) and "\r" not in str(led)
    if address != "/ui/%0d%0aSet-Cookie:x":
        assert (form["next"], answer.headers["location"]) == ("/ui", "/ui")


def test_a_login_leads_back_to_the_page_that_was_asked_for(shared_site: Site) -> None:
    browser = shared_site.browser()
    answer = browser.log_in(shared_site.secrets["reader"], "/ui/names/team/bert?tag=v2")
    assert answer.headers["location"] == "/ui/names/team/bert?tag=v2"


def test_a_revoked_token_s_session_ends_at_once(own_site: Site) -> None:
    browser, other = own_site.browser("reader"), own_site.browser("admin")
    tokens.revoke_token(own_site.inside.registry, ROOT, own_site.tokens["reader"])
    answer = browser.get("/ui/names")
    assert is_login(answer) and "was revoked" in answer.text
    other.page("/ui/names")


def test_a_token_or_a_session_that_has_run_out_opens_nothing(own_site: Site) -> None:
    browser = own_site.browser("reader")
    own_site.inside.clock.now += SESSION_SECONDS - 1
    browser.page("/ui/names")
    own_site.inside.clock.now += 1
    assert is_login(browser.get("/ui/names"))
    browser = own_site.browser("reader")
    tokens.expire_token(own_site.inside.registry, ROOT, own_site.tokens["reader"], Expiry(days=0))
    answer = browser.get("/ui/names")
    assert is_login(answer) and "has expired" in answer.text
    assert is_login(browser.log_in(own_site.secrets["reader"]))
    own_site.inside.clock.now += 31 * DAY
    assert is_login(own_site.browser().log_in(own_site.secrets["admin"]))


def test_another_replica_knows_the_session_and_its_end(own_site: Site) -> None:
    browser = own_site.browser("reader")
    with serving(own_site.inside.registry, web_page=True) as url:
        second = Browser(url)
        second.http.cookies.set(COOKIE, browser.http.cookies[COOKIE])
        page = second.page("/ui/names")
        assert second.send(page, "/ui/logout").status_code == 303
    assert is_login(browser.get("/ui/names"))


def test_a_token_has_some_sessions_and_no_more(own_site: Site) -> None:
    browsers = []
    for number in range(MOST_SESSIONS + 1):
        if number % (LOGINS - 1) == 0:
            own_site.inside.clock.now += 6
        browsers.append(own_site.browser("reader"))
        own_site.inside.clock.now += 1
    assert is_login(browsers[0].get("/ui/names"))
    for browser in browsers[1:]:
        browser.page("/ui/names")


def test_an_address_that_tries_tokens_waits_and_keeps_nobody_out(own_site: Site) -> None:
    """The stranger and the operator come from the address of one proxy."""
    browser, operator = own_site.browser(), own_site.browser()
    form, own_form = (Page(one.get("/ui/login").text) for one in (browser, operator))
    statuses = [
        browser.send(form, "/ui/login", token=f"csv_{number:043}").status_code for number in range(LOGINS + 3)
    ]
    assert statuses == [401] * LOGINS + [429] * 3
    for _ in range(LOGINS + 1):  # each success ends what was counted of this token
        own_form = Page(operator.get("/ui/login").text)
        answer = operator.send(own_form, "/ui/login", token=own_site.secrets["reader"])
        assert answer.status_code == 303
    assert browser.send(form, "/ui/login", token=f"csv_{0:043}").status_code == 429
    own_site.inside.clock.now += 6
    assert browser.send(form, "/ui/login", token=own_site.secrets["reader"]).status_code == 303


def test_one_secret_that_is_tried_again_and_again_waits_wherever_it_is_tried(own_site: Site) -> None:
    browser = own_site.browser()
    form = Page(browser.get("/ui/login").text)
    for number in range(LOGINS + 1):
        own_site.inside.registry.memory.drop("logins/token/from/127.0.0.1")  # as from another address
        status = browser.send(form, "/ui/login", token="csv_" + "a" * 43).status_code
        assert status == (429 if number == LOGINS else 401)


def test_no_token_travels_over_plain_http_to_another_machine(shared_site: Site) -> None:
    browser = shared_site.browser()
    form = Page(browser.get("/ui/login").text)
    browser.http.headers["Host"] = "cache.example"
    answer = browser.get("/ui/login")
    assert "/ui/login" not in Page(answer.text).forms
    assert "plain HTTP" in answer.text
    answer = browser.send(form, "/ui/login", token=shared_site.secrets["reader"])
    assert answer.status_code == 403


def test_a_form_that_is_too_large_or_no_form_is_not_read(shared_site: Site) -> None:
    browser = shared_site.browser()
    form = Page(browser.get("/ui/login").text)
    assert browser.send(form, "/ui/login", token="x" * 20_000).status_code == 413
    assert browser.http.post("/ui/login", json={"token": "x"}).status_code == 422
    many = "&".join(f"f{number}=1" for number in range(100))
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.http.post("/ui/login", content=many, headers=kind).status_code == 422


def test_a_session_opens_no_route_of_the_api(shared_site: Site) -> None:
    """The API takes tokens in a header alone, so no other site can send a request in a browser's name."""
    browser = shared_site.browser("admin")
    for method, path in (("GET", "/v1/whoami"), ("GET", "/v1/tokens"), ("POST", "/v1/gc")):
        assert browser.http.request(method, path).status_code == 401


def test_collection_deletes_the_sessions_that_are_over(own_site: Site) -> None:
    from cachesvc.registry.upkeep import gc

    own_site.browser("reader")
    own_site.inside.clock.now += SESSION_SECONDS
    own_site.browser("reader")
    gc.collect(own_site.inside.registry)
    with own_site.inside.registry.index.write() as unit:
        assert unit.sessions.forget(own_site.inside.registry.now) == 0
        assert unit.sessions.forget(own_site.inside.registry.now + SESSION_SECONDS) == 1
