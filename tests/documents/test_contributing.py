"""Test that the first change that CONTRIBUTING.md describes can still be made as it is written there."""

from __future__ import annotations

import re
import types

import pytest

from .markdown import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FIRST = TEXT[: TEXT.index("\n## The house")]


def test_the_first_change_makes_its_test_pass() -> None:
    [file] = re.findall(r"`(client/[\w/]+\.py)`", FIRST)
    [test] = re.findall(r"```python\n(.+?)```", FIRST, re.DOTALL)
    [(old, new)] = re.findall(r"Replace `(.+?)` by `(.+?)`", FIRST)
    source = (ROOT / file).read_text()
    assert source.count(old) == 1
    assert re.findall(r'git grep -n "(.+)"', FIRST)[0] in source
    with pytest.raises(ValueError, match="such as 12h or 90d"):
        run(source, test)
    run(source.replace(old, new), test)


def run(source: str, test: str) -> None:
    module = types.ModuleType("durations")
    exec(source, module.__dict__)
    exec(re.sub(r"^    ", "", test, flags=re.MULTILINE), module.__dict__)
    module.test_a_unit_may_be_a_capital()


def test_the_files_of_the_first_change_exist() -> None:
    paths = re.findall(r"`((?:client|tests)/[\w/]+\.py)`", FIRST)
    assert len(paths) == 2
    assert [path for path in paths if not (ROOT / path).is_file()] == []
