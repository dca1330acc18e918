"""What each page shows, to whom, and in what form."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path

import httpx
import pytest
from registry_inside import ROOT
from registry_making import FINGERPRINT, make

from benchmarks.serving import serving
from cachesvc.queries.coverage import cover
from cachesvc.queries.planned import Plan
from cachesvc.registry import names, reports
from cachesvc.registry.resolve import USED_STEP_SECONDS
from cachesvc.registry.trust import signers
from cachesvc.schema.access import SignerRecord
from cachesvc.ui.paging import ROWS
from cachesvc.ui.text import FILTERS, ago_text, count_text, environment_text, seconds_text, value_text
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.wire.names import Name, Namespace, ShortName
from cachesvc_client.wire.partitions import known_partition
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest

from .site import HOSTILE, START, Browser, Page, Site

ADMIN_PAGES = (
    "/ui/usage",
    "/ui/claims",
    "/ui/collection",
    "/ui/tokens",
    "/ui/signers",
    "/ui/quarantine",
    "/ui/audit",
)
PAGES = (
    "/ui",
    "/ui/names",
    "/ui/misses",
    "/ui/names/team/bert",
    "/ui/coverage/team/llm/llama-8b",
    "/ui/explain/team/llm/llama-8b",
    *ADMIN_PAGES,
)
POLICY = {
    "default-src 'none'",
    "style-src 'self'",
    "img-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


def entry(one: Site, what: str) -> str:
    return f"/ui/entries/{one.published[what].manifest.entry}"


def all_pages(one: Site) -> list[str]:
    entries = (entry(one, what) for what in one.published)
    return [*PAGES, *entries, *changing_pages(one), "/ui/login", "/ui/nowhere"]


def changing_pages(one: Site) -> list[str]:
    """Return the pages that ask whether a change is meant, and one explanation."""
    revision = f"/ui/change/revisions/{one.published['llama'].revision}"
    token = f"/ui/change/tokens/{one.tokens['hostile']}"
    actions = ("quarantine", "release", "pin", "unpin", "delete-entry")
    manifest = one.published["llama"].manifest
    environment = known_partition(manifest.fingerprint)
    return [
        *(f"{revision}/{action}" for action in actions),
        f"{token}/revoke",
        f"{token}/expire",
        f"/ui/explain/team/llm/llama-8b?environment={environment}",
    ]


# What a page is made of


def test_every_answer_forbids_scripts_frames_and_storing(shared_site: Site) -> None:
    browser, stranger = shared_site.browser("admin"), shared_site.browser()
    answers = [browser.get(path) for path in all_pages(shared_site)]
    answers += [stranger.get("/ui"), stranger.http.post("/ui/login"), stranger.get("/ui/")]
    answers.append(shared_site.browser().log_in(shared_site.secrets["reader"]))
    assert {answer.status_code for answer in answers} == {200, 303, 401, 403, 404}
    for answer in answers:
        headers = answer.headers
        assert {part.strip() for part in headers["content-security-policy"].split(";")} == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        if answer.status_code != 303:
            assert headers["content-type"] == "text/html; charset=utf-8"


def test_no_page_has_a_script_a_style_of_its_own_or_something_from_elsewhere(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    for path in all_pages(shared_site):
        page = Page(browser.get(path).text)
        tags = {tag for tag, _ in page.elements}
        assert not tags & {"script", "style", "iframe", "object", "embed", "img", "base"}
        for _, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            for name in ("href", "src", "action"):
                assert re.match(r"[/#]", attributes.get(name, "/")), attributes
                assert not attributes.get(name, "").startswith("//")


def test_the_files_of_the_pages_are_there_and_kept(shared_site: Site) -> None:
    browser = shared_site.browser()
    page = Page(browser.get("/ui/login").text)
    for link in page.all("link"):
        answer = browser.get(link["href"])
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert browser.get("/ui/static/..%2fpage.py").status_code == 404
    assert browser.get("/ui/static/page.py").status_code == 404


def test_every_page_has_a_language_one_heading_a_main_part_and_a_way_to_skip_to_it(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    titles = set()
    for path in all_pages(shared_site):
        text = browser.get(path).text
        page = Page(text)
        assert page.all("html") == [{"lang": "en"}]
        assert len(page.all("h1")) == len(page.all("main")) == 1
        assert page.links[0] == "#main" and page.all("main")[0]["id"] == "main"
        titles.add(re.findall(r"<title>(.*?)</title>", text)[0])
    assert len(titles) >= len(PAGES)


def test_every_table_has_a_caption_and_headings_with_a_scope_and_every_field_a_label(
    shared_site: Site,
) -> None:
    browser = shared_site.browser("admin")
    tables = 0
    for path in all_pages(shared_site):
        page = Page(browser.get(path).text)
        tables += len(page.all("table"))
        assert len(page.all("caption")) == len(page.all("table"))
        assert all(heading.get("scope") in ("row", "col") for heading in page.all("th"))
        labels = {label["for"] for label in page.all("label")}
        fields = {one["id"] for one in page.all("input") if one.get("type") != "hidden"}
        assert labels == fields
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        captions = {caption["id"] for caption in page.all("caption")}
        regions = [div for div in page.all("div") if div.get("role") == "region"]
        assert {div["aria-labelledby"] for div in regions} == captions
        assert all(div["tabindex"] == "0" for div in regions)
    assert tables > 20


def test_texts_of_others_stay_texts(shared_site: Site) -> None:
    """Labels, reasons, facts and notes hold what ends attributes and begins scripts."""
    browser = shared_site.browser("admin")
    bert = shared_site.published["bert"]
    places = {
        "/ui": 1,
        "/ui/tokens": 1,
        "/ui/signers": 1,
        "/ui/quarantine": 2,
        "/ui/audit": 3,
        "/ui/coverage/team/llm/llama-8b": 1,
        "/ui/names/team/strange": 1,
        entry(shared_site, "strange"): 2,
        entry(shared_site, "decode"): 1,
        entry(shared_site, "tagged"): 1,
        f"{entry(shared_site, 'bert')}?revision={bert.revision}": 1,
    }
    for path, times in places.items():
        assert browser.page(path).text.count(HOSTILE) >= times, path
    hostile = shared_site.browser("hostile")
    assert HOSTILE in hostile.page("/ui/names").text
    for field in ("q", "action", "subject"):
        path = "/ui/names" if field == "q" else "/ui/audit"
        answer = browser.get(path, params={field: HOSTILE})
        values = [one["value"] for one in Page(answer.text).all("input") if one.get("name") == field]
        assert values == [HOSTILE]
    for path in (
        f"/ui/{HOSTILE}",
        f"/ui/names/{HOSTILE}/x",
        f"/ui/entries/{HOSTILE}",
        f"/ui/login?next={HOSTILE}",
    ):
        Page(browser.get(path).text)


# Who sees what


def test_a_reader_sees_the_names_of_its_namespace_and_no_page_of_administrators(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    answer = browser.get("/ui")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/names")
    page = browser.page("/ui/names")
    assert "team/bert" in page.text and "team/hidden" in page.text and "other/secret" not in page.text
    assert not {"/ui/tokens", "/ui/audit"} & set(page.links)
    for path in ADMIN_PAGES:
        answer = browser.get(path)
        assert answer.status_code == 403
        assert "Not allowed" in Page(answer.text).text and HOSTILE not in Page(answer.text).text


def test_what_a_token_may_not_read_is_not_there(shared_site: Site) -> None:
    """A page of another namespace, or of another lane, is the page of something that does not exist."""
    team, lane, other = (shared_site.browser(one) for one in ("reader", "lane reader", "other reader"))
    hidden = {
        team: [entry(shared_site, "other"), "/ui/names/other/secret", "/ui/coverage/other/secret"],
        lane: [entry(shared_site, "lane 2"), "/ui/names/team/hidden", "/ui/coverage/team/hidden"],
        other: [entry(shared_site, "bert"), "/ui/names/team/bert", "/ui/coverage/team/bert"],
    }
    for browser, paths in hidden.items():
        for path in paths:
            answer = browser.get(path)
            missing = browser.get(
                re.sub(r"[0-9a-f]{64}", "0" * 64, path) if "entries" in path else f"{path}x"
            )
            assert answer.status_code == missing.status_code == 404, path
            assert shared_site.published["other"].revision not in answer.text
    revision = shared_site.published["lane 2"].revision
    assert lane.get(f"/ui/revisions/{revision}").status_code == 404
    assert team.get(f"/ui/revisions/{revision}").status_code == 303
    assert "hidden" not in lane.page("/ui/names").text
    assert "lane pr-1" in lane.page("/ui/names/team/bert").text


def test_an_administrator_of_one_namespace_sees_that_one(shared_site: Site) -> None:
    browser = shared_site.browser("team admin")
    everywhere, here = shared_site.browser("admin").page("/ui").text, browser.page("/ui").text
    assert "in 2 namespaces" in everywhere and "in 1 namespace" in here
    assert "secret" in shared_site.browser("admin").page("/ui/names").text
    assert "secret" not in browser.page("/ui/names").text + here
    assert "other reader" not in browser.page("/ui/tokens").text


# What the pages say


def test_the_overview_has_the_sums_of_the_registry(shared_site: Site) -> None:
    page = shared_site.browser("admin").page("/ui")
    figures = page.text.partition("Overview")[2].partition("Names")[2].partition("Starts by outcome")[0]
    for words in ("Entries 9 10 revisions", "Starts in 30 days 13 1 unused", "Saved in 30 days 5.9 min"):
        assert words.replace(" ", "") in figures.replace(" ", ""), (words, figures)
    assert "75.0 %" in page.text and "9 hits of 12" in page.text
    assert "decode/bf16/default" in page.text.partition("Went cold today")[2].partition("Entries")[2]
    assert "withheld there" in page.text


def test_usage_ranks_entries(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    saved = browser.page("/ui/usage?by=dearest").text
    assert saved.index("prefill/bf16/default") < saved.index("decode/bf16/default")
    assert "bert" not in saved
    assert "175.8 KiB" in browser.page("/ui/usage").text
    assert "hidden/f32" in browser.page("/ui/usage?by=coldest").text
    assert browser.get("/ui/usage?by=nothing").status_code == 404


def test_nothing_is_cold_the_day_after_nor_once_it_is_used(own_site: Site) -> None:
    browser = own_site.browser("admin")
    assert "Nothing went cold" not in browser.page("/ui").text
    own_site.start("decode", "a", "hit", saved=1.0)
    assert "Nothing went cold today" in browser.page("/ui").text
    own_site.start("llama", "e", "inert", why="changed")
    assert "Nothing went cold" not in browser.page("/ui").text
    own_site.inside.clock.now += 86_400
    assert "Nothing went cold today" in own_site.browser("admin").page("/ui").text


def test_names_are_found_by_a_part_and_listed_by_pages(own_site: Site) -> None:
    for number in range(ROWS + 20):
        own_site.publish(f"many {number}", name=f"many/m{number:03}", content=b"many")
    browser = own_site.browser("reader")
    seen: list[str] = []
    page = browser.page("/ui/names?q=many%2F")
    while True:
        rows = [link for link in page.links if link.startswith("/ui/names/team/many") and "?" not in link]
        assert 0 < len(rows) <= ROWS
        seen += rows
        following = [one["href"] for one in page.all("a") if one.get("rel") == "next"]
        if not following:
            break
        page = browser.page(following[0])
        assert [one["value"] for one in page.all("input") if one.get("name") == "q"] == ["many/"]
    assert seen == [f"/ui/names/team/many/m{number:03}" for number in range(ROWS + 20)]
    assert "No name has" in browser.page("/ui/names?q=%25").text
    assert "No name has" in browser.page("/ui/names?q=m_00").text
    assert browser.get("/ui/names?cursor=nonsense").status_code == 422


def test_a_name_lists_tags_and_entries(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    page = browser.page("/ui/names/team/bert")
    assert "/ui/names/team/bert?tag=v2" in page.links and "quarantined" in page.text
    only = browser.page("/ui/names/team/bert?tag=latest")
    assert entry(shared_site, "tagged") in page.links and entry(shared_site, "tagged") not in only.links
    assert browser.get("/ui/names/team/nothing").status_code == 404
    assert browser.get("/ui/names/team/UPPER").status_code == 404


def test_a_name_shows_how_its_starts_went(own_site: Site) -> None:
    """Also those that were offered nothing, by environment, and none of another tag."""
    browser = own_site.browser("reader")
    text = browser.page("/ui/names/team/llm/llama-8b").text
    for words in ("Starts of latest13 1 unused", "Hit rate75.0 %9 hits of 12", "Saved5.9 min"):
        assert words.replace(" ", "") in text.replace(" ", ""), words
    there = {**FINGERPRINT, "torch": "2.15.0"}
    work = {"inductor": KindWork(3, 0, 90.0)}
    wanted = ColdStart((ColdName(Namespace("team"), ShortName("llm/llama-8b")),))
    with own_site.inside.registry.index.read() as unit:
        reporter = unit.tokens.get(own_site.tokens["reporter"])
    reports.report(own_site.inside.registry, reporter, ReportRequest("9" * 32, there, (), work, cold=wanted))
    page = browser.page("/ui/names/team/llm/llama-8b")
    for words in ("Starts of latest14 1 unused", "Hit rate69.2 %9 hits of 13", "1.5 min spent compiling"):
        assert words.replace(" ", "") in page.text.replace(" ", ""), words
    bars = [one for one in page.all("rect") if one["class"] in ("bar hit", "bar miss")]
    assert {one["class"] for one in bars} == {"bar hit", "bar miss"}
    assert bars[-1] == {"class": "bar miss", "x": "0.0", "y": "0", "width": "100.0", "height": "10"}
    tagged = browser.page("/ui/names/team/bert?tag=v2")
    assert "No service has reported a start with bert:v2." in tagged.text and not tagged.all("rect")


def test_an_entry_leads_with_what_decides_and_folds_its_files(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    text = browser.page(entry(shared_site, "llama")).text
    heads = ["Where it fits", "Starts with the head", "Revision", "Provenance", "Files", "Revisions"]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    deciding = text[places[0] : text.index("other facts of the builder")]
    assert "NVIDIA H200" in deciding and "torch" in deciding and "gpu_capability" not in deciding
    folds = browser.page(entry(shared_site, "llama")).all("details")
    assert len(folds) == 3 and not any("open" in one for one in folds)
    older = f"?revision={shared_site.published['bert'].revision}"
    folds = browser.page(entry(shared_site, "bert") + older).all("details")
    assert ["open" in one for one in folds] == [False, False, True], "its revisions"


def test_an_entry_shows_what_was_signed_measured_and_reported(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    llama, bert = shared_site.published["llama"], shared_site.published["bert"]
    page = browser.page(entry(shared_site, "llama"))
    manifest = llama.manifest
    for words in (
        *(llama.revision, manifest.entry, manifest.pack.digest, shared_site.inside.key.public),
        *("NVIDIA H200", "gpu_capability", "aa/caa.py", "steady call, eager", "43.9 s", "2.1 ms"),
        *("gpu code, host code", "Files 1 to 1 of 1", "4.0 min", "used"),
    ):
        assert words in page.text, words
    assert "vouches" not in page.text
    older = browser.page(f"{entry(shared_site, 'bert')}?revision={bert.revision}")
    assert "older revision" in older.text and "runner 7" in older.text
    head = browser.page(entry(shared_site, "bert"))
    assert "older revision" not in head.text and f"revision={bert.revision}" in "".join(head.links)
    answer = browser.get(f"/ui/revisions/{bert.revision}")
    assert answer.headers["location"] == f"{entry(shared_site, 'bert')}?revision={bert.revision}"
    other = f"{entry(shared_site, 'bert')}?revision={llama.revision}"
    assert browser.get(other).status_code == 404


def test_an_entry_s_files_and_revisions_have_pages(own_site: Site) -> None:
    head = own_site.published["llama"]
    for number in range(25):
        newer = make(
            own_site.inside.key,
            name="llm/llama-8b",
            target="prefill/bf16/default",
            fingerprint=head.manifest.fingerprint,
            scopes=("gpu", "host"),
            content=b"%d" % number,
        )
        own_site.inside.publish(newer, head=head.revision)
        head = newer
    browser = own_site.browser("reader")
    path = entry(own_site, "llama")
    first, second = browser.page(path), browser.page(f"{path}?revisions=20")
    shown = [{link for link in page.links if "?revision=" in link} for page in (first, second)]
    assert (len(shown[0]), len(shown[1])) == (20, 6) and not shown[0] & shown[1]
    assert f"{path}?revisions=20" in first.links
    assert browser.page(f"{path}?files=100").text.count("There is no file on this page") == 1
    assert browser.get(f"{path}?files=-1").status_code == 404


def test_a_revision_that_does_not_verify_is_shown_as_such(own_site: Site, tmp_path: Path) -> None:
    """The index is not trusted: somebody has changed a byte of what was signed."""
    with sqlite3.connect(tmp_path / "index.sqlite3") as database:
        row = database.execute("SELECT envelope FROM revisions LIMIT 1").fetchone()
        assert b'"payload":"e' in row[0]
        rows = "SELECT revision, envelope FROM revisions"
        for revision, envelope in database.execute(rows).fetchall():
            changed = envelope.replace(b'"payload":"e', b'"payload":"f')
            database.execute("UPDATE revisions SET envelope = ? WHERE revision = ?", (changed, revision))
    page = own_site.browser("reader").page(entry(own_site, "llama"))
    assert "does not verify" in page.text and "aa/caa.py" not in page.text


def test_the_coverage_grid_is_that_of_the_command(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    page = browser.page("/ui/coverage/team/llm/llama-8b")
    shown = [
        one["class"].partition(" ")[2]
        for tag, one in page.elements
        if tag in ("a", "span") and one.get("class", "").startswith("state ")
    ]
    config = Config.read({"CACHESVC_URL": shared_site.url, "CACHESVC_TOKEN": shared_site.secrets["reader"]})
    coverage = cover(config, Name.parse("team/llm/llama-8b"))
    states = [cell.state for cell in coverage.cells]
    assert sorted(states) == ["cold", "failed", "stale", "warm"]
    legend = ["warm", "stale", "cold", "failed"]
    assert shown == [*legend, *states, *(state for state in states if state != "warm")]
    for cell in coverage.cells:
        assert cell.why in page.text
    assert browser.get("/ui/coverage/team/llm/llama-8b?tag=v9").status_code == 404


def test_the_coverage_grid_says_which_hits_trace(own_site: Site) -> None:
    graph = f"fxgraph/xx/{'t'.ljust(51, 'x')}/{'a' * 52}"
    own_site.publish("graph", name="traced", target="graph/f32", path=graph, content=b"graph")
    own_site.publish("library", name="traced", target="library/f32", content=b"no graph")
    page = own_site.browser("reader").page("/ui/coverage/team/traced")
    states = re.findall(r"\bwarm, traces\b|\bwarm\b", page.text.partition("What a service finds")[2])
    assert states == ["warm, traces", "warm"]


def test_a_planned_grid_is_that_of_the_gate(shared_site: Site) -> None:
    browser = shared_site.browser("reader")
    page = browser.page("/ui/coverage/team/llm/llama-8b?torch=2.15.0%27%3Bx&gpu=NVIDIA+H200")
    config = Config.read({"CACHESVC_URL": shared_site.url, "CACHESVC_TOKEN": shared_site.secrets["reader"]})
    changes = {"torch": "2.15.0';x", "gpu": "NVIDIA H200"}
    name = Name.parse("team/llm/llama-8b")
    coverage = cover(config, name, plan=Plan(of_all=True, changes=changes), gate=True)
    shown = [
        one["class"].partition(" ")[2]
        for tag, one in page.elements
        if tag in ("a", "span") and one.get("class", "").startswith("state ")
    ]
    states = [cell.state for cell in coverage.cells]
    assert states and set(states) == {"cold"} and not coverage.passed
    assert shown == ["warm", "stale", "cold", "failed", "unknown", *states, *states]
    assert all(cell.why in page.text for cell in coverage.cells)
    words = page.text.partition("The same in a terminal:")[2].split("\n")[0]
    assert shlex.split(words)[:6] == [
        *("cachesvc", "coverage", "team/llm/llama-8b:latest", "--gate"),
        *("--torch=2.15.0';x", "--gpu=NVIDIA H200"),
    ]


def test_looking_at_the_coverage_is_no_use(own_site: Site) -> None:
    """Retention deletes what nobody used: an operator who looks is no service."""
    browser = own_site.browser("admin")

    before = own_site.last_used("llama")
    own_site.inside.clock.now += USED_STEP_SECONDS + 1
    browser.page("/ui/coverage/team/llm/llama-8b")
    assert own_site.last_used("llama") == before


def test_the_coverage_grid_has_pages(own_site: Site) -> None:
    for number in range(25):
        fingerprint = {**own_site.published["llama"].manifest.fingerprint, "gpu": f"GPU {number:02}"}
        facts = {"scopes": ("gpu",), "fingerprint": fingerprint, "content": b"wide"}
        own_site.publish(f"gpu {number}", name="wide", **facts)
    browser = own_site.browser("reader")
    first = browser.page("/ui/coverage/team/wide")
    second = browser.page("/ui/coverage/team/wide?from=20")
    assert "25 environments in all" in first.text
    assert "/ui/coverage/team/wide?from=20" in first.links
    assert "GPU 19" in first.text and "GPU 20" not in first.text.partition("Why not warm")[0]
    assert "GPU 24" in second.text and "20 of the" not in second.text


def test_tokens_signers_quarantine_and_audit_are_listed(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    used, with_revoked = browser.page("/ui/tokens"), browser.page("/ui/tokens?revoked=true")
    assert shared_site.tokens["revoked"] not in used.text
    assert shared_site.tokens["revoked"] in with_revoked.text and "revoked just now" not in used.text
    assert "this session" in used.text
    for secret in shared_site.secrets.values():
        assert secret not in used.text + with_revoked.text
    assert shared_site.inside.key.public in browser.page("/ui/signers").text
    quarantine = browser.page("/ui/quarantine")
    assert "everybody" in quarantine.text and "environment " in quarantine.text
    audit = browser.page("/ui/audit?action=quarantine")
    assert "quarantine.set" in audit.text and "token.create" not in audit.text


def test_long_lists_have_pages(own_site: Site) -> None:
    for number in range(ROWS):
        own_site.token(f"job {number}", "read", "team")
        signers.add_signer(
            own_site.inside.registry,
            ROOT,
            SignerRecord("team", SigningKey.generate().public, f"key {number}"),
        )
    browser = own_site.browser("admin")
    for path, kind in (("/ui/tokens", "from"), ("/ui/signers", "from"), ("/ui/audit", "cursor")):
        page = browser.page(path)
        following = [one["href"] for one in page.all("a") if one.get("rel") == "next"]
        assert len(following) == 1 and kind in following[0], path
        second = browser.page(following[0])
        assert path in second.links and second.text != page.text
    assert browser.get("/ui/audit?cursor=x").status_code == 422


# Whether there are pages


def test_errors_are_pages_that_say_what_is_wrong(shared_site: Site) -> None:
    browser = shared_site.browser("admin")
    for path in ("/ui/nowhere", "/ui/entries/x", f"/ui/entries/sha256:{'0' * 64}", "/ui/names/a/B"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "Not found" in Page(answer.text).text and "To the first page" in answer.text
    assert browser.get("/ui/").headers["location"] == "/ui"


def test_a_defect_is_a_page_that_names_the_request(
    shared_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(names, "find_names", broken)
    answer = shared_site.browser("reader").get("/ui/names")
    page = Page(answer.text)
    assert answer.status_code == 500 and "Something went wrong" in page.text
    assert answer.headers["x-request-id"] in page.text and "secret of the inside" not in answer.text
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_method_finds_no_page(shared_site: Site, method: str) -> None:
    for path in ("/ui/names", "/ui/login", "/ui/nowhere"):
        answer = shared_site.browser("admin").http.request(method, path)
        assert answer.status_code == 404 and "Not found" in Page(answer.text).text


def test_a_browser_at_the_root_is_sent_to_the_page_and_a_program_told_where_things_are(
    shared_site: Site,
) -> None:
    browser = shared_site.browser()
    answer = browser.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
    answer = browser.get("/", headers={"Accept": "*/*"})
    told = answer.json()
    assert (answer.status_code, told["service"], told["web_page"]) == (200, "cachesvc", "/ui")
    for path in (told["openapi"], told["health"]):
        assert browser.get(path).status_code == 200
    with serving(shared_site.inside.registry) as url:
        without = Browser(url).get("/", headers={"Accept": "text/html"})
        assert without.status_code == 200 and "web_page" not in without.json()


def test_a_registry_without_the_web_page_has_none(own_site: Site) -> None:
    with serving(own_site.inside.registry) as url:
        browser = Browser(url)
        for path in ("/ui", "/ui/login", "/ui/static/style.css"):
            answer = browser.get(path)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_the_openapi_document_names_no_page(shared_site: Site) -> None:
    document = httpx.get(f"{shared_site.url}/openapi.json", trust_env=False).json()
    assert not [path for path in document["paths"] if path.startswith("/ui")]


def test_numbers_read_as_people_say_them() -> None:
    assert [seconds_text(one) for one in (0, 0.0021, 12.5, 90, 7200, 86_400 * 3)] == (
        ["0.0 s", "2.1 ms", "12.5 s", "1.5 min", "2.0 h", "3.0 d"]
    )
    times = (None, START, START - 59, START - 3600, START - 86_400 * 3, START + 7200)
    assert [ago_text(one, START) for one in times] == (
        ["never", "just now", "just now", "1 h ago", "3 d ago", "in 2 h"]
    )
    assert count_text(1_234_567) == "1\u2009234\u2009567"
    assert environment_text({"torch": "2.13.0", "gpu": "NVIDIA H200"}) == "torch 2.13.0 · NVIDIA H200"
    key = SigningKey.generate().public
    assert FILTERS["key"](key) == key.short, "the form that commands show and take"
    assert value_text([]) == "none" and value_text([1] * 20).endswith("… (20 in all)")
