"""A signing key leaked and was revoked: what a node that used its code does at its next start, through any
replica, and while it is cut off from the registry."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from registry_making import Server

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.harness import SCALAR
from tests.e2e.registries import client, prepare, serve
from tests.services.ceph import Gateway

from .attacker import Made, runs, start
from .conftest import NAME

pytestmark = pytest.mark.compiles

WHY = "leaked in a CI log"
CHOSEN = "csv_" + "chosen-by-the-operator-" * 2


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The node."""
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def signed_with_the_leaked_key(
    made: Made, folder: Path, variables: dict[str, str], marker: Path | None = None
) -> Made:
    """Publishes what a key signed that leaks later; hostile if there is a ``marker``."""
    leaked = made.signed(NAME, folder / "leaked.cachesvc", SigningKey.generate(), marker)
    leaked.key.save(folder / "leaked.key")
    done = client("admin", "signers", "add", leaked.trusted, "-n", "team-b", **variables)
    assert done.returncode == 0, done.stderr
    signing = {"CACHESVC_TRUSTED_KEYS": leaked.trusted, "CACHESVC_SIGNING_KEY": str(folder / "leaked.key")}
    done = client("push", str(leaked.bundle), **{**variables, **signing})
    assert done.returncode == 0, done.stderr
    return leaked


def revoke(leaked: Made, variables: dict[str, str]) -> tuple[str, float]:
    """Revokes the key and returns what the command printed, and when."""
    revoked = ("admin", "signers", "revoke", leaked.trusted, "--why", WHY, "--apply")
    done = client(*revoked, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic()


def sleep_until_5_seconds_after(moment: float) -> None:
    time.sleep(max(0.0, moment + 5.1 - time.monotonic()))


def test_a_warm_node_that_hit_refuses_5_seconds_after_the_revocation(
    honest: Made, place: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, SigningKey.generate().text)
    with serve(tmp_path) as served:
        leaked = signed_with_the_leaked_key(honest, tmp_path, served.variables)
        variables = {**served.variables, "CACHESVC_TRUSTED_KEYS": leaked.trusted, "CACHESVC_REPORT": "1"}
        first = start("service.py", NAME, place=place, **variables)
        assert (first["state"], first["compilations"]) == ("hit", 0), first
        said, moment = revoke(leaked, served.variables)
        assert "withheld 1 revision under 1 name; 1 node reported some, 1 used it" in said, said
        sleep_until_5_seconds_after(moment)
        again = start("service.py", NAME, place=place, **variables)
        log = (place / "log").read_text()
        explained = client("explain", NAME, **SCALAR, **variables).stdout
    assert f"its signer was revoked: {WHY}" in explained, explained
    assert (again["state"], again["revisions"]) == ("miss", []), again
    assert again["compilations"] > 0 and again["difference"] < 1e-5, again
    assert f"its signer was revoked: {WHY}" in log, log


def test_a_node_that_is_cut_off_says_how_long_it_goes_on_and_then_refuses(
    honest: Made, marker: Path, place: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, SigningKey.generate().text)
    with serve(tmp_path) as served:
        leaked = signed_with_the_leaked_key(honest, tmp_path, served.variables, marker)
        variables = {**served.variables, "CACHESVC_TRUSTED_KEYS": leaked.trusted}
        first = start("service.py", NAME, place=place, **variables)
        before = runs(marker)
        assert before > 0, first
        _, moment = revoke(leaked, served.variables)
        sleep_until_5_seconds_after(moment)
        again = start("service.py", NAME, place=place / "..", **variables)  # another node, not cut off
        assert runs(marker) == before and again["revisions"] == [], again
    old = time.time() - 3 * 3600
    for answer in (place / "home/.cache/cachesvc/v1/resolved").iterdir():
        os.utime(answer, (old, old))
    within = start("service.py", NAME, place=place, CACHESVC_OFFLINE="4h", **variables)
    log = (place / "log").read_text()
    ends = time.strftime("%Y-%m-%d %H:%M", time.gmtime(old + 4 * 3600))
    line = (
        f"last answer, which is 3.0 h old (CACHESVC_OFFLINE allows 4.0 h), and refuses it from {ends} UTC on"
    )
    assert sum(line in each for each in log.splitlines()) == 1, log
    # The first start's own results may serve the model.
    assert within["revisions"] == [f"{NAME}:latest"], within
    before = runs(marker)
    after = start("service.py", NAME, place=place, CACHESVC_OFFLINE="2h", **variables)
    assert runs(marker) == before, after
    assert (after["state"], after["revisions"]) == ("miss", []), after
    assert "more than the 2.0 h of CACHESVC_OFFLINE" in (place / "log").read_text()


@pytest.mark.services
def test_a_node_of_another_replica_refuses_5_seconds_after_the_revocation(
    honest: Made,
    marker: Path,
    place: Path,
    tmp_path: Path,
    database: str,
    gateway: Gateway,
    bucket_at_gateway: str,
) -> None:
    """No Redis, so the other replica learns of it from the index alone."""
    shared = {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_BUCKET": bucket_at_gateway,
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
        "CACHESVC_SERVER_FIRST_TOKEN": CHOSEN,
    }
    first, second = (Server(tmp_path / name, env=shared).start() for name in ("first", "second"))
    try:
        admin = {"CACHESVC_URL": first.url, "CACHESVC_TOKEN": CHOSEN}
        leaked = signed_with_the_leaked_key(honest, tmp_path, admin, marker)
        variables = {
            "CACHESVC_URL": second.url,
            "CACHESVC_TOKEN": CHOSEN,
            "CACHESVC_TRUSTED_KEYS": leaked.trusted,
        }
        seen = start("service.py", NAME, place=place, **variables)
        before = runs(marker)
        assert before > 0, seen
        _, moment = revoke(leaked, admin)
        sleep_until_5_seconds_after(moment)
        again = start("service.py", NAME, place=place, **variables)
        assert runs(marker) == before, again
        assert (again["state"], again["revisions"]) == ("miss", []), again
        assert f"its signer was revoked: {WHY}" in (place / "log").read_text()
    finally:
        for server in (first, second):
            assert server.stop() == 0
