"""Test that neither a signing key, nor the program that signs, nor the login of the job reaches the code of a
model, with the variables of the example workflow and with a key of the job's own in its place."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cachesvc_client.bundle.seal import SigningKey
from tests.deploy.composite import as_runner, run_action

from .conftest import TINY, allow_main, command

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
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
"""


def publish_step() -> tuple[dict[str, str], dict[str, str]]:
    """Return what the workflow of the example gives the action: inputs and variables."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["publish"]
    [step] = [step for step in job["steps"] if "deploy/github/action@" in step.get("uses", "")]
    return step["with"], step["env"]


SIGNER = """\
import base64, os, sys
from cachesvc_client.bundle.seal import SigningKey
key = SigningKey.from_text(os.environ["SIGNER_TOKEN"])
if sys.argv[-1] == "public-key":
    print(key.public)
else:
    print(base64.b64encode(key.sign_message(sys.stdin.buffer.read())).decode())
"""
"""A program that signs with what the job's variable says, as a key service does with a token."""


def secret_of(size: int) -> str:
    """Return a secret that the model searches for: it begins as a key does."""
    return "ed25519-" + secrets.token_hex(64)[: size - len("ed25519-")]


def as_a_plain_user() -> list[str]:
    """Return the words that run a command without capabilities: root may read the memory of all processes
    (CAP_SYS_PTRACE)."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv, with which root gives up CAP_SYS_PTRACE")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.mark.compiles
@pytest.mark.skipif(sys.platform != "linux", reason="searches /proc")
@pytest.mark.parametrize("signs", ["the program of the example", "a key of the job"])
def test_a_model_finds_neither_the_signing_key_nor_the_token_of_the_job(registry, issuer, tmp_path, signs):
    user, folder = as_a_plain_user(), tmp_path
    key = Path(registry["CACHESVC_SIGNING_KEY"]).read_text().strip()
    issuer.request_secret = secret_of(len(key))
    pin = secret_of(len(key))
    searched = (key, issuer.request_secret, pin)
    digests = ",".join(hashlib.sha256(text.encode()).hexdigest() for text in searched)
    allow_main(registry, issuer)
    (folder / "warm.toml").write_text(
        SPEC.format(digest=digests, size=len(key), answer=folder / "found", tiny=TINY)
    )
    inputs, variables = publish_step()
    assert "signing-key" not in inputs and variables["SIGNER_TOKEN"] == "${{ steps.signer.outputs.token }}"
    if signs == "a key of the job":
        inputs = {**inputs, "signing-key": key}
        variables = {"CACHESVC_SIGNER": f"cmd:/bin/sign --pin {pin}"}  # the input decides
    else:
        (folder / "sign.py").write_text(SIGNER)
        variables = {"CACHESVC_SIGNER": f"cmd:{sys.executable} {folder}/sign.py {pin}", "SIGNER_TOKEN": key}
    (folder / "home").mkdir()
    environ = {
        **{name: registry[name] for name in ("CACHESVC_URL", "CACHESVC_TRUSTED_KEYS")},
        **issuer.github(),
        "HOME": str(folder / "home"),
        **variables,
        "TMPDIR": str(folder),
    }
    own = {"install": "none", "python": sys.executable}
    ran = run_action(
        WORKFLOW.parent / "action",
        {**inputs, **own, "spec": str(folder / "warm.toml"), "arguments": "--force"},
        as_runner(environ),
        folder,
        prefix=user,
    )
    assert ran.ok, ran.log
    assert ran.outputs["revision"].startswith("sha256:")
    assert key not in ran.log + ran.summary
    lines = [line.split() for line in (folder / "found").read_text().splitlines()]
    assert len(lines) >= 3 and all(int(searched) > 3 for searched, *_ in lines), "the model did not search"
    assert not any(places for _, *places in lines), lines


def test_a_missing_key_is_reported_before_anything_runs(plain_environment, tmp_path):
    (tmp_path / "warm.toml").write_text(SPEC.format(digest="", size=1, answer="", tiny=TINY))
    for text, words in (("", "is not set"), (str(SigningKey.generate().public), "this is a public key")):
        env = {**plain_environment, "SIGNING_KEY": text}
        arguments = command("warm", tmp_path / "warm.toml", "--signing-key-env", "SIGNING_KEY")
        result = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and words in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
