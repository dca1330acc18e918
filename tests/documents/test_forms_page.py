"""Test that the page of program forms says what the last runs found, and that no form had wrong outputs."""

from __future__ import annotations

import json

from tests.forms import page


def test_the_page_is_made_of_the_results_and_no_form_is_wrong() -> None:
    report = json.loads(page.RESULTS.read_text())
    assert page.PAGE.read_text() == page.page(report), "run make forms, or python -m tests.forms.page"
    for version, results in report.items():
        rows = results["forms"]
        assert [name for name, row in rows.items() if row["outcome"] == "wrong"] == [], version
        assert [name for name, row in rows.items() if row["outcome"] == "refused" and not row["why"]] == []
    assert max(len(results["forms"]) for results in report.values()) >= 60


def test_a_page_shows_each_version_and_the_reason_below_the_table() -> None:
    row = {"group": "calls", "form": "`f`", "outcome": "recorded", "why": "", "source": "abc"}
    newer = row | {"outcome": "refused", "why": "its code", "source": "abd"}
    of = {"date": "2026-11-28T13:00:00+00:00"}
    made = page.page(
        {"2.9.0": {**of, "forms": {"f": row}}, "2.13.0": {**of, "forms": {"g": row, "f": newer}}}
    )
    assert "- torch 2.13.0, 2026-11-28: 2 forms, 1 no trace, 1 traces, 0 does not run, 0 wrong" in made
    assert "\n  (source abc, abd)\n" in made
    assert "| form | torch 2.9.0 | torch 2.13.0 |" in made
    assert "| `f` | no trace | traces |\n\n| traces | because |\n|---|---|\n| `f` | `its code` |" in made
