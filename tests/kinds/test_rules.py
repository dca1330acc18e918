"""Test how merge files of Inductor's are joined; `kinds.testing` tests which files each kind takes."""

from __future__ import annotations

import json

import pytest

from cachesvc_client import kinds

TUNED = "wz/" + "0f" * 32 + ".best_config"
CHOICES = "cache/" + "ab" * 32


def _merge(kind: str, path: str, local: bytes, incoming: bytes) -> bytes:
    rule = kinds.RULES[kind].rule(path)
    assert rule is not None and rule.merge is not None
    return rule.merge(local, incoming)


def test_a_merge_is_the_union_and_local_entries_win() -> None:
    path = CHOICES
    mine = {"mm": {"a": {"1": 0.5}}, "conv": {"x": 1}}
    theirs = {"mm": {"a": {"1": 9.0, "2": 2.0}, "b": {}}, "bmm": {}}
    joined = json.loads(_merge("inductor", path, json.dumps(mine).encode(), json.dumps(theirs).encode()))
    assert joined == {"mm": {"a": {"1": 0.5, "2": 2.0}, "b": {}}, "conv": {"x": 1}, "bmm": {}}


@pytest.mark.parametrize("incoming", [b"", b"not json", b"[1]", b'"x"', b"\xff"])
def test_a_merge_with_a_file_of_another_form_keeps_the_local_file(incoming: bytes) -> None:
    local = b'{"XBLOCK": 32}'
    assert json.loads(_merge("inductor", TUNED, local, incoming)) == {"XBLOCK": 32}
    assert _merge("inductor", TUNED, b"half a fi", b"{}") == b"half a fi"
