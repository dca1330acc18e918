"""Start a real registry process and run the real command, for the end-to-end tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesvc.schema.publishers import PublisherRecord, PublisherRequest
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Namespace
from tests.e2e.registries import serve
from tests.security.issuer import Issuer, running_issuer

TINY = Path(__file__).parent / "tiny"
MAIN = "from cachesvc.cli import main; main()"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, arguments)]


@pytest.fixture(scope="session")
def plain_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment without variables of cachesvc, with a home folder of its own. A test that loads
    Inductor in this process has it name its cache folder there, which services would share."""
    others = ("CACHESVC_", "TORCHINDUCTOR_", "TRITON_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    home = tmp_path_factory.mktemp("home")
    environ |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
    return environ


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory, plain_environment) -> Iterator[dict[str, str]]:
    """Return the variables of a publisher to a registry that runs as long as the tests."""
    # The CI system of the tests is on this machine.
    variables = {**plain_environment, "CACHESVC_SERVER_PRIVATE_ADDRESSES": "true"}
    with serve(tmp_path_factory.mktemp("registry"), variables=variables) as served:
        yield {**plain_environment, **served.publisher}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """Start a CI system that issues tokens to a job of org/app's main branch."""
    with running_issuer() as running:
        yield running


def allow_main(registry: dict[str, str], issuer: Issuer, **changed: Any) -> str:
    """Add the rule that gives jobs of org/app's main branch write tokens. Return the rule's id."""
    url, token = registry["CACHESVC_URL"], registry["CACHESVC_TOKEN"]
    claims = {"repository": "org/app", "ref": "refs/heads/main"}
    rule = PublisherRequest(issuer.url, url, claims, Namespace("team"), **changed)
    with Remote(url, token) as remote:
        record = remote.call("POST", "/v1/publishers", rule, PublisherRecord, idempotent=False)
    return record.publisher
