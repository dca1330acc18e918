"""An identity provider that says no, is down, or points elsewhere, and what it gets to know."""

from __future__ import annotations

import logging

import pytest

from cachesvc.oidc.issuers import FAILURE_SECONDS

from .person import START, begin, fails, log_in, refused
from .provider import SECRET, Provider, let_people_in
from .site import HOSTILE, Site


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
    assert SECRET not in caplog.text and SECRET not in repr(shared_site.inside.registry.outside.login)
    codes = [line for line in caplog.text.splitlines() if "code=" in line and "cachesvc" in line.split()[:3]]
    assert codes == [], "a code is no line of the log"
