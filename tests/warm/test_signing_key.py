"""The signing key does not reach the code of a model, with the key given as the example workflow gives it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cachesvc_client.bundle.seal import SigningKey

from .conftest import TINY, command

WORKFLOW = Path(__file__).parents[2] / "deploy/github/warm.yml"
SPEC = """\
name = "team/searched"
[[target]]
id = "tiny"
factory = "searching:searching"
args = {{digest = "{digest}", size = {size}, answer = "{answer}"}}
inputs = {{a = {{x = {{shape = [4, 8]}}}}}}
device = "cpu"
runs = 1
paths = ["{tiny}"]
[target.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "1"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
"""


def publish_step() -> dict:
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["publish"]
    [step] = [step for step in job["steps"] if "cachesvc warm" in step.get("run", "")]
    return step


def as_a_plain_user() -> list[str]:
    """Root may read the memory of all processes (CAP_SYS_PTRACE), so a test that runs as root gives its
    capabilities up."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv, with which root gives up CAP_SYS_PTRACE")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.mark.compiles
@pytest.mark.skipif(sys.platform != "linux", reason="searches /proc")
def test_a_model_does_not_find_the_signing_key(registry, tmp_path):
    user, place = as_a_plain_user(), tmp_path
    key = Path(registry["CACHESVC_SIGNING_KEY"]).read_text().strip()
    (place / "warm.toml").write_text(
        SPEC.format(
            digest=hashlib.sha256(key.encode()).hexdigest(), size=len(key), answer=place / "found", tiny=TINY
        )
    )
    step = publish_step()
    values = {
        "${{ secrets.CACHESVC_WRITE_TOKEN }}": registry["CACHESVC_TOKEN"],
        "${{ secrets.CACHESVC_SIGNING_KEY }}": key,
    }
    given = {
        name: values.get(text, text.replace("${{ runner.temp }}", str(place)))
        for name, text in step["env"].items()
    }
    kept = {name: registry[name] for name in ("CACHESVC_URL", "CACHESVC_TRUSTED_KEYS")}
    kept |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(place / "home")}
    (place / "home").mkdir()
    (place / "step.sh").write_text(step["run"])
    done = subprocess.run(
        [*user, "bash", "-e", str(place / "step.sh")],
        env={**kept, **given, "TMPDIR": str(place), "GITHUB_STEP_SUMMARY": str(place / "summary.md")},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "published" in done.stdout + done.stderr
    lines = [line.split() for line in (place / "found").read_text().splitlines()]
    assert len(lines) >= 3 and all(int(looked_at) > 3 for looked_at, *_ in lines), "it did not look"
    assert not any(found for _, *found in lines), lines


def test_a_key_that_is_not_there_is_told_before_anything_runs(plain_environment, tmp_path):
    (tmp_path / "warm.toml").write_text(SPEC.format(digest="", size=1, answer="", tiny=TINY))
    for text, words in (("", "is not set"), (str(SigningKey.generate().public), "this is a public key")):
        env = {**plain_environment, "SIGNING_KEY": text}
        asked = command("warm", tmp_path / "warm.toml", "--signing-key-env", "SIGNING_KEY")
        done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
