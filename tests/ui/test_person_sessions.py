"""What a login at an identity provider leaves: a token without a secret, and sessions that end."""

from __future__ import annotations

import httpx
import pytest
from registry_inside import ROOT

from cachesvc.domain.retention import DAY
from cachesvc.registry.access import tokens
from cachesvc.registry.access.sessions import MOST_SESSIONS
from cachesvc.schema.access import Expiry, Rotation
from cachesvc.ui.open_routes import LOGIN_SECONDS
from cachesvc_client.wire.errors import InvalidRequest

from .person import fails, log_in, logins
from .provider import Provider
from .site import Site
from .test_changes import confirm, newest
from .test_login import COOKIE, is_login, with_session


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
        row.life.revoked
        for row in logins(shared_site).values()
        if row.life.expires > shared_site.inside.clock()
    )
    browser, admin = log_in(shared_site, provider, "bob"), shared_site.browser("admin")
    [token] = [
        name for name, row in logins(shared_site).items() if row.label == "bob" and not row.life.revoked
    ][-1:]
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
        name
        for name, row in logins(shared_site).items()
        if not row.life.revoked and row.label.startswith("Ada")
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
