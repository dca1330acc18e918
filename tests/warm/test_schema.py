"""Test the JSON Schema of the warm spec: it accepts every spec of this repository, and refuses mistakes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import tomllib
from jsonschema import Draft7Validator

from cachesvc.warm.spec.schema import spec_schema
from tools import schema_page

from .conftest import command
from .test_spec import FULL, MALFORMED

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft7Validator(spec_schema())

UNSEEN = {
    "not toml": "is no TOML",
    "same id": "compares two targets",
    "missing script": "asks the disk",
    "cwd": "asks the disk",
    "tolerance nan": "JSON has no NaN",
    "date in args": "JSON has no dates",
    "nan in options": "JSON has no NaN",
    "huge shape": "multiplies",
    "tensor bounds": "compares two keys",
    "tensor dynamic": "compares two keys",
}
"""Mistakes that no schema sees, and why."""


def documented_specs() -> dict[str, str]:
    """Return the specs of the repository: its files, and the blocks of its pages."""
    files = [*ROOT.glob("examples/**/warm*.toml"), *ROOT.glob("deploy/**/*.toml")]
    specs = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)):
            if "[[target]]" in block and "name = " in block.partition("[[target]]")[0]:
                specs[f"{page.relative_to(ROOT)}, block {number}"] = block
    return specs


SPECS = {**documented_specs(), "every key": FULL}


def test_specs_are_found():
    assert {"deploy/demo/warm.toml", "examples/quickstart/warm.toml"} < set(SPECS)
    assert any(name.startswith("docs/warm.md") for name in SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_each_spec_of_the_repository_is_valid(name):
    VALIDATOR.validate(tomllib.loads(SPECS[name]))


@pytest.mark.parametrize("case", [case for case in MALFORMED if case not in UNSEEN])
def test_each_mistake_that_a_schema_can_see_is_refused(case):
    assert not VALIDATOR.is_valid(tomllib.loads(MALFORMED[case][0]))


@pytest.mark.parametrize("case", [case for case in UNSEEN if case != "not toml"])
def test_the_mistakes_that_it_cannot_see_are_these(case):
    assert VALIDATOR.is_valid(tomllib.loads(MALFORMED[case][0]))


def test_the_command_prints_what_the_documents_have(plain_environment):
    Draft7Validator.check_schema(spec_schema())
    printed = subprocess.run(
        command("warm", "--schema"), env=plain_environment, capture_output=True, text=True, timeout=60
    )
    assert (printed.returncode, printed.stderr) == (0, "")
    assert json.loads(printed.stdout) == spec_schema() == json.loads(schema_page.PAGE.read_text())
    assert schema_page.PAGE.read_text() == schema_page.render()
