"""Test a spec of another program: what it cannot build is one line, and what it makes under a name in use
takes nothing from the program whose name that is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import WARMED

from .conftest import command

pytestmark = pytest.mark.compiles
SPEC = """\
name = "team/shared-name"
[defaults]
device = "cpu"
runs = 1
[[target]]
id = "model"
factory = "{module}:model"
"""
PROGRAM = """\
import torch


class {name}(torch.nn.Module):
    def forward(self, x):
        return {body}


def model():
    return {name}(), (torch.ones(4, 4),)
"""
SERVE = """\
import torch
from ours import Ours

with torch.no_grad():
    print("answer", float(torch.compile(Ours())(torch.ones(4, 4)).sum()))
"""


def test_it_is_one_line_or_its_own_entry_and_the_program_of_the_name_still_hits(
    registry: dict[str, str], tmp_path: Path
) -> None:
    variables = {**registry, **WARMED, "OMP_NUM_THREADS": "1"}
    for module, body in (("ours", "torch.nn.functional.gelu(x) + 1"), ("theirs", "x.cos() * 2")):
        text = PROGRAM.format(name=module.title(), body=body)
        (tmp_path / f"{module}.py").write_text(text)
        (tmp_path / f"{module}.toml").write_text(SPEC.format(module=module))
    (tmp_path / "absent.toml").write_text(SPEC.format(module="of_another_checkout"))
    (tmp_path / "serve.py").write_text(SERVE)

    def run(words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        env = variables | more
        return subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    def start(store: str) -> str:
        words = command("run", "team/shared-name", "--", sys.executable, "serve.py")
        done = run(words, CACHESVC_LOG="info", CACHESVC_STORE=str(tmp_path / store))
        assert "answer" in done.stdout, done.stderr
        return done.stderr

    done = run(command("warm", "ours.toml"))
    assert done.returncode == 0, done.stdout + done.stderr
    failed = run(command("warm", "absent.toml", "--json"))
    [target] = json.loads(failed.stdout)["targets"]
    assert failed.returncode != 0 and target["status"] == "failed", target
    [reason] = target["reasons"]
    assert "cannot import of_another_checkout" in reason and "\n" not in reason
    assert re.search(r": hit.*: nothing compiled", start("before"))

    done = run(command("warm", "theirs.toml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r": hit.*: nothing compiled", start("after")), "its entry is found by its graphs' keys"
