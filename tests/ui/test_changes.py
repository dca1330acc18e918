"""Changes: what asks first, what a confirmed form does, who may, and what the audit log says of it."""

from __future__ import annotations

import re

import pytest
from registry_making import make

from cachesvc.index.entries.search import Search
from cachesvc.registry import claims
from cachesvc.registry.upkeep import retention
from cachesvc.schema.access import AuditRecord
from cachesvc.schema.namespaces import Policy
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRequest, ClaimSubject

from .site import HOSTILE, ROOT, Browser, Page, Site


def change(one: Site, what: str, action: str) -> str:
    return f"/ui/change/revisions/{one.published[what].revision}/{action}"


def confirm(browser: Browser, path: str, **fields: str) -> Page:
    """Open the page that asks, send its form, and follow to the page that says what was done."""
    answer = browser.send(browser.page(path), path, **fields)
    assert answer.status_code == 303, answer.text
    return browser.page(answer.headers["location"])


def newest(one: Site) -> AuditRecord:
    with one.inside.registry.index.read() as unit:
        [row] = unit.audit.page("*", None, 1, None, None)
    return row


def test_quarantine_and_release_by_the_page(own_site: Site) -> None:
    browser, llama = own_site.browser("admin"), own_site.published["llama"]
    path = change(own_site, "llama", "quarantine")
    asking = browser.page(path)
    command = f"cachesvc admin quarantine set {llama.revision[7:19]} --why TEXT --apply"
    assert command in asking.text and "prefill/bf16/default" in asking.text
    assert [one["href"] for one in asking.all("a") if one["href"].startswith("/ui/entries/")]
    page = confirm(browser, path, why=HOSTILE)
    assert "The revision is in quarantine." in page.text and HOSTILE in page.text
    row = newest(own_site)
    assert (row.action, row.by, row.subject) == (
        "quarantine.set",
        own_site.tokens["admin"],
        llama.revision,
    )
    assert row.details == {"why": HOSTILE, "via": "web"}
    assert "via: web" in browser.page("/ui/audit").text
    with own_site.inside.registry.index.read() as unit:
        stored = unit.inventory.revision(llama.revision)
    assert stored is not None and stored.quarantined is not None
    page = confirm(browser, change(own_site, "llama", "release"))
    assert "is offered again" in page.text and "quarantined" not in page.text
    assert newest(own_site).action == "quarantine.release"
    answer = browser.send(
        browser.page(change(own_site, "llama", "release")), change(own_site, "llama", "release")
    )
    assert answer.status_code == 404 and "offered everywhere" in Page(answer.text).text


def test_a_pin_keeps_an_entry_and_a_deletion_takes_it(own_site: Site) -> None:
    browser = own_site.browser("team admin")
    page = confirm(browser, change(own_site, "strange", "pin"), why="")
    assert "The revision is pinned." in page.text
    path = change(own_site, "strange", "delete-entry")
    refused = browser.send(browser.page(path), path)
    assert refused.status_code == 422 and "unpin it first" in Page(refused.text).text.lower()
    confirm(browser, change(own_site, "strange", "unpin"))
    answer = browser.send(browser.page(path), path)
    assert answer.headers["location"] == "/ui/names/team/strange?done=delete-entry"
    assert newest(own_site).action == "entry.delete" and newest(own_site).details["via"] == "web"
    assert browser.get(f"/ui/entries/{own_site.published['strange'].manifest.entry}").status_code == 404


def test_an_entry_whose_head_has_moved_is_not_deleted(own_site: Site) -> None:
    """The form was open while somebody published."""
    browser, llama = own_site.browser("admin"), own_site.published["llama"]
    path = change(own_site, "llama", "delete-entry")
    asking = browser.page(path)
    fingerprint = llama.manifest.fingerprint
    more = {"name": "llm/llama-8b", "target": "prefill/bf16/default", "scopes": ("gpu", "host")}
    own_site.inside.publish(
        make(own_site.inside.key, fingerprint=fingerprint, content=b"newer", **more), head=llama.revision
    )
    answer = browser.send(asking, path)
    assert answer.status_code == 409 and "its head is" in Page(answer.text).text
    page = confirm(browser, change(own_site, "llama", "delete"))
    assert "The revision is deleted." in page.text


@pytest.mark.parametrize("action", ["revoke", "expire"])
def test_a_token_is_ended_by_the_page(own_site: Site, action: str) -> None:
    browser, victim = own_site.browser("admin"), own_site.browser("hostile")
    token = own_site.tokens["hostile"]
    path = f"/ui/change/tokens/{token}/{action}"
    asking = browser.page(path)
    assert HOSTILE in asking.text and f"cachesvc admin tokens {action} {token}" in asking.text
    page = confirm(browser, path, **({"days": "0"} if action == "expire" else {}))
    assert "The token" in page.text
    assert victim.get("/ui/names").status_code == 401
    row = newest(own_site)
    assert (row.action, row.subject, row.details["via"]) == (f"token.{action}", token, "web")


def test_a_token_s_end_needs_a_number_of_days(own_site: Site) -> None:
    browser = own_site.browser("admin")
    path = f"/ui/change/tokens/{own_site.tokens['hostile']}/expire"
    for days in ("", "-1", "x", "²", "99999999", "4000"):
        assert browser.send(browser.page(path), path, days=days).status_code == 422
    assert own_site.browser("hostile").get("/ui/names").status_code == 200


def test_who_ends_the_own_token_is_told_and_logged_out(own_site: Site) -> None:
    browser = own_site.browser("team admin")
    path = f"/ui/change/tokens/{own_site.tokens['team admin']}/revoke"
    asking = browser.page(path)
    assert "This session ends with it" in asking.text
    answer = browser.send(asking, path)
    assert browser.get(answer.headers["location"]).status_code == 401


def test_a_collection_shows_its_plan_and_runs_once_it_is_confirmed(own_site: Site) -> None:
    own_site.inside.clock.now += 400 * 86_400
    own_site.token("late admin", "admin", "*")
    browser = own_site.browser("late admin")
    page = browser.page("/ui/collection")
    assert "cachesvc admin gc --apply" in page.text
    before = len(_entries(own_site))
    planned = int(re.findall(r"would remove (\d+) revision", page.text)[0])
    assert len(_entries(own_site)) == before
    after = browser.page(browser.send(page, "/ui/collection").headers["location"])
    assert "The collection has run" in after.text
    row = newest(own_site)
    assert (row.action, row.details["via"], int(row.details["revisions"])) == ("gc.run", "web", planned)


def test_a_collection_that_makes_starts_cold_says_whose_and_asks(own_site: Site) -> None:
    own_site.start("llama", "d", "hit", files=1, used=1)
    own_site.inside.clock.now += 5 * 86_400
    retention.set_policy(own_site.inside.registry, ROOT, Namespace("team"), Policy(unused_days=3))
    own_site.token("late admin", "admin", "*")
    browser = own_site.browser("late admin")
    page = browser.page("/ui/collection")
    target = own_site.published["llama"].manifest.statement.target
    assert target in page.text.partition("Starts that would go cold")[2].partition("Collect now?")[0]
    before = len(_entries(own_site))
    refused = browser.send(page, "/ui/collection")
    assert refused.status_code == 422 and "make the starts of" in refused.text
    assert len(_entries(own_site)) == before
    assert browser.send(page, "/ui/collection", cold="accepted").status_code == 303
    assert len(_entries(own_site)) < before


def _entries(one: Site) -> list[Digest]:
    with one.inside.registry.index.read() as unit:
        return [row.entry for row in unit.inventory.search(Search(), None, 100)[0]]


def test_a_form_of_no_page_of_this_session_changes_nothing(own_site: Site) -> None:
    """Without the session's own proof, with another session's, as JSON, and by GET."""
    browser, other = own_site.browser("admin"), own_site.browser("team admin")
    token = f"/ui/change/tokens/{own_site.tokens['hostile']}/revoke"
    for path in (change(own_site, "llama", "quarantine"), token, "/ui/collection"):
        foreign = other.page("/ui/names").forms["/ui/logout"]
        for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}, foreign):
            answer = browser.http.post(path, data={**fields, "why": "forged"})
            assert answer.status_code == 403 and "was not sent by a page" in Page(answer.text).text
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert browser.http.post(path, json={"why": "forged"}).status_code == 422
        assert own_site.browser().http.post(path, data={"why": "x"}).status_code == 401
        browser.get(f"{path}?why=forged")
    assert newest(own_site).details.get("via") is None


def test_only_who_may_do_it_by_the_api_may_do_it_here(own_site: Site) -> None:
    reader, team, other = (own_site.browser(one) for one in ("reader", "team admin", "other reader"))
    path, foreign = change(own_site, "llama", "quarantine"), change(own_site, "other", "quarantine")
    token, own = (f"/ui/change/tokens/{own_site.tokens[one]}/revoke" for one in ("admin", "hostile"))
    cases = (
        (reader, path, 403),
        (other, path, 403),
        (team, foreign, 404),
        (team, token, 404),
        (reader, own, 403),
        (team, "/ui/collection", 403),
        (reader, "/ui/collection", 403),
    )
    for browser, address, status in cases:
        assert browser.get(address).status_code == status, address
        form = browser.page("/ui/names").forms["/ui/logout"]
        assert browser.http.post(address, data={**form, "why": "x"}).status_code == status, address
    assert "Change this revision" not in reader.get(f"/ui/entries/{_entry(own_site)}").text
    assert newest(own_site).details.get("via") is None


def _entry(one: Site) -> Digest:
    return one.published["llama"].manifest.entry


def test_what_was_done_is_said_once_and_in_no_words_of_the_address(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    assert "The token is revoked." in browser.page("/ui/tokens?done=revoke").text
    page = browser.page("/ui/names?done=%3Cb%3E&q=nothing")
    assert not page.all("b")


def test_an_action_that_is_none_has_no_page(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    for path in (change(shared_site, "llama", "explode"), "/ui/change/tokens/t-0/revoke"):
        assert browser.get(path).status_code == 404
    assert browser.get(change(shared_site, "llama", "delete")).status_code == 422
    assert browser.get(f"/ui/change/tokens/{shared_site.tokens['revoked']}/revoke").status_code == 422


# Claims


def test_claims_in_flight_are_shown_while_they_hold_and_refresh_by_themselves(own_site: Site) -> None:
    browser = own_site.browser("admin")
    answer = browser.get("/ui/claims")
    assert answer.headers["refresh"] == "5" and "Nobody compiles" in Page(answer.text).text
    subject = ClaimSubject(Namespace("team"), ShortName("bert"), Digest.of(b"here"))
    claims.take(own_site.inside.registry, ROOT, ClaimRequest(subject, "a" * 32, HOSTILE[:100]))
    answer = browser.get("/ui/claims")
    page = Page(answer.text)
    assert "team/bert" in page.text and HOSTILE[:100] in page.text
    assert not [one for one in page.all("meta") if one.get("http-equiv")]
    still = browser.get("/ui/claims?paused=true")
    assert "refresh" not in still.headers and "team/bert" in still.text
    other = own_site.token("other admin", "admin", "other")
    assert other.secret and "Nobody compiles" in own_site.browser("other admin").page("/ui/claims").text
