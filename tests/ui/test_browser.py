"""Every page in a real browser, at two widths and in both colour schemes: nothing scrolls sideways, axe finds
nothing serious, the keyboard reaches everything, and the policy of the pages stops every script."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.wire.partitions import known_partition

from .provider import let_people_in, running_provider
from .site import A100, FINGERPRINT, H200, HOSTILE, Site, site

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = os.environ.get("CACHESVC_TEST_UI") == "required"
SHOTS = os.environ.get("CACHESVC_TEST_UI_SHOTS")
"""Folder for a picture of each page, for people who look at them."""
WIDTHS = (360, 1440)
A100_LLAMA, H200_LLAMA = {**FINGERPRINT, **A100}, {**FINGERPRINT, **H200}
SERIOUS = ("serious", "critical")


def program() -> str:
    """Return the path of Chromium, or skip the test; `make test-ui` installs it and fails without."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None and REQUIRED:
        pytest.fail("no Chromium: apt-get install chromium")
    return found or pytest.skip("no Chromium here: make test-ui installs it")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = program()
    if not REQUIRED:
        pytest.importorskip("playwright", reason="no Playwright here: make test-ui installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Site]:
    del chromium  # it skips where the browser is missing
    with site(tmp_path_factory.mktemp("site")) as one:
        yield one


def pages(one: Site) -> dict[str, str]:
    """Return the address of each page of an administrator, by a short name."""
    entry = {what: f"/ui/entries/{made.manifest.entry}" for what, made in one.published.items()}
    return {
        "overview": "/ui",
        "names": "/ui/names",
        "nothing-found": "/ui/names?q=nothing",
        "name": "/ui/names/team/llm/llama-8b",
        "entry": entry["decode"],
        "entry-hostile": f"{entry['bert']}?revision={one.published['bert'].revision}",
        "entry-strange": entry["strange"],
        "entry-quarantined": entry["tagged"],
        "coverage": "/ui/coverage/team/llm/llama-8b",
        "environments": "/ui/explain/team/llm/llama-8b",
        "explain": f"/ui/explain/team/llm/llama-8b?environment={known_partition(A100_LLAMA)}",
        "explain-withheld": f"/ui/explain/team/llm/llama-8b?environment={known_partition(H200_LLAMA)}",
        "claims": "/ui/claims?paused=true",
        "collection": "/ui/collection",
        "collected": "/ui/collection?done=collect",
        "change": f"/ui/change/revisions/{one.published['llama'].revision}/quarantine",
        "change-token": f"/ui/change/tokens/{one.tokens['hostile']}/expire",
        "usage": "/ui/usage",
        "misses": "/ui/misses",
        "tokens": "/ui/tokens?revoked=true",
        "signers": "/ui/signers",
        "quarantine": "/ui/quarantine",
        "audit": "/ui/audit",
        "not-found": "/ui/nowhere",
    }


def log_in(page: Any, one: Site, what: str = "admin") -> None:
    page.goto(f"{one.url}/ui/login")
    page.fill("#token", one.secrets[what])
    page.click("main button")
    page.wait_for_url(f"{one.url}/ui**")


def open_page(chromium: Any, width: int, scheme: str = "light") -> Any:
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("dialog", lambda dialog: page.complaints.append(f"dialog: {dialog.message}"))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    return page


def serious_findings(page: Any) -> list[str]:
    """Return what axe finds that keeps somebody from using the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


CUT = """[...document.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.querySelector("caption").textContent)"""
OUTSIDE = """[...document.querySelectorAll("svg text")].filter(one => {
    const box = one.getBBox(), all = one.ownerSVGElement.viewBox.baseVal;
    return box.x < 0 || box.x + box.width > all.width + 0.5 || box.y + box.height > all.height + 1;
}).map(one => one.textContent)"""


def test_a_wide_window_shows_whole_tables_and_a_small_one_whole_labels(
    served: Site, tmp_path: Path, chromium: Any
) -> None:
    """Also where the only bar of a plot is today's, which has its date."""
    with site(tmp_path, missing) as other:
        for one, looked_at in ((served, pages(served)), (other, {"misses": "/ui/misses"})):
            for width, found in ((1440, CUT), (390, OUTSIDE)):
                page = open_page(chromium, width)
                log_in(page, one)
                for name, path in looked_at.items():
                    page.goto(one.url + path)
                    assert page.evaluate(found) == [], (width, name)
                    shoot(page, f"{name}-{width}-whole")
                if one is served:
                    page.goto(f"{one.url}/ui")
                    today = time.strftime("%m-%d", time.gmtime(one.inside.clock.now))
                    assert page.locator("svg text", has_text=today).count() == 2
                page.context.close()


def missing(one: Site) -> None:
    """Report starts that compiled, under a long name and on a GPU with a long one."""
    for what, role in (("admin", "admin"), ("reporter", "report")):
        one.token(what, role, "*")
    name = "vision/segmentation-large-finetuned"
    one.publish("long", name=name, target="decode/bfloat16/max-autotune", fingerprint=A100_LLAMA)
    one.start("long", "a", "inert", why="inductor: triton.cudagraphs is true here, false in the entry")


def width_of_content(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_page_fits_its_window_and_axe_finds_nothing_serious(
    served: Site, chromium: Any, width: int, scheme: str
) -> None:
    page = open_page(chromium, width, scheme)
    page.goto(f"{served.url}/ui/login")
    assert serious_findings(page) == []
    shoot(page, f"login-{width}-{scheme}")
    log_in(page, served)
    for name, path in pages(served).items():
        page.goto(served.url + path)
        assert width_of_content(page) <= width, name
        assert serious_findings(page) == [], name
        shoot(page, f"{name}-{width}-{scheme}")
    # A browser notes the one answer that is an error; nothing else may be noted: no script that the policy
    # stopped, no file that is missing.
    assert [text for text in page.complaints if "404" not in text] == []
    page.context.close()


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


def test_hostile_texts_are_shown_and_run_nothing(served: Site, chromium: Any) -> None:
    page = open_page(chromium, 1440)
    log_in(page, served)
    for name in ("entry-hostile", "entry-strange", "quarantine", "signers", "audit", "overview"):
        page.goto(served.url + pages(served)[name])
        assert HOSTILE in page.inner_text("body"), name
        assert page.locator("main script, main img").count() == 0
    page.goto(f"{served.url}/ui/tokens")
    assert HOSTILE in page.inner_text("main")
    assert page.complaints == []
    page.context.close()


def test_the_policy_stops_a_script_that_got_into_a_page(served: Site, chromium: Any) -> None:
    page = open_page(chromium, 1440)
    log_in(page, served)
    page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.ran = true";
        document.body.append(script); }"""
    )
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in page.complaints)
    page.context.close()


def test_the_keyboard_alone_logs_in_searches_and_logs_out(served: Site, chromium: Any) -> None:
    page = open_page(chromium, 1440)
    page.goto(f"{served.url}/ui/names")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type(served.secrets["reader"])
    page.keyboard.press("Enter")
    page.wait_for_selector("#q")
    tab_to(page, "search")
    page.keyboard.type("llama")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=llama")
    tab_to(page, "team/llm/llama-8b")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/names/team/llm/llama-8b")
    tab_to(page, "Log out")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/login")
    page.goto(f"{served.url}/ui/names")
    assert page.locator("#token").count() == 1
    page.context.close()


def test_the_keyboard_alone_quarantines_and_releases_an_entry(tmp_path: Path, chromium: Any) -> None:
    with site(tmp_path) as one:
        page = open_page(chromium, 360)
        log_in(page, one)
        page.goto(f"{one.url}/ui/entries/{one.published['llama'].manifest.entry}")
        for link, reason, said in (
            ("Quarantine…", "it is wrong", "The revision is in quarantine."),
            ("Release…", "", "The revision is offered again."),
        ):
            tab_to(page, link)
            page.keyboard.press("Enter")
            page.wait_for_url("**/ui/change/**")
            if reason:
                page.focus("#why")
                page.keyboard.type(reason)
            tab_to(page, page.inner_text("main button"))
            page.keyboard.press("Enter")
            page.wait_for_selector("p.done")
            assert said in page.inner_text("main")
        page.go_back()
        page.reload()
        assert page.locator("p.done").count() <= 1
        assert page.complaints == []
        page.context.close()


def test_the_page_of_claims_asks_for_itself_again(served: Site, chromium: Any) -> None:
    page = open_page(chromium, 1440)
    log_in(page, served)
    loads: list[str] = []
    page.on("load", lambda loaded: loads.append(loaded.url))
    page.goto(f"{served.url}/ui/claims")
    page.wait_for_timeout(6500)
    assert len(loads) == 2 and page.complaints == []
    page.click("text=let it stand still")
    page.wait_for_timeout(6500)
    assert len(loads) == 3
    page.context.close()


def focused(page: Any) -> str:
    return str(
        page.evaluate(
            "document.activeElement.type === 'search' ? 'search' : document.activeElement.innerText"
        )
    )


def tab_to(page: Any, what: str) -> None:
    """Press the tabulator until the element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page).strip() == what:
            return
    raise AssertionError(f"the keyboard does not reach {what}")


def test_a_link_from_another_site_needs_one_more_click_and_no_second_login(
    served: Site, chromium: Any
) -> None:
    """The session's cookie does not come with a request from elsewhere; the page offers to go on."""
    page = open_page(chromium, 1440)
    log_in(page, served)
    page.route(
        "http://elsewhere.test/",
        lambda route: route.fulfill(
            content_type="text/html", body=f'<a id="a" href="{served.url}/ui/names">to the names</a>'
        ),
    )
    page.goto("http://elsewhere.test/")
    page.click("#a")
    page.wait_for_selector("#token")
    page.click("text=Go on to the page")
    page.wait_for_selector("#q")
    page.context.close()


def test_a_person_signs_in_at_the_provider_and_confirms_a_change(tmp_path: Path, chromium: Any) -> None:
    """By keyboard alone, over the provider's own page and back, at 360 pixels."""
    with site(tmp_path) as one, running_provider(one.inside.clock) as provider:
        let_people_in(one, provider)
        page = open_page(chromium, 360)
        page.goto(f"{one.url}/ui/entries/{one.published['llama'].manifest.entry}")
        assert serious_findings(page) == [] and width_of_content(page) <= 360
        shoot(page, "login-provider-360-light")
        tab_to(page, f"Log in at {provider.issuer.url.removeprefix('http://')}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{provider.issuer.url}/authorize**")
        tab_to(page, "cleo")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=As what, Cleo?")
        assert serious_findings(page) == [] and width_of_content(page) <= 360
        shoot(page, "choice-360-light")
        tab_to(page, "admin in team")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{provider.issuer.url}/authorize**")
        page.click("text=cleo")
        # The session's cookie comes with the first page after the one that the provider led to.
        page.wait_for_url("**/ui/entries/**")
        assert page.locator(".session .who").count() == 1
        tab_to(page, "Pin…")
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/change/**")
        tab_to(page, page.inner_text("main button"))
        page.keyboard.press("Enter")
        page.wait_for_selector("p.done")
        page.goto(f"{one.url}/ui/audit")
        text = page.inner_text("main")
        assert "revision.pin" in text and f"oidc:{provider.issuer.url} cleo" in text
        assert page.evaluate("document.cookie") == ""
        # The code is in no address that the browser goes back to.
        page.go_back()
        assert "code=" not in page.url
        # The first page was one of nobody yet.
        assert [text for text in page.complaints if "401" not in text] == []
        page.context.close()


MARK_ALL = """() => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    const kinds = "a[href], button, input:not([type=hidden]), summary, [tabindex='0']";
    const all = document.querySelectorAll(kinds);
    const shown = [...all].filter((one) => one.getClientRects().length);
    shown.forEach((one, number) => { one.dataset.number = number; });
    return shown.map((one) => one.outerHTML.slice(0, 120));
}"""
"""Opens what is folded, numbers what a mouse can use on a page, and returns it."""
WHERE = """() => {
    const one = document.activeElement, place = one.getBoundingClientRect();
    const seen = place.right > 0 && place.left < innerWidth && place.bottom > 0 && place.top < innerHeight;
    return [one.dataset.number ?? "", seen];
}"""
"""Returns the number of the element with the focus, and whether a part of it is in the window."""


def test_the_keyboard_alone_reaches_everything_in_a_narrow_window(served: Site, chromium: Any) -> None:
    page = open_page(chromium, 360)
    log_in(page, served)
    for name, path in pages(served).items():
        page.goto(served.url + path)
        there = page.evaluate(MARK_ALL)
        reached = set()
        for _ in range(len(there) + 2):
            page.keyboard.press("Tab")
            number, seen = page.evaluate(WHERE)
            if number:
                assert seen, (name, there[int(number)])
                reached.add(int(number))
        assert [html for number, html in enumerate(there) if number not in reached] == [], name
    page.context.close()
