"""A service with a pinned root, against real registries: whose code it installs, and why not another's."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from registry_making import Publication, Server, make, ok

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.login import login
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.trust_root import registry_metadata
from cachesvc_client.trust_root.registry_metadata import refresh_policy
from cachesvc_client.wire.errors import Untrusted
from tests.e2e.registries import client

from .attacker import start

DAY = 86_400
NAME = "team/model"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "registry" / "data")
    made.data.parent.mkdir()
    made.start()
    yield made
    if made.process and made.process.poll() is None:
        assert made.stop() == 0


@pytest.fixture
def root(server: Server, tmp_path: Path) -> Path:
    """The root that a login on another machine has pinned."""
    return log_in(server, tmp_path / "operator")


def log_in(server: Server, home: Path, **more: Any) -> Path:
    home.mkdir(exist_ok=True)
    environ = {"HOME": str(home)}
    _, _, pin = login(server.url, server.token, environ=environ, **more)
    assert pin is not None
    assert Config.read(environ).trust_root == pin.path
    return pin.path


def publish(server: Server, key: SigningKey, name: str = "model") -> Publication:
    made = make(
        key,
        name=name,
        path="aa/c" + 24 * "a" + ".picked_kernel",
        fingerprint=dict(detect()),
    )
    ok(server.api().publish(made))
    return made


def attach(server: Server, root: Path | None, place: Path, **variables: str) -> dict[str, Any]:
    """What a service on the node ``place`` says of its start."""
    place.mkdir(exist_ok=True)
    pinned = {"CACHESVC_TRUST_ROOT": str(root)} if root is not None else {}
    url = {**QUICK, "CACHESVC_URL": server.url, "CACHESVC_TOKEN": server.token}
    return start("attached.py", json.dumps({"name": NAME}), place=place, **url, **pinned, **variables)


def forget_answers(place: Path) -> None:
    """An answer to a resolve counts for 5 s on its node."""
    for answer in (place / "home/.cache/cachesvc/v1/resolved").iterdir():
        answer.unlink()


def signers(server: Server, deed: str, key: SigningKey) -> None:
    variables = {"CACHESVC_URL": server.url, "CACHESVC_TOKEN": server.token}
    apply = ["--apply"] if deed == "remove" else []
    done = client("admin", "signers", deed, str(key.public), "-n", "team", *apply, **variables)
    assert done.returncode == 0, done.stderr


def test_the_root_replaces_the_list_of_trusted_keys(server: Server, root: Path, tmp_path: Path) -> None:
    made = publish(server, server.key)
    seen = attach(server, root, tmp_path / "node")
    assert seen["installed"] == [str(made.revision)], seen
    assert attach(server, None, tmp_path / "other")["installed"] == []


def test_a_revoked_signer_is_refused_at_the_next_start(server: Server, root: Path, tmp_path: Path) -> None:
    key, place = SigningKey.generate(), tmp_path / "node"
    signers(server, "add", key)
    made = publish(server, key)
    assert attach(server, root, place)["installed"] == [str(made.revision)]
    signers(server, "remove", key)
    # The answer that the node remembers, and the pack in its store, are of no use to it.
    seen = attach(server, root, place)
    assert seen["installed"] == [], seen
    assert "revoked on" in seen["problems"][0], seen


def test_keys_and_root_must_both_hold(server: Server, root: Path, tmp_path: Path) -> None:
    publish(server, server.key)
    other = str(SigningKey.generate().public)
    seen = attach(server, root, tmp_path / "node", CACHESVC_TRUSTED_KEYS=other)
    assert seen["installed"] == [] and "which is not trusted" in seen["problems"][0], seen
    seen = attach(server, root, tmp_path / "node", CACHESVC_TRUSTED_KEYS=str(server.key.public))
    assert len(seen["installed"]) == 1, seen


def test_another_registry_at_the_same_address_is_refused(root: Path, tmp_path: Path) -> None:
    """The attacker has the network, a registry of their own, and a token that it takes."""
    (tmp_path / "attacker").mkdir()
    attacker = Server(tmp_path / "attacker" / "data").start()
    publish(attacker, attacker.key)
    seen = attach(attacker, root, tmp_path / "node")
    assert seen["installed"] == [], seen
    assert "signed by 0 of the keys that root 1 names" in seen["problems"][-1], seen
    assert attacker.stop() == 0


def test_a_login_with_another_root_stores_nothing(server: Server, root: Path, tmp_path: Path) -> None:
    (tmp_path / "attacker").mkdir()
    attacker = Server(tmp_path / "attacker" / "data").start()
    home = tmp_path / "home"
    with pytest.raises(Untrusted):
        log_in(attacker, home, root=root)
    assert not (home / ".config").exists()
    assert log_in(server, home, root=root).read_bytes() == root.read_bytes()
    # A second login does not pin what the registry says now.
    environ = {"HOME": str(home)}
    assert login(server.url, server.token, environ=environ)[2] is None
    assert Config.read(environ).trust_root is not None
    assert attacker.stop() == 0


def test_a_login_at_an_address_with_another_registry_changes_nothing_unless_it_is_told(
    server: Server, root: Path, tmp_path: Path
) -> None:
    """A user who made the registry anew says so; an attacker at the same address cannot."""
    pinned = root.read_bytes()
    environ = {"HOME": str(tmp_path / "operator")}
    assert server.stop() == 0
    (tmp_path / "second").mkdir()
    second = Server(tmp_path / "second" / "data", ["--port", server.url.rpartition(":")[2]]).start()
    try:
        assert second.url == server.url
        with pytest.raises(Untrusted, match="is not the registry whose root is pinned") as refusal:
            login(second.url, second.token, environ=environ)
        assert f"cachesvc login {second.url} --new-root" in str(refusal.value)
        assert root.read_bytes() == pinned
        pin = login(second.url, second.token, environ=environ, new_root=True)[2]
        assert pin is not None and pin.path.read_bytes() != pinned
        pin.path.unlink()
        assert login(second.url, second.token, environ=environ)[2] is not None, "a lost file is pinned again"
    finally:
        assert second.stop() == 0


def test_the_commands_hold_to_the_root(server: Server, root: Path, tmp_path: Path) -> None:
    key = SigningKey.generate()
    signers(server, "add", key)
    publish(server, key)
    variables = {
        "CACHESVC_URL": server.url,
        "CACHESVC_TOKEN": server.token,
        "CACHESVC_TRUST_ROOT": str(root),
        "CACHESVC_STORE": str(tmp_path / "store"),
    }
    pull = ("pull", NAME, "--into", str(tmp_path / "out"))
    done = client(*pull, **variables)
    assert done.returncode == 0, done.stderr
    bundle = {**variables, **QUICK, "CACHESVC_BUNDLE": str(tmp_path / "out")}
    offline = start("attached.py", json.dumps({"name": NAME}), place=tmp_path, **bundle)
    assert len(offline["installed"]) == 1, offline  # by the metadata that the pull has left
    signers(server, "remove", key)
    revoked = client(*pull, **variables)
    assert revoked.returncode != 0, revoked.stdout
    shown = client("admin", "trust", "show", **variables)
    assert shown.returncode == 0 and "not verified" not in shown.stderr, shown.stderr
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert key.public.keyid in lines["revoked"] and server.key.public.keyid in lines["every-namespace"]
    assert {"root", "targets", "snapshot", "timestamp"} < set(lines)


def test_a_bundle_without_metadata_is_refused(server: Server, root: Path, tmp_path: Path) -> None:
    publish(server, server.key)
    variables = {"CACHESVC_URL": server.url, "CACHESVC_TOKEN": server.token}
    trusted = {"CACHESVC_TRUSTED_KEYS": server.ready["trust"], "CACHESVC_STORE": str(tmp_path / "builder")}
    pull = ("pull", NAME, "--into", str(tmp_path / "out"))
    assert client(*pull, **variables, **trusted).returncode == 0
    (tmp_path / "node").mkdir()
    out = str(tmp_path / "out")
    bundle = {**variables, **QUICK, "CACHESVC_TRUST_ROOT": str(root), "CACHESVC_BUNDLE": out}
    words = ("attached.py", json.dumps({"name": NAME}))
    seen = start(*words, place=tmp_path / "node", **bundle)
    assert seen["installed"] == [] and "no trust metadata" in seen["problems"][-1], seen
    keys = {"CACHESVC_TRUSTED_KEYS": server.ready["trust"]}
    seen = start(*words, place=tmp_path / "node", **bundle, **keys)
    assert len(seen["installed"]) == 1 and "decides alone" in seen["problems"][0], seen


class Counting(Remote):
    """Counts the calls."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.calls: list[str] = []

    def call(self, method: str, path: str, *more: Any, **named: Any) -> Any:
        self.calls.append(path)
        return super().call(method, path, *more, **named)

    def raw(self, path: str, limit: int, deadline: float | None = None) -> bytes:
        self.calls.append(path)
        return super().raw(path, limit, deadline)


def test_a_start_costs_one_request(server: Server, root: Path, tmp_path: Path) -> None:
    for expected in (r"snapshot=0&targets=0", r"snapshot=[0-9]{10}&targets=[0-9]{10}"):
        with Counting(server.url, server.token) as remote:
            refresh_policy(root, tmp_path / "trust", remote)
            [call] = remote.calls
            assert re.fullmatch(rf"/v1/trust/update\?root=1&{expected}", call)
    signers(server, "add", SigningKey.generate())
    with Counting(server.url, server.token) as remote:
        refresh_policy(root, tmp_path / "trust", remote)
        assert len(remote.calls) == 1


def test_a_registry_that_is_away_counts_until_the_timestamp_expires(
    server: Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, place = publish(server, server.key), tmp_path / "node"
    assert attach(server, root, place)["installed"] == [str(made.revision)]
    store = place / "home/.cache/cachesvc/v1/trust"
    assert server.stop() == 0
    seen = attach(server, root, place)
    assert seen["installed"] == [str(made.revision)], seen
    assert any("the trust metadata of this node are used" in one for one in seen["problems"]), seen
    with Remote(server.url, server.token, retries=0) as remote:
        for days, message in ((-1, "clock is wrong"), (8, r"expired 24\.0 h ago"), (8, "must be reached")):
            later = time.time() + days * DAY + 60
            monkeypatch.setattr(registry_metadata, "time", SimpleNamespace(time=lambda later=later: later))
            with pytest.raises(Untrusted, match=message):
                refresh_policy(root, store, remote)


def test_a_missing_root_is_named_and_the_service_runs(server: Server, tmp_path: Path) -> None:
    publish(server, server.key)
    seen = attach(server, tmp_path / "gone.json", tmp_path / "node")
    assert seen["installed"] == [] and "gone.json" in seen["problems"][-1], seen
    (tmp_path / "broken.json").write_bytes(os.urandom(100))
    seen = attach(server, tmp_path / "broken.json", tmp_path / "node")
    assert seen["installed"] == [] and "root.json" in seen["problems"][-1], seen
