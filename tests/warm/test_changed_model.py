"""Test a model whose file changes while it is warmed: nothing of it is published."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey

from .conftest import command

pytestmark = pytest.mark.compiles
LAYERS = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) + 1
"""
MODELS = """\
import pathlib

import torch

here = pathlib.Path(__file__).parent
if (here / "seen").exists():  # the first process has ended, and somebody saves the file
    text = (here / "layers.py").read_text()
    (here / "layers.py").write_text(text.replace("gelu(x)", "silu(x)"))
(here / "seen").touch()

from layers import Model


def model():
    return Model(), (torch.ones(4, 4),)
"""
SPEC = """\
name = "team/moving"
[defaults]
device = "cpu"
runs = 1
paths = ["."]
[[target]]
id = "moving"
factory = "models:model"
"""


def test_a_model_file_that_changes_while_it_is_warmed_is_one_line(
    plain_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "warm.toml").write_text(SPEC)
    key = tmp_path / "key"
    key.write_text(SigningKey.generate().text)
    key.chmod(0o600)
    words = command("warm", tmp_path / "warm.toml", "--out", tmp_path / "bundles", "--json")
    env = {**plain_environment, "CACHESVC_SIGNING_KEY": str(key)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0, done.stderr
    [target] = json.loads(done.stdout)["targets"]
    assert target["status"] == "failed", target
    assert target["reasons"] == ["the model changed while it was warmed (compile): start warm again"]
    assert not list(tmp_path.glob("bundles/*"))
