"""Test that owners name places that exist, and that the forms of issues are forms that name real commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.words import unknown_words
from tests.documents.markdown import ROOT

GITHUB = ROOT / ".github"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))


def problems(form: Path) -> str:
    """Return what GitHub's schema says against a form; nothing if it is well-formed."""
    schema = "github-issue-config" if form.name == "config.yml" else "github-issue-forms"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(form)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_is_well_formed_and_names_what_exists(form: Path) -> None:
    assert problems(form) == ""
    assert [
        word for code in re.findall("`(.+?)`", form.read_text()) for word in unknown_words(code, code=True)
    ] == []


def test_a_form_without_a_label_is_refused(tmp_path: Path) -> None:
    form = tmp_path / "bug.yml"
    form.write_text(re.sub(r"\n +label: .*", "", (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text()))
    assert "label" in problems(form)


def test_owners_are_of_places_that_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert rows[0] == ["*", "@cachesvc/maintainers"]
    assert [place for place, *_ in rows[1:] if not (ROOT / place.strip("/")).is_dir()] == []
    assert [
        owners for _, *owners in rows if not re.fullmatch(r"(@cachesvc/[a-z]+ ?)+", " ".join(owners))
    ] == []


def test_the_templates_ask_for_what_doctor_prints() -> None:
    for name in ("bug", "false-hit"):
        assert "cachesvc doctor --json" in (GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text()
