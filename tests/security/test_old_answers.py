"""A registry or a network shows a node what is old: how long an old revision and an old answer count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_making import Publication, Server, make, ok, refused

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.environment.detect import detect
from tests.e2e.registries import client

from .attacker import start

DAY = 86400
KERNEL = "aa/c" + 24 * "a" + ".picked_kernel"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("registry") / "data").start()
    yield made
    if made.process and made.process.poll() is None:
        assert made.stop() == 0


@pytest.fixture
def team() -> str:
    return "n" + os.urandom(6).hex()


def publish(server: Server, team: str, age: float = 0.0, expires: int | None = None) -> Publication:
    """A revision for this machine that was signed ``age`` seconds ago."""
    made = make(
        server.key,
        namespace=team,
        name="model",
        sequence=int((time.time() - age) * 1000),
        path=KERNEL,
        fingerprint=dict(detect()),
        expires=expires,
    )
    ok(server.api().publish(made))
    return made


def in_the_future(seconds: float) -> int:
    """Return the sequence of what is signed then."""
    return int((time.time() + seconds) * 1000)


def attach(server: Server, team: str, place: Path, wrong_by: float = 0.0, **variables: str) -> dict[str, Any]:
    """What a service on the node ``place`` says of its start. ``wrong_by``: seconds of its clock."""
    place.mkdir(exist_ok=True)
    trust = {"CACHESVC_URL": server.url, "CACHESVC_TRUSTED_KEYS": server.ready["trust"]}
    told = json.dumps({"name": f"{team}/model"})
    variables = {**QUICK, **trust, "CACHESVC_TOKEN": server.token, **variables}
    if wrong_by:
        return start("late_clock.py", str(wrong_by), told, place=place, **variables)
    return start("attached.py", told, place=place, **variables)


def test_a_registry_rolls_a_fresh_node_back_and_the_age_of_the_revision_stops_it(
    server: Server, team: str, tmp_path: Path
) -> None:
    made = publish(server, team, age=400 * DAY)
    seen = attach(server, team, tmp_path / "default")
    assert seen["installed"] == [], seen
    assert "signed 400.0 d ago, more than the 365.0 d that count by default" in seen["problems"][0], seen
    assert (tmp_path / "default/log").read_text().count("signed 400.0 d ago") == 1
    assert "cachesvc warm publishes it again; or allow more: CACHESVC_MAX_AGE" in seen["problems"][0], seen
    wide = attach(server, team, tmp_path / "wide", CACHESVC_MAX_AGE="500d")
    assert wide["installed"] == [str(made.revision)], "it is young enough"
    made = publish(server, f"{team}y", age=31 * DAY)
    assert attach(server, f"{team}y", tmp_path / "young")["installed"] == [str(made.revision)]
    seen = attach(server, f"{team}y", tmp_path / "bounded", CACHESVC_MAX_AGE="30d")
    assert seen["installed"] == [] and "signed 31.0 d ago" in seen["problems"][0], seen


def test_the_root_signs_how_old_a_revision_of_each_namespace_may_be(team: str, tmp_path: Path) -> None:
    """Who has old files has no signature over a longer age. A user may shorten it, and not prolong it."""
    ages = {"CACHESVC_SERVER_MAX_AGE": f"*=20d,{team}=500d"}
    with Server(tmp_path / "data", env=ages).running() as server:
        root = {"CACHESVC_TRUST_ROOT": str(server.pin_root(tmp_path))}
        made = publish(server, team, age=400 * DAY)
        publish(server, f"{team}x", age=21 * DAY)
        assert attach(server, team, tmp_path / "long", **root)["installed"] == [str(made.revision)]
        seen = attach(server, team, tmp_path / "user", CACHESVC_MAX_AGE="30d", **root)
        assert seen["installed"] == [] and "30.0 d of CACHESVC_MAX_AGE" in seen["problems"][0], seen
        for own in ({}, {"CACHESVC_MAX_AGE": "900d"}):
            seen = attach(server, f"{team}x", tmp_path / f"short{len(own)}", **root, **own)
            assert seen["installed"] == [], seen
            assert f"more than the 20.0 d that the root allows in {team}x" in seen["problems"][0], seen
            assert f"cachesvc admin trust max-age {team}x" in seen["problems"][0], seen


def test_every_reader_of_the_door_refuses_what_is_too_old(server: Server, team: str, tmp_path: Path) -> None:
    """A bundle file, and the commands that would pass it on."""
    file = bundled(publish(server, team, age=400 * DAY), tmp_path)
    seen = attach(server, team, tmp_path / "node", CACHESVC_BUNDLE=str(file))
    assert seen["installed"] == [] and "signed 400.0 d ago" in seen["problems"][0], seen
    assert "signed 400.0 d ago" in unverified(server, file)


def bundled(made: Publication, folder: Path) -> Path:
    """Return a bundle file with a revision that was made, or published."""
    file, pack = folder / "model.cachesvc", folder / "pack"
    pack.write_bytes(made.pack)
    write_bundle(file, made.envelope, pack)
    return file


def unverified(server: Server, file: Path) -> str:
    """Return what ``verify`` says of a bundle file that it refuses, by one who trusts the registry's key."""
    store = str(file.parent / "store")
    trusts = {"CACHESVC_TRUSTED_KEYS": server.ready["trust"], "CACHESVC_STORE": store}
    verified = client("verify", str(file), **trusts)
    assert verified.returncode != 0, verified
    return str(verified.stdout + verified.stderr)


def test_a_signer_dates_a_revision_into_the_future_so_that_it_never_is_too_old(
    server: Server, team: str, tmp_path: Path
) -> None:
    """No registry takes it, to 300 s; and nobody who gets it in another way counts it as young."""

    def dated(ahead: float) -> Publication:
        facts = {"path": KERNEL, "fingerprint": dict(detect())}
        return make(server.key, namespace=team, name="model", sequence=in_the_future(ahead), **facts)

    for lane in (None, "pr-1"):
        late = make(server.key, namespace=team, name="model", lane=lane, sequence=in_the_future(400))
        for publish_it in (server.api().publish, server.api().bundle):
            refused(publish_it(late), 422, "invalid", "in the future", "set the signing machine's clock")
    ok(server.api().publish(dated(200)))
    file = bundled(dated(400 * DAY), tmp_path)
    for number, more in enumerate(({}, {"CACHESVC_MAX_AGE": "30d"}, {"CACHESVC_MAX_AGE": "9000d"})):
        place = tmp_path / f"node{number}"
        seen = attach(server, team, place, CACHESVC_BUNDLE=str(file), CACHESVC_URL="", **more)
        assert seen["installed"] == [], seen
        assert "signed 400.0 d after this machine's time: a clock is wrong" in seen["problems"][0], seen
        assert (place / "log").read_text().count("after this machine's time") == 1
    assert "a clock is wrong" in unverified(server, file)


def test_a_node_whose_clock_is_set_back_compiles_and_says_why(
    server: Server, team: str, tmp_path: Path
) -> None:
    """It knows no age, so nothing counts, with one line at each start, until the clock is right."""
    made = publish(server, team)
    place = tmp_path / "node"
    assert attach(server, team, place)["installed"] == [str(made.revision)]
    for behind in (365 * DAY, 3600):
        seen = attach(server, team, place, wrong_by=-behind)
        assert seen["installed"] == [], seen
        assert "after this machine's time: a clock is wrong, and its age is not known" in seen["problems"][0]
        assert "set this machine's clock" in seen["problems"][0], seen
        assert (place / "log").read_text().count("after this machine's time") == 1
    for behind in (250, 0):
        assert attach(server, team, place, wrong_by=-behind)["installed"] == [str(made.revision)]


def test_a_registry_rolls_a_reader_of_bundles_back_and_the_age_stops_it(
    server: Server, team: str, tmp_path: Path
) -> None:
    publish(server, team, age=400 * DAY)
    variables = {
        "CACHESVC_URL": server.url,
        "CACHESVC_TOKEN": server.token,
        "CACHESVC_TRUSTED_KEYS": server.ready["trust"],
        "CACHESVC_STORE": str(tmp_path / "store"),
    }
    pull = ("pull", f"{team}/model", "--into", str(tmp_path / "out"))
    refused = client(*pull, **variables)
    assert refused.returncode == 7 and "CACHESVC_MAX_AGE" in refused.stderr, refused.stderr
    explained = client("explain", f"{team}/model", **variables)
    assert "that count by default" in explained.stdout, explained.stdout
    assert client(*pull, CACHESVC_MAX_AGE="500d", **variables).returncode == 0


def test_a_registry_freezes_a_node_and_the_expiry_that_an_operator_signs_stops_it(
    server: Server, team: str, tmp_path: Path
) -> None:
    publish(server, team)
    variables = {
        "CACHESVC_URL": server.url,
        "CACHESVC_TOKEN": server.token,
        "CACHESVC_TRUSTED_KEYS": server.ready["trust"],
        "CACHESVC_SIGNING_KEY": server.ready["signing_key"],
        "CACHESVC_STORE": str(tmp_path / "store"),
    }
    done = client("admin", "tag", f"{team}/model", "prod", "--expires", "90d", "--apply", **variables)
    assert done.returncode == 0, done.stderr
    rows = ok(server.api().http.get("/v1/entries", params={"namespace": team}))["rows"]
    [tagged] = [row for row in rows if row["tag"] == "prod"]
    revision = ok(server.api().http.get(f"/v1/revisions/{tagged['revision']}"))
    assert abs(revision["expires"] - time.time() - 90 * DAY) < 60
    wrong = client("admin", "tag", f"{team}/model", "x", "--expires", "soon", **variables)
    assert wrong.returncode == 2 and "--expires" in wrong.stderr, wrong.stderr


def test_a_network_cuts_the_registry_off_and_the_last_answer_is_not_trusted_for_long(
    team: str, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data").start()
    made = publish(server, team)
    place = tmp_path / "node"
    assert attach(server, team, place)["installed"] == [str(made.revision)]
    assert server.stop() == 0
    [answer] = (place / "home/.cache/cachesvc/v1/resolved").iterdir()
    hours_ago = answer.stat().st_mtime - 3 * 3600
    os.utime(answer, (hours_ago, hours_ago))
    seen = attach(server, team, place)
    assert seen["installed"] == [str(made.revision)], seen
    log = (place / "log").read_text()
    assert "last answer, which is 3.0 h old (CACHESVC_OFFLINE allows 7.0 d)" in log, log
    for policy in ("1h", "0"):
        seen = attach(server, team, place, CACHESVC_OFFLINE=policy)
        assert seen["installed"] == [] and "CACHESVC_OFFLINE" in seen["problems"][0], seen
    assert attach(server, team, place, CACHESVC_OFFLINE="4h")["installed"] == [str(made.revision)]
