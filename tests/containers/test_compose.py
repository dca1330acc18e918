"""Start the services of deploy/compose with the variables of the file, and use them over TLS."""

from __future__ import annotations

import contextlib
import graphlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.deploy.composed import TOKEN, compose, env_file
from tests.deploy.running import environment
from tests.services.ceph import Gateway
from tests.services.postgresql import postgresql_server
from tests.services.relay import Relay
from tests.warm.conftest import TINY

from .composition import COMPOSE, NO_EFFECT, NOT_RUN, STAND_INS, options, unknown_keys
from .conftest import Image
from .engine import BASE, Container, Engine

NETWORK = "compose"
DEBIAN = "localhost/debian-servers:1"
WARM = f"""\
name = "team/tiny"
[defaults]
device = "cpu"
runs = 2
paths = ["{TINY}"]
[defaults.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
[[target]]
id = "tiny"
factory = "models:tiny"
inputs = {{a = {{x = {{shape = [4, 8]}}}}}}
"""


@dataclass(frozen=True)
class Composition:
    """Is everything of the file that runs. ``hosts``: a file of names and addresses for clients."""

    engine: Engine
    services: dict[str, Any]
    registries: list[Container]
    proxy: Container
    hosts: Path
    root_certificate: Path
    host: str
    bucket_host: str

    def client(self, *words: object, place: Path, status: int = 0, **variables: str) -> str:
        """Run a program as a machine outside does: it knows the public names and the proxy's authority."""
        variables = {
            "CACHESVC_URL": f"https://{self.host}",
            "CACHESVC_TOKEN": TOKEN,
            "SSL_CERT_FILE": str(self.root_certificate),
            **variables,
        }
        with_names = f'mount --bind {self.hosts} /etc/hosts && exec "$@"'
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                with_names,
                "sh",
                *map(str, words),
            ],
            env={**environment(place, variables), "HOME": str(place)},
            cwd=place,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def command(self, *words: object, place: Path, status: int = 0, **variables: str) -> str:
        """Run a command of cachesvc on such a machine."""
        return self.client(sys.executable, "-m", "cachesvc", *words, place=place, status=status, **variables)


def servers_image(engine: Engine) -> None:
    """Make the image that stands in for those of Caddy and Redis, of Debian's packages."""
    container = engine.buildah("from", "--pull-never", BASE).strip()
    install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server caddy"
    engine.buildah("run", "--isolation", "chroot", "--network", "host", container, "--", "sh", "-c", install)
    # As the image of Caddy has it.
    engine.buildah("config", "--env", "XDG_DATA_HOME=/data", "--env", "XDG_CONFIG_HOME=/config", container)
    engine.buildah("commit", "-q", "--rm", container, DEBIAN)


def stand_in(name: str, service: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the image and the command of a service, with the command of the image that is not there."""
    image, _, _ = service["image"].partition(":")
    if image not in STAND_INS:
        return f"localhost/{service['image']}", list(service.get("command", []))
    default = ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
    return DEBIAN, list(service.get("command", default if name == "proxy" else []))


@pytest.fixture(scope="module")
def composition(
    server_image: Image, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Composition]:
    engine, place = server_image.engine, tmp_path_factory.mktemp("compose")
    servers_image(engine)
    filled = {**env_file(), "S3_ACCESS_KEY": gateway.access_key, "S3_SECRET_KEY": gateway.secret_key}
    services = compose(filled)["services"]
    engine.podman("network", "create", NETWORK)
    [network] = json.loads(engine.podman("network", "inspect", NETWORK))
    [subnet] = network["subnets"]
    addresses = [str(address) for address in list(ip_network(subnet["subnet"]).hosts())[:20]]
    bridge, proxy, redis, *replicas = addresses[0], *addresses[9:14]
    replicas = replicas[: services["registry"]["deploy"]["replicas"]]
    named = [("postgres", bridge), ("s3", bridge), ("redis", redis), ("proxy", proxy)]
    names = [w for n, a in [*named, *(("registry", r) for r in replicas)] for w in ("--add-host", f"{n}:{a}")]
    caddyfile = place / "Caddyfile"
    caddyfile.write_text(_with_own_authority((COMPOSE / "Caddyfile").read_text()))
    files = {"./Caddyfile": caddyfile}
    started: dict[str, list[Container]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(engine.podman, "network", "rm", "-f", NETWORK)
        # The bridge has its address from the first container on.
        assert engine.once(BASE, "true", options=("--network", NETWORK))[0] == 0
        password = filled["POSTGRES_PASSWORD"]
        database = stack.enter_context(_postgresql(services["postgres"]["environment"]))
        for target, port in ((database, 5432), (gateway.endpoint.removeprefix("http://"), 7070)):
            stack.callback(Relay(target, bridge, port).close)
        assert password in services["registry"]["environment"]["CACHESVC_SERVER_DATABASE"]
        for name in _order(services):
            if name in NOT_RUN:
                continue
            service = services[name]
            image, command = stand_in(name, service)
            own = {"proxy": [proxy], "redis": [redis], "registry": replicas}.get(name, [""])
            for number, address in enumerate(own):
                where = ["--network", NETWORK + (f":ip={address}" if address else ""), *names]
                words = tuple(options(service, files, where))
                if _completes(name, services):
                    status, text = engine.once(image, *command, options=words)
                    assert status == 0, f"{name}: {text}"
                    continue
                running = stack.enter_context(
                    engine.started(image, *command, name=f"{name}-{number}", options=words)
                )
                started.setdefault(name, []).append(running)
            for container in started.get(name, []):
                _wait_for_health(container, service)
        hosts = place / "hosts"
        public = f"{filled['REGISTRY_HOST']} {filled['S3_HOST']}"
        hosts.write_text(f"127.0.0.1 localhost\n{proxy} {public}\n")
        authority = engine.volume("certificates") / "caddy/pki/authorities/local/root.crt"
        _wait(authority.exists)
        yield Composition(
            engine, services, started["registry"], started["proxy"][0], hosts, authority,
            filled["REGISTRY_HOST"], filled["S3_HOST"],
        )  # fmt: skip


def _with_own_authority(caddyfile: str) -> str:
    """Return the file as its first lines say for names that only this network knows."""
    assert "add `tls internal` to" in caddyfile
    for site in ("{$REGISTRY_HOST} {\n", "{$S3_HOST} {\n"):
        assert site in caddyfile
        caddyfile = caddyfile.replace(site, f"{site}\ttls internal\n")
    return caddyfile


@contextlib.contextmanager
def _postgresql(variables: dict[str, str]) -> Iterator[str]:
    """Start PostgreSQL with the user, the password and the database that the image would make."""
    user, password = variables["POSTGRES_USER"], variables["POSTGRES_PASSWORD"]
    with postgresql_server("administrator") as url:
        with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
            connection.execute(f"CREATE DATABASE {user} OWNER {user}")
        yield url.rpartition("@")[2]


def _order(services: dict[str, Any]) -> list[str]:
    graph = {name: list(service.get("depends_on", {})) for name, service in services.items()}
    return list(graphlib.TopologicalSorter(graph).static_order())


def _completes(name: str, services: dict[str, Any]) -> bool:
    """Return whether others wait for the end of a service."""
    conditions = [other["depends_on"].get(name, {}) for other in services.values() if "depends_on" in other]
    return {"condition": "service_completed_successfully"} in conditions


def _wait_for_health(container: Container, service: dict[str, Any]) -> None:
    test = service.get("healthcheck", {}).get("test")
    if test is not None:
        words = ["sh", "-c", test[1]] if test[0] == "CMD-SHELL" else test[1:]
        _wait(lambda: container.run(*words)[0] == 0, container)
    elif service["image"].startswith("cachesvc"):
        container.wait_for_health()


def _wait(happens: Any, container: Container | None = None) -> None:
    until = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < until, container.logs() if container else "it did not happen"
        time.sleep(0.2)


def test_every_key_of_the_file_has_an_effect_or_a_reason() -> None:
    services = compose(env_file())["services"]
    assert unknown_keys(services) == set()
    assert unknown_keys({"registry": {"privileged": True}}) == {"registry.privileged"}
    images = {service["image"].partition(":")[0] for service in services.values()}
    assert images == {"cachesvc", "postgres", *STAND_INS}
    assert set(NOT_RUN) < set(services)
    assert set(NO_EFFECT) <= {key for service in services.values() for key in service}
    for what, why in {**NOT_RUN, **STAND_INS, **NO_EFFECT}.items():
        print(f"not as in the file: {what}: {why}")


def test_each_service_has_the_rights_that_the_file_gives_it(composition: Composition) -> None:
    bind = 1 << 10  # CAP_NET_BIND_SERVICE
    for container, user, capabilities in (
        (composition.proxy, "0", bind),
        *((registry, "10001", 0) for registry in composition.registries),
    ):
        status, text = container.run("cat", "/proc/1/status")
        lines = dict(line.split(":", 1) for line in text.splitlines())
        assert (status, lines["Uid"].split()[0], int(lines["CapBnd"], 16)) == (0, user, capabilities)
        status, text = container.run("touch", "/etc/x")
        assert (status != 0, "Read-only file system" in text) == (True, True), text


def test_the_proxy_shows_the_api_and_downloads_alone(composition: Composition, tmp_path: Path) -> None:
    code = (
        "import sys, urllib.request as r, urllib.error as e\n"
        "for word in sys.argv[1:]:\n"
        "    method, url = word.split(',')\n"
        "    try: print(r.urlopen(r.Request(url, method=method), timeout=20).status)\n"
        "    except e.HTTPError as error: print(error.code)\n"
    )
    registry, bucket = f"https://{composition.host}", f"https://{composition.bucket_host}"
    asked = {
        f"GET,{registry}/v1/whoami": 401,
        f"GET,{registry}/metrics": 404,
        f"GET,{registry}/readyz": 404,
        f"GET,{registry}/ui": 404,
        f"GET,{bucket}/packs/x": 403,
        f"PUT,{bucket}/packs/x": 403,
    }
    printed = composition.client(sys.executable, "-c", code, *asked, place=tmp_path)
    assert dict(zip(asked, map(int, printed.split()), strict=True)) == asked


def test_a_team_warms_and_publishes_through_the_proxy(composition: Composition, tmp_path: Path) -> None:
    """CI warms and publishes; then `--check` resolves the entry."""
    public = composition.command("keygen", "ci.key", place=tmp_path).strip().splitlines()[-1]
    assert SigningKey.load(tmp_path / "ci.key").public
    composition.command("admin", "signers", "add", public, "-n", "team", place=tmp_path)
    (tmp_path / "warm.toml").write_text(WARM)
    trust = {"CACHESVC_TRUSTED_KEYS": public}
    signing = {**trust, "CACHESVC_SIGNING_KEY": str(tmp_path / "ci.key")}
    report = composition.command("warm", "warm.toml", place=tmp_path, **signing)
    assert "published" in report, report
    again = composition.command("warm", "warm.toml", "--check", place=tmp_path, **signing)
    assert "tiny" in again
