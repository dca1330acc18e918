"""Test that `explain` shows the outcomes of starts, and says of an entry that is withheld here that it does
not fit."""

from __future__ import annotations

from dataclasses import replace

from cachesvc_client.console.tables import aligned, shortened
from cachesvc_client.queries.explain import judge, not_installed, render
from cachesvc_client.wire.compare import inert_difference
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Tag, Target
from cachesvc_client.wire.partitions import environment
from cachesvc_client.wire.requests.protocol import EntrySummary, EnvironmentUse, Rejected, ResolveAnswer

HERE = {"torch": "2.13", "python_abi": "cp311", "platform": "linux-x86_64", "libc": "2.36", "gpu": "H200"}
SCOPES = ("gpu",)


def row(*uses: EnvironmentUse) -> EntrySummary:
    revision = Digest.of(b"revision")
    return EntrySummary(
        Digest.of(b"entry"),
        Target("bert"),
        Tag("latest"),
        revision,
        1,
        10,
        1,
        1,
        HERE,
        SCOPES,
        usefulness=uses,
    )


def use(fingerprint: dict, **more) -> EnvironmentUse:
    facts = {"gpu": str(fingerprint["gpu"]), "torch": "2.13"}
    return EnvironmentUse(environment(fingerprint, HERE, SCOPES), facts, **more)


def test_counts_are_shown_by_environment_and_decide_nothing() -> None:
    there = use({**HERE, "gpu": "A100"}, inert=2, inert_hosts=2, spent=3.0, why="grad mode")
    answer = judge("team/x", HERE, [row(use(HERE, hit=12, partial=1, saved=140.25), there)])
    assert answer.fitting == 1
    lines = [" ".join(line.split()) for line in render(answer).splitlines()]
    assert "bert here 12 hit, 1 partial; 140.2 s saved, 0.0 s spent compiling" in lines
    expected = (
        "bert A100, 2.13 2 inert; 0.0 s saved, 3.0 s spent compiling; inert on 2 hosts since the last hit"
    )
    assert f"{expected} (grad mode)" in lines


def test_an_entry_that_the_registry_withholds_does_not_fit_and_has_a_fix() -> None:
    uses = row(use(HERE, inert=3, inert_hosts=3, quarantined=100, why="thread count"))
    assert judge("team/x", HERE, [uses]).fitting == 1, "the registry's answer decides, not its statistics"
    rejected = Rejected(uses.entry, uses.target, uses.tag, (inert_difference(uses.revision, "thread count"),))
    answer = ResolveAnswer((), (rejected,), uses.tag)
    explanation = judge("team/x", HERE, [uses], {}, not_installed(answer, [uses], {}))
    assert explanation.fitting == 0 and explanation.entries[0].verdict == "withheld"
    text = render(explanation)
    assert "usefulness: here inert on the hosts of this environment (thread count)" in text
    assert "usefulness: build it as the service runs it" in text
    assert "outcomes of starts" in text and "not offered there" in text


def test_without_any_report_no_outcomes_are_shown() -> None:
    assert "outcomes of starts" not in render(judge("team/x", HERE, [row()]))


def test_the_table_of_factors_fits_the_terminal():
    wide = {**HERE, "gpu": "NVIDIA H200 " * 8}
    explanation = judge("team/x", wide, [row()])
    narrow = render(explanation, 70).partition("factor by factor")[2]
    assert max(map(len, narrow.splitlines()[1:])) <= 70 and "values that end with … are cut" in narrow, narrow
    assert "NVIDIA H200 " * 8 in render(explanation), "a pipe gets the whole values"


def test_a_value_that_is_cut_says_so_and_the_first_column_stays():
    table = [("factor", "entry"), ("a-name-that-is-long-itself", "sha256:" + "ab" * 32)]
    rows, cut = shortened(table, 50)
    assert [len(line) <= 50 for line in aligned(rows).splitlines()] == [True, True] and cut == ["entry"]
    assert rows[1][0] == table[1][0] and rows[1][1].endswith("…")
    assert shortened(table, 200) == ([list(line) for line in table], [])
    assert len(shortened(table, 5)[0][1][1]) == 12


def test_what_is_withheld_comes_before_what_does_not_fit() -> None:
    """As in the registry's answer, whose first entry a report names."""
    fits = row(use(HERE, inert=3, inert_hosts=3, quarantined=100))
    other = replace(fits, entry=Digest.of(b"other"), fingerprint={**HERE, "gpu": "A100"})
    rejected = Rejected(fits.entry, fits.target, fits.tag, (inert_difference(fits.revision),))
    answer = ResolveAnswer((), (rejected,), fits.tag)
    explanation = judge("team/x", HERE, [other, fits], {}, not_installed(answer, [fits], {}))
    assert [one.verdict for one in explanation.entries] == ["withheld", "differs"]
