"""A login at an identity provider: what it opens, what ends it, and what each attack on it gets."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from registry_inside import ROOT

from cachesvc.domain.access import Token
from cachesvc.domain.retention import DAY
from cachesvc.oidc.issuers import FAILURE_SECONDS
from cachesvc.registry import tokens
from cachesvc.registry.sessions import MOST_SESSIONS
from cachesvc.ui.open_routes import LOGIN_SECONDS, LOGINS
from cachesvc.ui.page import HEADERS
from cachesvc_client.wire.admin import Expiry, Rotation
from cachesvc_client.wire.errors import InvalidRequest
from tests.security.issuer import Issuer

from .provider import CLIENT_ID, SECRET, Provider, let_people_in, running_provider
from .site import HOSTILE, Browser, Page, Site
from .test_changes import change, confirm, newest
from .test_login import COOKIE, is_login, set_cookies, with_session

START, CALLBACK = "/ui/login/provider", "/ui/login/callback"


@pytest.fixture(scope="module")
def running(session_site: Site) -> Iterator[Provider]:
    with running_provider(session_site.inside.clock) as provider:
        yield provider


@pytest.fixture
def provider(running: Provider, shared_site: Site) -> Iterator[Provider]:
    """Return a provider that behaves, at which people log in to the shared registry."""
    running.behave()
    let_people_in(shared_site, running)
    yield running
    object.__setattr__(shared_site.inside.registry, "login", None)


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


def test_a_person_logs_in_and_acts_by_the_role_of_the_groups(shared_site: Site, provider: Provider) -> None:
    browser = log_in(shared_site, provider, "ada")
    assert "Ada <b>L</b> · admin in every namespace" in browser.page("/ui").text
    row = newest(shared_site)
    assert (row.action, row.namespace, row.by) == ("login.open", "*", row.subject)
    who = f"oidc:{provider.issuer.url} ada"
    assert row.details["who"] == who and row.details["name"] == "Ada <b>L</b>"
    page = browser.page("/ui/tokens")
    assert f"{provider.issuer.url} ada" in page.text and "<b>" not in browser.get("/ui/tokens").text
    path = change(shared_site, "llama", "pin")
    assert "The revision is pinned." in confirm(browser, path, why="mine").text
    row = newest(shared_site)
    assert (row.action, row.details["who"], row.details["via"]) == ("revision.pin", who, "web")
    assert who in browser.page("/ui/audit").text
    confirm(browser, change(shared_site, "llama", "unpin"))
    reader = log_in(shared_site, provider, "bob")
    assert "bob · read in team" in reader.page("/ui/names").text
    assert reader.get("/ui/tokens").status_code == 403
    assert reader.get(change(shared_site, "llama", "pin")).status_code == 403
    assert reader.get("/ui/names/other/secret").status_code == 404


def test_the_cookies_of_a_login_are_for_these_pages_and_hold_no_token(
    shared_site: Site, provider: Provider
) -> None:
    browser = shared_site.browser()
    answer = browser.send(browser.page("/ui/login"), START)
    cookie = set_cookies(answer)["cachesvc_attempt"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "max-age=600" in cookie
    answer = browser.get(provider.log_in(leads_to(answer), "bob"))
    cookies = set_cookies(answer)
    assert {part.strip() for part in cookies[COOKIE].lower().split(";")} == {
        *("httponly", "path=/", "samesite=strict", "max-age=3600")
    }
    assert "max-age=0" in cookies["cachesvc_attempt"].lower()
    text = str(dict(browser.http.cookies)) + answer.text + str(answer.headers)
    assert provider.tokens_given[-1] not in text and SECRET not in text


def test_nobody_has_a_role_by_default(
    shared_site: Site, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cachesvc.access"):
        fails(shared_site, provider, 403, "You have no role in this registry", person="dan")
        assert "dan: the claim groups: of its 1 values" in caplog.text
        fails(shared_site, provider, 403, "You have no role in this registry", person="eve")
        assert "eve: the claim groups: it is missing" in caplog.text
    for groups in (
        "staff",
        ["Cache-Admins", "cache-admins ", ""],
        [["cache-admins"]],
        {"cache-admins": 1},
        7,
    ):
        provider.people["dan"]["groups"] = groups
        fails(shared_site, provider, 403, "You have no role", person="dan")


def test_who_has_several_roles_chooses_one_and_gets_no_other(shared_site: Site, provider: Provider) -> None:
    browser = shared_site.browser()
    answer = browser.get(provider.log_in(begin(browser, "/ui/names?q=llama"), "cleo"))
    page = Page(answer.text)
    assert COOKIE not in browser.http.cookies and "As what, Cleo?" in page.text
    offered = [one["value"] for one in page.all("input") if one["name"] == "grant"]
    assert offered == ["admin in team", "read in *"]
    fields = dict(page.forms[START])
    for grant, said in (("read in *", "read in every namespace"), ("admin in team", "admin in team")):
        answer = browser.http.post(START, data={**fields, "grant": grant})
        answer = browser.get(provider.log_in(leads_to(answer), "cleo"))
        assert leads_to(answer) == "/ui/names?q=llama"
        names = browser.page("/ui/names")
        assert said in names.text
        fields["csrf"] = browser.page("/ui/login").forms[START]["csrf"]
        browser.http.cookies.delete(COOKIE)
    for forged in ("admin in *", "admin in other", "", "x" * 5000):
        answer = browser.http.post(START, data={**fields, "grant": forged})
        answer = browser.get(provider.log_in(leads_to(answer), "cleo"))
        assert "As what" in answer.text and COOKIE not in browser.http.cookies
        fields = Page(answer.text).forms[START]


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


NOW = object()
"""Stands for the time of the registry."""


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "no issuer"),
        ({"aud": "other"}, "for another service"),
        ({"aud": None}, "for another service"),
        ({"aud": [], "azp": CLIENT_ID}, "for another service"),
        ({"aud": CLIENT_ID[:-1]}, "for another service"),
        ({"aud": {CLIENT_ID: 1}}, "for another service"),
        ({"aud": [CLIENT_ID, "other"]}, "given to another service"),
        ({"aud": [CLIENT_ID, "other"], "azp": "other"}, "given to another service"),
        ({"azp": "other"}, "given to another service"),
        ({"exp": -61}, "has expired"),
        ({"exp": None}, "when it expires"),
        ({"exp": "tomorrow"}, "not a time"),
        ({"iat": 62}, "not valid yet"),
        ({"nbf": 62}, "not valid yet"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"sub": "a" * 256}, "names nobody"),
        ({"sub": "ada\nbob"}, "names nobody"),
    ],
)
def test_a_token_that_is_not_for_this_registry_and_now_opens_nothing(
    shared_site: Site, provider: Provider, claims: dict[str, Any], words: str
) -> None:
    now = int(shared_site.inside.clock())
    times = ("exp", "iat", "nbf")
    provider.claims = {
        name: now + value if name in times and isinstance(value, int) else value
        for name, value in claims.items()
    }
    fails(shared_site, provider, 401, words)


def test_a_token_that_only_looks_strange_counts(shared_site: Site, provider: Provider) -> None:
    now = int(shared_site.inside.clock())
    for claims in (
        {"aud": [CLIENT_ID]},
        {"aud": [CLIENT_ID, "other"], "azp": CLIENT_ID},
        {"exp": now - 50},
        {"exp": now + 40 * DAY},
    ):
        provider.claims = claims
        log_in(shared_site, provider, "bob")
    provider.claims = {}
    provider.token = lambda claims: provider.issuer.sign(claims, "two")
    log_in(shared_site, provider, "bob")


def test_a_forger_of_tokens_opens_nothing(shared_site: Site, provider: Provider) -> None:
    issuer = provider.issuer
    public = issuer.keys["one"][1].as_pem(private=False)
    forger = Issuer(issuer.url)
    forger.add_key("one", "RS256")

    def altered(claims: dict[str, Any]) -> str:
        head, _, signature = issuer.sign({**claims, "sub": "bob"}).split(".")
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        return f"{head}.{body}.{signature}"

    for make, words in (
        (issuer.unsigned, "algorithm 'none'"),
        (lambda claims: issuer.signed_by_hmac(claims, public), "algorithm 'HS256'"),
        (forger.sign, "not by a key of issuer"),
        (altered, "not by a key of issuer"),
        (lambda claims: issuer.sign(claims, kid="three"), "has no key"),
        (lambda claims: issuer.sign(claims, typ="logout+jwt"), "not JWT"),
        (lambda _: "no token", "a JSON Web Token with"),
    ):
        provider.token = make
        fails(shared_site, provider, 401, words)


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


def test_a_provider_that_says_no_is_one_line(shared_site: Site, provider: Provider) -> None:
    provider.answer = {"code": None, "error": "access_denied", "error_description": HOSTILE}
    fails(shared_site, provider, 401, "did not let you in")
    provider.answer = {"code": None, "error": HOSTILE}
    fails(shared_site, provider, 401, "refused the login: ")
    browser = shared_site.browser()
    assert "<script" not in browser.get(provider.log_in(begin(browser), "ada")).text
    for code in (None, "x" * 5000):
        provider.answer = {"code": code}
        fails(shared_site, provider, 401, "has no code")


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


def test_a_login_ends_with_its_time_and_a_logout_and_a_revocation(
    shared_site: Site, provider: Provider
) -> None:
    browser = log_in(shared_site, provider, "bob")
    shared_site.inside.clock.now += 3599
    browser.page("/ui/names")
    shared_site.inside.clock.now += 1
    assert is_login(browser.get("/ui/names"))
    browser = log_in(shared_site, provider, "bob")
    stolen = browser.http.cookies[COOKIE]
    answer = browser.send(browser.page("/ui/names"), "/ui/logout")
    assert answer.status_code == 303 and is_login(with_session(shared_site, stolen).get("/ui/names"))
    assert all(
        row.revoked for row in logins(shared_site).values() if row.expires > shared_site.inside.clock()
    )
    browser, admin = log_in(shared_site, provider, "bob"), shared_site.browser("admin")
    [token] = [name for name, row in logins(shared_site).items() if row.label == "bob" and not row.revoked][
        -1:
    ]
    confirm(admin, f"/ui/change/tokens/{token}/revoke")
    answer = browser.get("/ui/names")
    assert is_login(answer) and "was revoked" in answer.text
    with shared_site.inside.registry.index.write() as unit:
        unit.tokens.forget_given(shared_site.inside.registry.now + DAY)
    assert logins(shared_site) == {}


def test_a_login_s_token_has_no_secret_and_gets_none(shared_site: Site, provider: Provider) -> None:
    """An administrator who got one would act under the person's name."""
    browser = log_in(shared_site, provider, "ada")
    registry = shared_site.inside.registry
    [token] = [
        name for name, row in logins(shared_site).items() if not row.revoked and row.label.startswith("Ada")
    ][-1:]
    for secret in (token, f"login {token}", browser.http.cookies[COOKIE], provider.tokens_given[-1]):
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{shared_site.url}/v1/whoami", headers=headers, trust_env=False).status_code == 401
        assert is_login(shared_site.browser().log_in(secret))
    with pytest.raises(InvalidRequest, match="is of a login"):
        tokens.rotate_token(registry, ROOT, token, Rotation(60))
    with pytest.raises(InvalidRequest, match="is of a login"):
        tokens.expire_token(registry, ROOT, token, Expiry(days=30))
    page = browser.page("/ui/tokens")
    assert f"/ui/change/tokens/{token}/revoke" in page.links
    assert f"/ui/change/tokens/{token}/expire" not in page.links
    with registry.index.read() as unit:
        soon = unit.tokens.count_expiring(registry.now, registry.now + 7200)
    assert soon == 0, "a login is no token that somebody has to renew"


def test_a_lost_role_ends_with_the_next_login_in_every_browser(shared_site: Site, provider: Provider) -> None:
    first, second = (log_in(shared_site, provider, "ada") for _ in range(2))
    provider.people["ada"]["groups"] = ["ml"]
    assert "admin in every namespace" in first.page("/ui").text, "until the next login"
    log_in(shared_site, provider, "ada", second)
    assert "read in team" in second.page("/ui/names").text
    assert is_login(first.get("/ui"))
    assert int(newest(shared_site).details["ended"]) >= 1
    provider.people["ada"]["groups"] = []
    fails(shared_site, provider, 403, "no role")


def test_a_person_has_some_sessions_and_no_more(shared_site: Site, provider: Provider) -> None:
    browsers = []
    for _ in range(MOST_SESSIONS + 1):
        shared_site.inside.clock.now += LOGIN_SECONDS + 1
        browsers.append(log_in(shared_site, provider, "bob"))
    assert is_login(browsers[0].get("/ui/names"))
    for browser in browsers[1:]:
        browser.page("/ui/names")


def test_a_name_is_shown_as_it_is_and_breaks_nothing(shared_site: Site, provider: Provider) -> None:
    provider.people["ada"]["name"] = f"  \u202eroot\n{HOSTILE}  " + "x" * 400
    browser = log_in(shared_site, provider, "ada")
    for path in ("/ui", "/ui/tokens", "/ui/audit"):
        text = browser.get(path).text
        assert "<script" not in text and "\u202e" not in text
        assert f"?root {HOSTILE}" in browser.page(path).text
    assert len(newest(shared_site).details["name"]) == 100


def test_an_address_of_e_mail_counts_if_the_provider_has_verified_it(
    shared_site: Site, provider: Provider
) -> None:
    let_people_in(shared_site, provider, claim="email", roles={"eve@example.org": ["read in team"]})
    for verified in (None, False, "true", 1):
        provider.claims = {"email_verified": verified}
        fails(shared_site, provider, 401, "not verified your address", person="eve")
    provider.claims = {"email_verified": True}
    assert "eve@example.org · read in team" in log_in(shared_site, provider, "eve").page("/ui/names").text
    provider.claims = {"email_verified": True, "email": "Eve@example.org.evil.example"}
    fails(shared_site, provider, 403, "no role", person="eve")
    let_people_in(shared_site, provider, claim="hd", roles={"example.org": ["read in *"]})
    provider.claims = {"hd": "example.org"}
    assert "read in every namespace" in log_in(shared_site, provider, "eve").page("/ui/names").text


def test_a_provider_that_is_down_keeps_nobody_with_a_token_out(
    shared_site: Site, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.down = True
    browser = shared_site.browser()
    answer = browser.send(browser.page("/ui/login"), START)
    refused(
        browser, answer, 503, "The identity provider cannot be used now. Log in with a token, or try again"
    )
    assert provider.issuer.url in caplog.text and "closed the connection" in caplog.text
    assert browser.log_in(shared_site.secrets["reader"]).status_code == 303
    provider.down = False
    shared_site.inside.clock.now += FAILURE_SECONDS + 1
    browser = shared_site.browser()
    back = provider.log_in(begin(browser), "bob")
    provider.down = True
    refused(browser, browser.get(back), 503, "The identity provider cannot be used now")


def test_a_provider_that_points_elsewhere_is_not_followed(shared_site: Site, provider: Provider) -> None:
    for discovery in (
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://169.254.169.254/token"},
        {"issuer": "https://other.example"},
    ):
        provider.discovery = discovery
        let_people_in(shared_site, provider)
        browser = shared_site.browser()
        answer = browser.send(browser.page("/ui/login"), START)
        refused(browser, answer, 503, "The identity provider cannot be used now")


def test_the_client_s_secret_goes_to_the_provider_alone(
    shared_site: Site, provider: Provider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.form_secret = True
    let_people_in(shared_site, provider)
    log_in(shared_site, provider, "bob")
    provider.behave()
    let_people_in(shared_site, provider)
    monkeypatch.setattr("tests.ui.provider.SECRET", "another")
    with caplog.at_level(logging.DEBUG):
        fails(shared_site, provider, 503, "The identity provider cannot be used now")
    assert "compare oidc_client_id, its secret" in caplog.text and "'invalid_client'" in caplog.text
    assert SECRET not in caplog.text and SECRET not in repr(shared_site.inside.registry.login)
    codes = [line for line in caplog.text.splitlines() if "code=" in line and "cachesvc" in line.split()[:3]]
    assert codes == [], "a code is no line of the log"


def test_an_address_that_tries_logins_at_the_provider_waits(shared_site: Site, provider: Provider) -> None:
    browser = shared_site.browser()
    page = browser.page("/ui/login")
    statuses = [browser.send(page, START).status_code for _ in range(LOGINS + 2)]
    assert statuses == [200] * LOGINS + [429] * 2
    asked = len(provider.issuer.requests)
    assert browser.get(CALLBACK, params={"code": "x", "state": "x"}).status_code == 429
    shared_site.inside.clock.now += LOGIN_SECONDS + 1
    statuses = [browser.get(CALLBACK, params={"code": "x"}).status_code for _ in range(LOGINS + 1)]
    assert statuses == [401] * LOGINS + [429]
    assert browser.log_in(shared_site.secrets["reader"]).status_code == 429, "all logins count together"
    assert len(provider.issuer.requests) == asked, "strangers make no traffic at the provider"


def test_a_registry_without_a_provider_offers_none(shared_site: Site) -> None:
    browser = shared_site.browser()
    page = browser.page("/ui/login")
    assert START not in page.forms
    assert browser.http.post(START, data=page.forms["/ui/login"]).status_code == 404
    assert browser.get(CALLBACK, params={"code": "x", "state": "x"}).status_code == 404
