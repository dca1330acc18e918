"""Test how a report shows itself in a terminal and in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.outcome.judge import Compared, Report, RevisionUse

DIGEST = "sha256:" + "0" * 64


def use(target: str, used: int) -> RevisionUse:
    return RevisionUse("team/x:latest", target, DIGEST, 10, 5000, used, "hit" if used else "unused", 2.5)


FACTS = Compared(facts={"cpu_flags": ["avx"] * 60})
HIT = Report("hit", (), Observation(), (use("bert", 8),), saved=12.34, compared=FACTS)
LONG = Report(
    "partial",
    ("shapes: here 1x32, entry 1x64: warm these shapes too", *(f"<script>{n}" * 200 for n in range(9))),
    Observation(compilations=2, torch=TorchWork(counters={f"counter.{n}": n for n in range(99)})),
    tuple(use(f"target{n}", n) for n in range(9)),
)


def test_a_hit_is_two_lines() -> None:
    assert repr(HIT).splitlines() == [
        "<cachesvc report> hit: 0 compilations, 0 tuning runs, 8 artifacts of 1 revision used, 12.3 s saved",
        "  team/x:latest bert: hit, 8 artifacts used of 10 files, 2.5 s saved",
    ]


def test_a_long_report_is_a_few_lines_and_says_what_it_leaves_out() -> None:
    lines = repr(LONG).splitlines()
    assert len(lines) == 1 + 6 + 6 and all(len(line) < 320 for line in lines), lines
    assert lines[1] == "  why: shapes: here 1x32, entry 1x64: warm these shapes too"
    assert lines[6] == "  why: and 5 more, see .reasons"
    assert lines[7].startswith("  team/x:latest target8: hit, 8 artifacts"), "the most used first"
    assert lines[12] == "  and: 4 more, see .revisions"


def test_html_has_the_same_and_nothing_of_others_is_markup() -> None:
    tags: list[str] = []
    words: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            del attrs
            tags.append(tag)

        def handle_data(self, data: str) -> None:
            words.append(data)

    parser = Parser()
    parser.feed(LONG._repr_html_())
    assert set(tags) == {"div", "b", "ul", "li", "table", "tr", "td"}
    shown = " ".join(words)
    assert "partial" in shown and "2 compilations" in shown and "warm these shapes too" in shown
    assert "<script>0" in shown and "target8" in shown


def test_control_characters_of_others_reach_no_terminal() -> None:
    report = Report("miss", ("\x1b[31mred\nline",), Observation(compilations=1))
    assert "\x1b" not in repr(report) and len(repr(report).splitlines()) == 2
