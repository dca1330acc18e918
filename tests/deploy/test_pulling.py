"""Run the lines of the examples that put bundles into a volume or an image, against a registry."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cachesvc_client.bundle.seal import SigningKey
from tests.services.process import free_port

from .charts import ROOT
from .running import environment, run, serving, variables

ADMIN = "csv_" + "0123456789abcdef" * 3
# The signer of the golden bundle, team/bert, in tests/bundle.
KEY = SigningKey.from_text("ed25519-private:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=")
EXAMPLES = ROOT / "deploy" / "kubernetes"
OLD = {"CACHESVC_MAX_AGE": "36500d"}
"""Lets the golden bundle count, which was signed years ago."""


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the variables of a service: those of access.yaml and its secret, for a registry that holds
    team/bert."""
    place = tmp_path_factory.mktemp("registry")
    env = {"CACHESVC_SERVER_FIRST_TOKEN": ADMIN, "CACHESVC_SERVER_DATA": str(place / "data")}
    with serving(["serve"], env, place) as url:
        admin = {"CACHESVC_URL": url, "CACHESVC_TOKEN": ADMIN, "CACHESVC_TRUSTED_KEYS": str(KEY.public)}
        run(["admin", "signers", "add", str(KEY.public), "-n", "team"], admin, place)
        run(["push", str(ROOT / "tests" / "golden" / "bundle-1.cachesvc")], admin, place)
        words = ["admin", "tokens", "create", "--label", "x", "--role", "report", "-n", "team", "--json"]
        token = json.loads(run(words, admin, place))["secret"]
        yield {**admin, **OLD, "CACHESVC_TOKEN": token}


def shell(line: str, env: dict[str, str], place: Path, **paths: Path) -> tuple[int, str]:
    """Run a line with its absolute paths in ``place``. Return the exit status and the output."""
    for name, path in paths.items():
        line = line.replace(f"/{name.replace('_', '/')}", str(path))
        env = {key: value.replace(f"/{name.replace('_', '/')}", str(path)) for key, value in env.items()}
    variables = environment(place, env)
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    result = subprocess.run(
        ["sh", "-c", line], env=variables, cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("there", [True, False], ids=["registry", "no-registry"])
def test_the_init_container_fills_the_volume_and_never_fails(
    tmp_path: Path, access: dict[str, str], there: bool
) -> None:
    spec = yaml.safe_load((EXAMPLES / "pull-in-init-container.yaml").read_text())["spec"]["template"]["spec"]
    [pull], [service] = spec["initContainers"], spec["containers"]
    assert pull["command"][:2] == ["sh", "-c"]
    env = {**access, **variables(pull, {"cachesvc": {"token": access["CACHESVC_TOKEN"]}})}
    if not there:
        env["CACHESVC_URL"] = f"http://127.0.0.1:{free_port()}"
    bundles, store = tmp_path / "bundles", tmp_path / "store"
    bundles.mkdir()
    status, output = shell(pull["command"][2], env, tmp_path, bundles=bundles, tmp_store=store)
    assert status == 0, output
    assert ("starts without bundles" in output) != there, output
    assert len(list(bundles.glob("*.cachesvc"))) == int(there)
    mounts = {mount["mountPath"] for mount in service["volumeMounts"]}
    assert variables(service, {})["CACHESVC_BUNDLE"] in mounts


def test_the_image_build_fails_without_bundles_and_then_holds_them(
    tmp_path: Path, access: dict[str, str]
) -> None:
    text = re.sub(r"\\\n\s*", " ", (EXAMPLES / "Dockerfile.bundles").read_text())
    [line] = re.findall(r"^RUN (?:--mount=\S+ +)*(.*)$", text, re.MULTILINE)
    secret = tmp_path / "token"
    secret.write_text(access["CACHESVC_TOKEN"])
    env = {name: access[name] for name in ("CACHESVC_URL", "CACHESVC_TRUSTED_KEYS")}
    assert set(
        re.findall(r"^ARG (CACHESVC_\w+)$", text.partition("FROM ${SERVICE}")[0], re.MULTILINE)
    ) == set(env)
    env |= OLD
    places = {
        "run_secrets_cachesvc-token": secret,
        "tmp_bundles": tmp_path / "bundles",
        "tmp_store": tmp_path / "store",
    }
    status, output = shell(line, env, tmp_path, **places)
    assert status == 0, output
    assert len(list((tmp_path / "bundles").glob("*.cachesvc"))) == 1
    secret.write_text("csv_wrong")
    assert shell(line, env, tmp_path, **places)[0] == 3
