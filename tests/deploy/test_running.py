"""Run what the chart, the compose file and the examples say, with real servers and without containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc.hot.redis import RedisHot
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import Unavailable
from tests.services.ceph import Gateway
from tests.services.process import absent, connects, free_port, until

from .charts import CHART, of_kind, render, values_of
from .composed import TOKEN, compose, env_file
from .running import environment, get, run, serving, variables


def test_the_processes_of_the_chart_run(
    tmp_path: Path, database: str, redis_url: str, gateway: Gateway, bucket_at_gateway: str
) -> None:
    """The hook, two replicas at once on the empty database, and the collection run in the order of Helm."""
    values = {
        **values_of("production"),
        "redis": {"existingSecret": "cachesvc-redis"},
        "bucket": {
            "name": bucket_at_gateway,
            "endpoint": gateway.endpoint,
            "prefix": "eu",
            "existingSecret": "cachesvc-bucket",
        },
    }
    manifests, _ = render(values)
    keys = {name: value for name, value in gateway.variables.items() if name != "AWS_DEFAULT_REGION"}
    secrets = {
        "cachesvc-database": {"url": database},
        "cachesvc-bucket": keys,
        "cachesvc-redis": {"url": redis_url},
        "cachesvc-first-token": {"token": TOKEN},
    }
    [migrate] = of_kind(manifests, "Job")["spec"]["template"]["spec"]["containers"]
    hook = variables(migrate, secrets)
    assert "The schema of 0.1.0" in run(migrate["args"], hook, tmp_path)
    assert "up to date" in run(migrate["args"], hook, tmp_path)  # Every upgrade without new steps does this.
    [registry] = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    env = variables(registry, secrets)
    with serving(registry["args"], env, tmp_path) as one, serving(registry["args"], env, tmp_path) as two:
        for url in (one, two):
            ready = get(url + registry["readinessProbe"]["httpGet"]["path"])
            assert ready["ready"] and ready["parts"] == {"index": "ok", "blobs": "ok", "hot": "ok"}
            assert get(url + registry["livenessProbe"]["httpGet"]["path"])
            with Remote(url, TOKEN) as remote:
                assert remote.whoami().role == "admin"
        gc = of_kind(manifests, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        assert "removed 0 revisions" in run(gc["args"], variables(gc, secrets), tmp_path)
    assert not (tmp_path / "cachesvc-data").exists()


def test_compose_asks_for_the_variables_of_the_example_only() -> None:
    filled = env_file()
    services = compose(filled)["services"]
    assert services["registry"]["deploy"]["replicas"] == 2
    for name in filled:
        less = {other: value for other, value in filled.items() if other != name}
        with pytest.raises(AssertionError, match=r"see \.env\.example"):
            compose(less)
    database = services["registry"]["environment"]["CACHESVC_SERVER_DATABASE"]
    assert database == "postgresql://cachesvc:0123abcd@postgres/cachesvc"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "0123abcd"
    assert services["postgres"]["environment"]["POSTGRES_USER"] == "cachesvc"


def test_the_processes_of_the_compose_file_run(
    tmp_path: Path, database: str, redis_url: str, gateway: Gateway
) -> None:
    """The bucket, the migration and two replicas run with the variables of the file, on this machine's
    servers."""
    services = compose(env_file())["services"]
    here = {
        "postgresql://cachesvc:0123abcd@postgres/cachesvc": database,
        "http://s3:7070": gateway.endpoint,
        "redis://:0123abcd@redis:6379/0": redis_url,
        "https://cachesvc-s3.example.com": gateway.endpoint,
    }
    env = {name: here.pop(value, value) for name, value in services["registry"]["environment"].items()}
    assert not here, "the file names other addresses"
    env |= {**gateway.variables, "CACHESVC_SERVER_BUCKET": "compose-packs"}
    bucket = services["bucket"]
    assert bucket["environment"] == services["registry"]["environment"]
    for _ in range(2):  # It may run again at every `up`.
        command = [sys.executable, *bucket["entrypoint"][1:]]
        subprocess.run(command, env=environment(tmp_path, env), check=True, timeout=60)
    run(services["migrate"]["command"], env, tmp_path)
    with serving(["serve"], env, tmp_path) as one, serving(["serve"], env, tmp_path) as two:
        for url in (one, two):
            assert get(f"{url}/readyz")["ready"]
            with Remote(url, TOKEN) as remote:
                assert remote.whoami().role == "admin"


def test_the_redis_of_compose_requires_the_password(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        absent("redis-server", "redis-server")
    services = compose(env_file())["services"]
    service, port = services["redis"], free_port()
    *shell, line = service["command"]
    command = [*shell, f"{line} --port {port} --bind 127.0.0.1"]
    running_python = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **service["environment"]})
    try:
        until(lambda: connects(port), running_python, tmp_path)
        redis_url_of_service = services["registry"]["environment"]["CACHESVC_SERVER_REDIS"]
        RedisHot(redis_url_of_service.replace("redis:6379", f"127.0.0.1:{port}")).check()
        with pytest.raises(Unavailable, match="user and password"):
            RedisHot(f"redis://127.0.0.1:{port}/0").check()
    finally:
        running_python.terminate()
        running_python.wait(20)


def test_a_builder_publishes_after_the_steps_of_the_notes(
    tmp_path: Path, database: str, gateway: Gateway, bucket_at_gateway: str
) -> None:
    """The commands of NOTES.txt lead from the chosen first token to a key that may publish."""
    env = {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_BUCKET": bucket_at_gateway,
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
        "CACHESVC_SERVER_FIRST_TOKEN": TOKEN,
    }
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    with serving(["serve"], env, tmp_path) as url:
        home = {"HOME": str(tmp_path)}
        run(["login", url, "--token", TOKEN], home, tmp_path)
        public = run(["keygen", "ci.key"], home, tmp_path).strip()
        assert SigningKey.load(tmp_path / "ci.key").public == public
        for line in re.findall(r"^  cachesvc (admin .*)$", notes, re.MULTILINE):
            words = line.replace("TEAM", "team").replace('"ed25519:…"', public).split()
            assert run(words, home, tmp_path)
        assert public in run(["admin", "signers", "list"], home, tmp_path)
        rows = run(["admin", "tokens", "list"], home, tmp_path)
        assert "write" in rows and "report" in rows and "first start" in rows
