"""Test functions that are made from PyTorch's source, in the place of an import of their module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import QUICK, clean_environment
from cachesvc_client.kinds.frames.from_source import Source
from tests.releases import TORCH

PROGRAM = Path(__file__).with_name("cuda_graphs_program.py")


@pytest.mark.compiles
@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
def test_cuda_graphs_get_the_functions_of_the_compiler_without_its_import() -> None:
    result = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**clean_environment(), **QUICK},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(result.stdout)
    assert not answer["imported"] and answer["differ"] == []
    assert {"cudagraphify", "static_input", "get_input_idxs_to_check"} <= {*answer["names"]}
    assert answer["in its place"] and "_late" in answer["late"]


MODULE = """\
import json as read
from os import path


def decorate(function):
    return function


@decorate
def decorated():
    pass


LIMIT = 3


def limited():
    return LIMIT


def joined(a, b="b", *, c="c"):
    return path.join(a, b, c), read.dumps(a), decorate(len)(a)
"""


def test_a_function_that_is_written_in_another_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "written.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    source = Source("written")
    assert source.joined("a") == ("a/b/c", '"a"', 1)
    assert source.joined.__code__.co_firstlineno == 21
    assert source.path.__name__ == "posixpath"
    for name in ("decorated", "limited", "absent", "LIMIT"):
        with pytest.raises(LookupError):
            getattr(source, name)
    with pytest.raises(LookupError):
        Source("no_such_module")
    assert "written" in sys.modules, "a function of the module itself imports it when it is called"
    monkeypatch.delitem(sys.modules, "written")
