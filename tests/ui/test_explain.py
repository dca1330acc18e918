"""The page that explains an environment says what ``cachesvc explain`` says, and to whom it says it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cachesvc.registry.resolve import USED_STEP_SECONDS
from cachesvc.registry.upkeep import quarantine
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.queries.explain import Explanation, explain, read_facts
from cachesvc_client.wire.names import Name

from .site import HOSTILE, ROOT, Browser, Page, Site

LLAMA = "/ui/explain/team/llm/llama-8b"
NAME = Name.parse("team/llm/llama-8b")


def config(one: Site, what: str = "reader", **more: str) -> Config:
    secrets = {"CACHESVC_URL": one.url, "CACHESVC_TOKEN": one.secrets[what]}
    return Config.read({**secrets, "CACHESVC_TRUSTED_KEYS": one.inside.key.public, **more})


def explain_links(page: Page) -> list[str]:
    """Return the addresses of explanations of one environment, each once."""
    links = [one for one in page.links if one.startswith("/ui/explain/") and "environment=" in one]
    return list(dict.fromkeys(links))


def here_of(browser: Browser, page: Page, folder: Path) -> Path:
    """Save the environment's facts, as the page tells a reader to do."""
    [address] = [one for one in page.links if one.startswith("/ui/environments/")]
    answer = browser.get(address)
    assert answer.headers["content-disposition"] == 'attachment; filename="here.json"'
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    path = folder / "here.json"
    path.write_bytes(answer.content)
    return path


def expected_texts(explanation: Explanation, entry: str) -> list[str]:
    """Return what the command says about a name, and about one entry factor by factor."""
    [shown] = [one for one in explanation.entries if one.entry.entry == entry]
    texts = [f"{explanation.fitting} of {len(explanation.entries)}"]
    for one in explanation.entries:
        texts += [f"{one.verdict} {one.entry.target}", *map(str, one.reasons[:3])]
    for row in shown.known_factors:
        texts.append(f"{row.factor} {row.here} {row.entry} {row.verdict}")
    return texts + [one.fix for one in (*shown.differences, *shown.recorded) if one.fix]


def plain(text: str) -> str:
    return "".join(text.split())


def test_the_page_says_what_the_command_says_in_each_environment(own_site: Site, tmp_path: Path) -> None:
    """Entries that fit, that differ, that are withheld by reports, and that an operator withholds."""
    quarantine.withdraw(own_site.inside.registry, ROOT, own_site.published["old model"].revision, "wrong")
    browser = own_site.browser("reader")
    links = explain_links(browser.page("/ui/coverage/team/llm/llama-8b"))
    links += explain_links(browser.page(LLAMA))
    assert len(links) >= 3
    verdicts = set()
    for link in links:
        page = browser.page(link)
        here = read_facts(here_of(browser, page, tmp_path))
        explanation = explain(config(own_site), NAME, here=here)
        for judged in explanation.entries:
            verdicts.add(judged.verdict)
            of_entry = browser.page(f"{link.partition('&entry=')[0]}&entry={judged.entry.entry}")
            for text in expected_texts(explanation, judged.entry.entry):
                assert plain(text) in plain(of_entry.text), (link, text)
        shown = explanation.shown
        assert shown is not None and (
            "entry=" in link or f"{shown.entry.target} ({shown.verdict})" in page.text
        )
    assert verdicts == {"fits", "differs", "withheld"}


def test_pages_of_entries_of_what_went_cold_and_of_the_coverage_lead_there(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    decode = shared_site.published["decode"].manifest
    for path in ("/ui", f"/ui/entries/{decode.entry}", "/ui/coverage/team/llm/llama-8b", "/ui/quarantine"):
        links = explain_links(browser.page(path))
        assert links, path
        for link in links:
            page = browser.page(link)
            assert "Factor by factor" in page.text
    [cold] = explain_links(browser.page("/ui"))
    page = browser.page(cold)
    assert HOSTILE in page.text and "withheld there" in page.text and "NVIDIA H200" in page.text


def test_a_report_from_elsewhere_is_explained_with_all_of_its_facts(own_site: Site, tmp_path: Path) -> None:
    """A factor by which nobody decides differs from the builder's: only the report knows it."""
    built = own_site.published["bert"].manifest.fingerprint
    own_site.start(
        "bert", "a", "partial", fingerprint={**built, "cpu_model": "model 77"}, why="threads differ"
    )
    browser = own_site.browser("reader")
    page = browser.page("/ui/explain/team/bert")
    [link] = explain_links(page)
    facts = json.loads(here_of(browser, browser.page(link), tmp_path).read_bytes())
    assert facts["cpu_model"] == "model 77"
    assert "model 77" in browser.page(link).text


def test_a_start_of_another_factor_is_stored_once_an_hour(own_site: Site) -> None:
    built = own_site.published["bert"].manifest.fingerprint
    registry = own_site.inside.registry

    def model() -> object:
        [row] = _environments(own_site)
        with registry.index.read() as unit:
            return (unit.environments.get("team", row) or {})["cpu_model"]  # type: ignore[arg-type]

    own_site.start("bert", "a", "hit", fingerprint={**built, "cpu_model": "1"})
    own_site.start("bert", "a", "hit", fingerprint={**built, "cpu_model": "2"})
    assert model() == "1"
    own_site.inside.clock.now += 3601
    own_site.start("bert", "a", "hit", fingerprint={**built, "cpu_model": "3"})
    assert model() == "3"


def _environments(one: Site) -> list[str]:
    page = one.browser("reader").page("/ui/explain/team/bert")
    return [parse_qs(urlsplit(link).query)["environment"][0] for link in explain_links(page)]


def test_an_environment_is_explained_to_those_who_may_read_the_name(shared_site: Site) -> None:
    reader, other = shared_site.browser("reader"), shared_site.browser("other reader")
    [link, *_] = explain_links(reader.page(LLAMA))
    facts = link.replace("/ui/explain/", "/ui/environments/").partition("&entry")[0]
    for path in (LLAMA, link, facts):
        assert reader.get(path).status_code == 200
        assert other.get(path).status_code == 404
        assert shared_site.browser().get(path).status_code == 401
    lane = shared_site.browser("lane reader")
    assert lane.get(f"{link}&lane=pr-2").status_code == 403
    assert lane.get(link).status_code == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (f"environment=sha256:{'0' * 64}", 404),
        ("environment=nothing", 404),
        ("tag=v9", 404),
        ("lane=UPPER%20", 404),
        ("from=-1", 404),
    ],
)
def test_what_is_not_there_is_said(shared_site: Site, query: str, status: int) -> None:
    answer = shared_site.browser("reader").get(f"{LLAMA}?{query}")
    assert answer.status_code == status and "Not found" in Page(answer.text).text


def test_an_entry_of_another_name_is_not_shown(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    [link, *_] = explain_links(browser.page(LLAMA))
    other = shared_site.published["bert"].manifest.entry
    assert browser.get(f"{link.partition('&entry')[0]}&entry={other}").status_code == 404


def test_a_client_that_trusts_another_signer_is_the_one_thing_that_the_page_cannot_know(
    shared_site: Site, tmp_path: Path
) -> None:
    browser = shared_site.browser("reader")
    [link, *_] = explain_links(browser.page(LLAMA))
    page = browser.page(link)
    stranger = config(shared_site, CACHESVC_TRUSTED_KEYS=SigningKey.generate().public)
    explanation = explain(stranger, NAME, here=read_facts(here_of(browser, page, tmp_path)))
    assert {one.verdict for one in explanation.entries} & {"refused"}
    assert "Which signers a service trusts, only the service knows" in page.text


def test_explaining_is_no_use(own_site: Site) -> None:
    """Retention deletes what nobody used: an operator who looks is no service."""
    browser = own_site.browser("reader")

    before = own_site.last_used("llama")
    own_site.inside.clock.now += USED_STEP_SECONDS + 1
    for link in explain_links(browser.page(LLAMA)):
        browser.page(link)
    assert own_site.last_used("llama") == before
