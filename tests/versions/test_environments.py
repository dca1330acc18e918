"""Test the environments of other versions of torch, and the tool that makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .environments import python_of

TOOL = Path(__file__).parents[2] / "tools" / "torch_env.sh"


@pytest.mark.parametrize("version", ["2.7.1", "2.11.0"])
def test_an_environment_has_its_torch_and_this_checkout(version: str) -> None:
    program = (
        "import torch, cachesvc, cachesvc_client as client\n"
        "print(torch.__version__, client.__file__, cachesvc.__file__)"
    )
    result = subprocess.run(
        [python_of(version), "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    torch_version, client, server = result.stdout.split()
    assert torch_version.partition("+")[0] == version
    for path in (client, server):
        assert Path(path).is_relative_to(TOOL.parents[1])


WRONG = (["2.7.1"], "usage: "), (["newest", "/nowhere"], "'newest' is no version of torch")


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_wrong_arguments_are_reported_in_one_line(arguments: list[str], says: str) -> None:
    result = subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert says in line
