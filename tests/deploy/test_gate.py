"""Run the job of the example before a rollout, against a registry: what it stops, and what not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target
from tests.services.process import free_port

from .charts import ROOT
from .running import environment, run, serving, variables

ADMIN = "csv_" + "0123456789abcdef" * 3
H200 = {"gpu": "NVIDIA H200", "compute_capability": "9.0"}


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Iterator[dict[str, str]]:
    """Return the variables of the service, for a registry that accepts ``key``."""
    place = tmp_path_factory.mktemp("registry")
    env = {"CACHESVC_SERVER_FIRST_TOKEN": ADMIN, "CACHESVC_SERVER_DATA": str(place / "data")}
    with serving(["serve"], env, place) as url:
        admin = {"CACHESVC_URL": url, "CACHESVC_TOKEN": ADMIN, "CACHESVC_TRUSTED_KEYS": str(key.public)}
        run(["admin", "signers", "add", str(key.public), "-n", "team"], admin, place)
        yield admin


def publish(place: Path, key: SigningKey, env: dict[str, str], sequence: int, facts: dict[str, Any]) -> None:
    """Publish an entry of team/bert that was built in an environment."""
    with (place / "pack").open("wb") as out:
        contents = write_pack([SourceFile("inductor", "ab/cab.py", b"%d" % sequence)], out)
    signed_now = int(time.time() * 1000) + sequence
    statement = Statement(Namespace("team"), ShortName("bert"), Target("bert"), signed_now)
    manifest = Manifest(
        *(statement, contents.pack, contents.frames, contents.files, facts),
        Workload(script=contents.pack.digest),
        scopes=("gpu",),
    )
    write_bundle(place / "one.cachesvc", key.sign(manifest), place / "pack")
    run(["push", str(place / "one.cachesvc")], env, place)


def test_the_gate_stops_a_cold_rollout_and_nothing_else(
    tmp_path: Path, access: dict[str, str], key: SigningKey
) -> None:
    path = ROOT / "deploy" / "kubernetes" / "gate-before-rollout.yaml"
    job = yaml.safe_load(path.read_text())
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    pod = job["spec"]["template"]["spec"]
    [facts], [container] = pod["initContainers"], pod["containers"]
    assert container["image"] != facts["image"], "the image of the service has the client alone"
    assert container["command"][:2] == ["sh", "-c"] and "nvidia.com/gpu" not in str(container["resources"])
    env = {**access, **variables(container, {"cachesvc": {"token": access["CACHESVC_TOKEN"]}})}
    here = json.loads(run(["environment"], access, tmp_path))["fingerprint"]

    def gate(**changed: str) -> tuple[int, str]:
        own = environment(tmp_path, {**env, **changed})
        own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        for one in (facts, container):
            command = [word.replace("/facts/", f"{tmp_path}/") for word in one["command"]]
            done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert one is container or done.returncode == 0, done.stderr
        return done.returncode, done.stdout + done.stderr

    publish(tmp_path, key, access, 1, {**here, **H200, "torch": "2.1.0+cpu"})
    status, output = gate()
    assert status == 1 and "bert is cold on" in output and "torch: " in output, output
    publish(tmp_path, key, access, 2, {**here, **H200})
    status, output = gate()
    assert status == 0 and "1 of 1 are warm in the planned environments" in output, output
    publish(tmp_path, key, access, 3, {**here, **H200, "compute_capability": "9.9", "gpu": "NVIDIA B200"})
    assert gate()[0] == 0, "another GPU's entries are not of this plan"
    for changed in ({"CACHESVC_URL": f"http://127.0.0.1:{free_port()}"}, {"CACHESVC_TOKEN": "csv_wrong"}):
        status, output = gate(**changed)
        assert status == 0 and "error: " in output, output
