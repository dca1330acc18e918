"""Start real servers that tests of several folders use, each once in a session, and mark the tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.prepared import run_headers
from tests.services.ceph import Gateway, ceph_gateway
from tests.services.oci import oci_registry_server
from tests.services.postgresql import postgresql_server
from tests.services.redis import redis_server

# Other work on the machine makes examples slow, so the time of one example says nothing.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# A run in the background of a script, or under nohup, ignores Ctrl-C, and so do the processes that it starts.
# Tests that interrupt a command need the behaviour that a terminal gives.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that tests start, and processes of pytest's workers, collect garbage rarely and not at their end
# (`collect_rarely.pth`), which takes a third of the CPU time of a process that imports Inductor. Those of
# other versions of torch do as Python does, and so do benchmarks and `make demo`.
os.environ["PYTHON_COLLECT_RARELY"] = "1"

# The workers of xdist have this process's.
run_headers()

# xdist sets it, and commands would fit their tables to it.
os.environ.pop("COLUMNS", None)

SERVICES = {"postgresql", "database", "redis_url", "gateway", "bucket_at_gateway", "oci_registry"}


OWN_SERVERS = {"server", "own_server", "own_column_server", "registry", "command", "s3_endpoint"}
"""Fixtures that start a registry, or an S3 of moto's, in a process or thread of its own."""
MARKS_OF_PLACES = {
    "compiles": ("e2e", "faults", "warm/test_run.py", "differences/test_differences.py"),
    "servers": (
        *(
            "agent",
            "deploy",
            "registry/test_claims.py",
            "registry/test_collectors.py",
            "registry/test_faults.py",
        ),
        *("registry/test_fuzz.py", "registry/test_operation.py", "registry/test_outages.py"),
        *(
            "registry/test_mirror.py",
            "registry/test_mirror_writes.py",
            "registry/test_replicas.py",
            "security/test_mirror_attacks.py",
            "registry/test_serve.py",
            "registry/test_trust_cli.py",
            "security/test_old_answers.py",
            "security/test_provenance.py",
            "security/test_publishers.py",
            "security/test_secrets_shown.py",
            "security/test_trust_root.py",
            "ui",
        ),
    ),
    # Files whose tests take more than five seconds of CPU in all, most of it in child processes.
    "slow": (
        *("session/test_attach.py", "benchmarks", "node/test_staging.py"),
        *("environment/test_detect.py", "environment/test_gpu.py", "environment/test_model_hash.py"),
        *("house/test_distributions.py", "index/test_killed_upgrades.py"),
        *("kinds/test_cuda.py", "graphs/test_user_kernels.py", "matrix", "registry/test_crashes.py"),
        *(
            "registry/test_stateful.py",
            "versions",
            "warm/test_claims.py",
            "security/fuzz",
            "security/test_authorisation_matrix.py",
            "security/test_imports.py",
            "security/test_signer_program.py",
            "security/test_store_path.py",
            "commands/test_signer_program.py",
        ),
    ),
}
"""Folders and files, with the marks of their tests. ``make test-fast`` runs the tests without any of these
marks."""


def on_demand() -> dict[str, str]:
    """Return what `make test` leaves to `make test-all`, each with what it runs for the same promise."""
    lines = (Path(__file__).parent / "on_demand.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return {left: stays.strip() for left, stays in zip(lines[::2], lines[1::2], strict=True)}


LONGEST_FIRST = ("compiles", "versions", "slow", "services", "servers")
"""The first files to start, in this order; the other files follow."""


def _marks_of_place(path: Path) -> tuple[str, list[str]]:
    """Return the path of a file below this folder, and the marks of its tests."""
    place = path.relative_to(Path(__file__).parent)
    return str(place), [
        mark for mark, places in MARKS_OF_PLACES.items() if any(place.is_relative_to(each) for each in places)
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that requests a real server by name, and each parameter that does.

    Mark tests that take long by their place, and run those first."""
    left = on_demand()
    marks = functools.cache(_marks_of_place)
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if SERVICES & names:
            item.add_marker("services")
        if OWN_SERVERS & names:
            item.add_marker("servers")
        file, of_file = marks(item.path)
        for mark in of_file:
            item.add_marker(mark)
        test, _, parameters = item.name.partition("[")
        of_parameters = {f"{file}[{each}]" for each in parameters.removesuffix("]").split("-")}
        if {file, f"{file}::{test}", f"{file}::{item.name}"} & left.keys() or of_parameters & left.keys():
            item.add_marker("long")
    # A long file that starts last would run alone on one worker at the end.
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next(
            (n for n, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)), len(LONGEST_FIRST)
        )
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


# Until all tests are collected, nothing of what is made is garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """Spare the imported modules and the collected tests from Python's searches for garbage, and their memory
    from the copies that such a search makes in a forked child."""
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
    """Reach the S3 of the tests without a proxy: it runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1")
        yield


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return ``postgresql://…`` of a server that holds no database of the tests."""
    with postgresql_server() as url:
        yield url


def new_database(postgresql: str) -> str:
    """Create an empty database and return its URL."""
    import psycopg

    name = "t" + secrets.token_hex(6)
    with psycopg.connect(f"{postgresql}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgresql}/{name}"


@pytest.fixture
def database(postgresql: str) -> str:
    """Create an empty database and return its URL."""
    return new_database(postgresql)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Return ``redis://…`` of a server that lives as long as the session."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """Start Ceph's S3 gateway."""
    with _no_proxy(), ceph_gateway() as gateway_server:
        yield gateway_server


@pytest.fixture(scope="session")
def oci_registry() -> Iterator[str]:
    """Start docker's registry of OCI images and return its ``host:port``."""
    with _no_proxy(), oci_registry_server() as address:
        yield address


def new_bucket(endpoint: str, keys: dict[str, str]) -> str:
    """Create an empty bucket and return its name."""
    import boto3

    name = "packs-" + secrets.token_hex(6)
    boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket=name)
    return name


@pytest.fixture
def bucket_at_gateway(gateway: Gateway) -> str:
    """Create an empty bucket at Ceph's gateway and return its name."""
    return new_bucket(gateway.endpoint, gateway.client)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Start moto's S3, which is fast and checks neither signatures nor expiry."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with _no_proxy():
        yield f"http://{host}:{port}"
    server.stop()
