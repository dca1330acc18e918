"""Test that the page of releases names everything that the code calls experimental, and nothing else."""

from __future__ import annotations

import re

from cachesvc_client.kinds import EXPERIMENTAL, OURS

from .markdown import DOCS, section

PAGE = DOCS / "reference" / "releases.md"


def test_what_is_experimental_is_named() -> None:
    rows = re.findall(r"^\| (?:kind )?`(.+?)` \|", section(PAGE, "Experimental"), re.MULTILINE)
    commands = (DOCS / "reference" / "commands.md").read_text()
    options = [
        f"cachesvc {name} {option}"
        for name, text in re.findall(r"^### ([\w -]+)$(.+?)(?=^### |\Z)", commands, re.MULTILINE | re.DOTALL)
        for option in re.findall(r"^\| `(--[\w-]+)[^|]*` \|[^|]*\bexperimental\b", text, re.MULTILINE)
    ]
    assert options, "an option's help says it"
    assert sorted(rows) == sorted([*EXPERIMENTAL, *options])
    assert set(EXPERIMENTAL) <= set(OURS)
