"""A login at an identity provider: who gets which role by it, and what the pages show of the person."""

from __future__ import annotations

import logging

import pytest

from .person import CALLBACK, START, begin, fails, leads_to, log_in
from .provider import SECRET, Provider, let_people_in
from .site import HOSTILE, Page, Site
from .test_changes import change, confirm, newest
from .test_login import COOKIE, set_cookies


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


def test_a_registry_without_a_provider_offers_none(shared_site: Site) -> None:
    browser = shared_site.browser()
    page = browser.page("/ui/login")
    assert START not in page.forms
    assert browser.http.post(START, data=page.forms["/ui/login"]).status_code == 404
    assert browser.get(CALLBACK, params={"code": "x", "state": "x"}).status_code == 404
