"""Test that the checks before a commit are those of CI, and that everything that the front documents name
exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_hooks_run_what_ci_runs_and_need_no_network():
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    entries = {hook["entry"] for hook in local["hooks"]}
    [checks] = re.findall(r"for target in (.+); do", (ROOT / ".ci/run").read_text())
    assert entries == {f"make --no-print-directory {target}" for target in checks.split()}
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".ci/run"])
def test_make_targets_and_paths_in_the_front_documents_exist(name):
    text = (ROOT / name).read_text()
    named = re.findall(r"(?:^|`|print-directory )(?:make|step \"make) ([a-z -]+)", text, re.MULTILINE)
    targets = {target for words in named for target in words.split()}
    assert targets <= TARGETS, targets - TARGETS
    paths = re.findall(r"`((?:cachesvc|client|tests|requirements|docs|deploy|tools)/[\w./-]*)`", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
