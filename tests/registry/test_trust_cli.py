"""Test ``cachesvc admin trust`` as operators type it, from the first key file to a service that restores."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from admin_command import Admin, CommandResult
from registry_making import Server, make, ok

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.login import login
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.trust_root.registry_metadata import refresh_policy
from tests.security.attacker import start


@dataclass
class Site:
    """A registry with an online key and no root, and a machine of its operator."""

    server: Server
    folder: Path
    admin: Admin

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def root_keys(self, *names: str) -> list[Any]:
        return [word for name in names for word in ("--root-key", self.key(name))]

    def attach(self, place: str) -> dict[str, Any]:
        """Return what a service on a node says of its start; it pins the first root."""
        node = self.folder / place
        node.mkdir(exist_ok=True)
        variables = {"CACHESVC_URL": self.server.url, "CACHESVC_TOKEN": self.server.token}
        pinned = str(self.folder / "out" / "root.json")
        words = ("attached.py", json.dumps({"name": "team/model"}))
        # Its entries have this machine's instructions.
        return start(*words, place=node, **QUICK, CACHESVC_TRUST_ROOT=pinned, **variables)

    def publish(self, key: SigningKey, name: str = "model") -> str:
        path = "aa/c" + 24 * "a" + ".picked_kernel"
        publication = make(key, name=name, path=path, fingerprint=dict(detect()))
        ok(self.server.api().publish(publication))
        return str(publication.revision)


def machine(server: Server, folder: Path, run: Admin, patch: pytest.MonkeyPatch) -> Site:
    for name in ("CACHESVC_SIGNING_KEY", "CACHESVC_TRUSTED_KEYS", "CACHESVC_TRUST_ROOT"):
        patch.delenv(name, raising=False)
    patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    patch.setenv("CACHESVC_URL", server.url)
    patch.setenv("CACHESVC_TOKEN", server.token)
    patch.setenv("CACHESVC_STORE", str(folder / "store"))
    return Site(server, folder, lambda *words: run("admin", *words))


@pytest.fixture
def site(
    own_server: Server,
    tmp_path: Path,
    command: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    SigningKey.generate().save(tmp_path / "online.key")
    own_server.env = {"CACHESVC_SERVER_ONLINE_KEY_FILE": str(tmp_path / "online.key")}
    return machine(own_server.start(), tmp_path, command, monkeypatch)


@pytest.fixture
def embedded(
    own_server: Server,
    tmp_path: Path,
    command: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    return machine(own_server.start(), tmp_path, command, monkeypatch)


def done(result: CommandResult) -> str:
    """Return the output of a success."""
    assert result.status == 0, result.err
    return result.out


def refused(result: CommandResult, status: int, *words: str) -> None:
    assert result.status == status, (result.out, result.err)
    assert result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err


def init(site: Site, *more: object, threshold: int = 1) -> None:
    words = ("init", *site.root_keys("alice"), "--targets-key", site.key("targets"), "--threshold", threshold)
    done(site.admin("trust", *words, "--out", site.folder / "out", *more, "--apply"))


def server_key(site: Site) -> str:
    return site.server.key.public.keyid


def pin(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHESVC_TRUST_ROOT", str(site.folder / "out" / "root.json"))


def test_from_the_first_key_file_to_a_service_that_restores(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(site.admin("trust", "show"), 4, "no trust metadata", "cachesvc admin trust init")
    keys = (*site.root_keys("alice", "bob", "carol"), "--threshold", 2, "--targets-key", site.key("targets"))
    plan = site.admin("trust", "init", *keys)
    assert server_key(site) in done(plan)  # the operator sees whom the first targets name
    assert "new: " in plan.out and "make the key files" in plan.out and "--apply" in plan.err
    assert not site.key("alice").exists()
    out = done(site.admin("trust", "init", *keys, "--out", site.folder / "out", "--apply"))
    assert "root 1: 3 of 2 signatures" in out and "cachesvc login" in out
    assert site.key("alice").stat().st_mode & 0o777 == 0o600
    _, _, pinned = login(
        site.server.url,
        site.server.token,
        environ={"HOME": str(site.folder)},
        root=site.folder / "out" / "root.json",
    )
    assert pinned is not None and "2 must sign" in pinned.text
    revision = site.publish(site.server.key)
    assert site.attach("node")["installed"] == [revision]
    pin(site, monkeypatch)
    shown = site.admin("trust", "show")
    assert "every-namespace" in done(shown) and "not verified" not in shown.err
    refused(site.admin("trust", "init", *keys), 2, "has an operator's root already", "rotate-root")
    leaked = str(site.server.key.public)
    targets = ("--targets-key", site.key("targets"))
    refused(
        site.admin("trust", "revoke", leaked, "--why", "on a laptop", "--apply"),
        2,
        "0 of 1 signatures by keys of root 1",
        "--draft FILE",
    )
    assert leaked in done(site.admin("signers", "list"))  # a refused command changes nothing
    plan = done(site.admin("trust", "revoke", leaked, "--why", "on a laptop", *targets))
    assert "the key leaves every-namespace (nobody is left)" in plan and "withhold 1 revision" in plan
    done(site.admin("trust", "revoke", leaked, "--why", "on a laptop", *targets, "--apply"))
    seen = site.attach("node")
    assert seen["installed"] == [] and "on a laptop" in seen["problems"][0], seen


def test_holders_on_different_machines_sign_one_draft(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob, draft = SigningKey.generate(), SigningKey.generate(), site.folder / "draft.json"
    alice.save(site.key("alice"))
    bob.save(site.key("bob"))
    words = ("--root-key", alice.public, "--root-key", bob.public, "--threshold", 2)
    init_words = ("trust", "init", *words, "--targets-key", site.key("targets"))
    refused(site.admin(*init_words, "--apply"), 2, "0 of 2 signatures", "--draft FILE")
    out = done(site.admin(*init_words, "--draft", draft, "--apply"))
    assert "root 1: 0 of 2 signatures" in out and "targets" in out
    refused(site.admin("trust", "sign", draft), 2, "no key to sign with")
    refused(site.admin("trust", "sign", draft, "--root-key", site.key("targets")), 2, "--targets-key")
    refused(site.admin("trust", "sign", draft, "--root-key", site.folder / "none"), 2, "No such file")
    (site.folder / "wrong").write_text("no key")
    refused(site.admin("trust", "sign", draft, "--root-key", site.folder / "wrong"), 2, "not a signing key")
    before = draft.read_bytes()
    assert "root 1: 1 of 2" in done(site.admin("trust", "sign", draft, *site.root_keys("alice")))
    assert draft.read_bytes() == before
    done(site.admin("trust", "sign", draft, *site.root_keys("alice"), "--apply"))
    refused(site.admin("trust", "put", draft, "--apply"), 2, "root 1: 1 of 2 signatures")
    out = done(site.admin("trust", "sign", draft, *site.root_keys("bob"), "--apply"))
    assert "no signature is missing: cachesvc admin trust put" in out
    done(site.admin("trust", "put", draft, "--out", site.folder / "out", "--apply"))
    pin(site, monkeypatch)
    # The next root, and a draft that somebody else overtakes.
    new = ("trust", "rotate-root", "--root-key", site.key("carol"))
    old = ("--old-root-key", site.key("alice"), "--old-root-key", site.key("bob"))
    done(site.admin(*new, "--draft", draft, "--apply"))
    done(site.admin(*new, *old, "--apply"))
    done(site.admin("trust", "sign", draft, *site.root_keys("alice", "bob"), "--apply"))
    refused(site.admin("trust", "put", draft, "--apply"), 5, "root 2 is stored", "make it again")
    refused(site.admin("trust", "sign", site.key("alice"), *site.root_keys("alice")), 2, "not a draft")
    assert "must sign" in done(site.admin("trust", "show"))


def test_a_namespace_and_its_lanes_are_delegated_and_files_are_renewed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(site)
    builder, robot = SigningKey.generate(), SigningKey.generate()
    targets = ("--targets-key", site.key("targets"))
    words = ("trust", "delegate", "team", "--key", builder.public)
    refused(site.admin(*words, *targets, "--apply"), 2, "no root is pinned", "cachesvc login")
    pin(site, monkeypatch)
    plan = site.admin(*words, *targets)
    assert "team/trunk/*/*" in done(plan) and "--apply" in plan.err
    done(site.admin(*words, *targets, "--apply"))
    assert builder.public in done(site.admin("signers", "list"))
    lane = ("trust", "delegate", "team", "--key", robot.public, "--lane", "pr-*")
    done(site.admin(*lane, *targets, "--apply"))
    shown = done(site.admin("trust", "show"))
    assert "team/lane/pr-*/*/*" in shown and "namespace-team+lane-pr-%2A" in shown
    refused(site.admin(*lane[:-1], "../x", *targets), 2, "lane")
    refused(site.admin(*words, "--threshold", 2, *targets), 2, "2 of 1 keys would have to sign")
    refused(site.admin("trust", "delegate", "team", *targets), 2, "nothing to change")
    added = site.admin("signers", "add", SigningKey.generate().public, "-n", "team")
    assert "cachesvc admin trust delegate team --key" in added.err and added.err.count("\n") == 1
    removed = site.admin("signers", "remove", builder.public, "-n", "team", "--apply")
    assert "cachesvc admin trust delegate team --remove" in removed.err
    unknown = ("trust", "delegate", "team", "--remove", f"{builder.public[:18]}?{builder.public[19:26]}")
    refused(site.admin(*unknown, *targets), 4, f"did you mean {builder.public.short}?")
    refused(site.admin("trust", "delegate", "team", "--remove", robot.public, *targets), 4, "trust show")
    by_lane = ("trust", "delegate", "team", "--lane", "pr-*", "--remove", robot.public[:20], *targets)
    assert "plan: delegate team/lane/pr-*/*/* to nobody" in done(site.admin(*by_lane))
    for text in (builder.public, builder.public.short):
        plan = site.admin("trust", "delegate", "team", "--remove", text, *targets)
        assert "to nobody" in done(plan), text
    done(site.admin("trust", "delegate", "team", "--remove", builder.public.keyid, *targets, "--apply"))
    revoked = site.admin("signers", "revoke", robot.public, "--apply")
    assert f"cachesvc admin trust revoke {robot.public} --why TEXT --targets-key FILE" in revoked.err
    refused(site.admin("trust", "renew"), 2, "nothing to renew")
    keys = (*site.root_keys("alice"), "--targets-key", site.key("targets"))
    assert "signed root and targets anew" in done(site.admin("trust", "renew", *keys, "--apply"))
    done(site.admin("trust", "renew", "--targets-key", site.key("targets"), "--apply"))
    rows = json.loads(done(site.admin("trust", "show", "--json")))["rows"]
    assert {row["role"]: row.get("version") for row in rows}["root"] == 2


def test_how_long_a_namespace_s_revisions_count_is_signed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(site)
    words = ("trust", "max-age", "team", "1s", "--targets-key", site.key("targets"))
    refused(site.admin(*words), 2, "no root is pinned", "cachesvc login")
    pin(site, monkeypatch)
    for age in ("0", "soon", "-1d"):
        refused(site.admin(*words[:3], "--targets-key", site.key("targets"), "--", age), 2)
    assert "plan: revisions of team count for 1s" in done(site.admin(*words))
    assert "max-age" not in done(site.admin("trust", "show"))
    done(site.admin(*words, "--apply"))
    done(site.admin(*words[:2], "*", "30d", *words[4:], "--apply"))
    shown = done(site.admin("trust", "show"))
    assert "team: 1.0 s" in shown and "*: 30.0 d" in shown, shown
    done(site.admin("trust", "renew", "--targets-key", site.key("targets"), "--apply"))
    assert "team: 1.0 s" in done(site.admin("trust", "show")), "the next targets say it too"
    done(site.admin(*words[:3], "default", *words[4:], "--apply"))
    assert "team: " not in done(site.admin("trust", "show"))


def test_an_online_key_that_leaked_is_replaced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    init(site)
    pin(site, monkeypatch)
    words = ("trust", "rotate-online", *site.root_keys("alice"), "--apply")
    refused(site.admin(*words), 2, "comes from the settings", "CACHESVC_SERVER_ONLINE_KEY")
    assert site.server.stop() == 0
    site.key("online").unlink()
    SigningKey.generate().save(site.key("online"))
    site.server.options = ["--port", site.server.url.rpartition(":")[2]]
    site.server.start()
    assert "rotate-online" in site.admin("trust", "show").err
    assert "snapshot and timestamp" in done(site.admin(*words))
    shown = site.admin("trust", "show")
    assert "rotate-online" not in shown.err and shown.status == 0


def test_a_registry_of_one_machine_changes_its_own_keys_and_hands_them_over(
    embedded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, data = embedded, embedded.server.data
    first = site.folder / "out"
    first.mkdir()
    root = ok(site.server.api().http.get("/v1/trust/1.root.json"))
    (first / "root.json").write_text(json.dumps(root))
    key = (data / "root.key").read_text()
    assert "plan: " in done(site.admin("trust", "rotate-root"))
    assert (data / "root.key").read_text() == key
    for name in ("rotate-root", "rotate-online"):
        done(site.admin("trust", name, "--apply"))
    assert (data / "root.key").read_text() != key
    refused(
        site.admin("trust", "rotate-root", *site.root_keys("alice")), 2, "holds its own keys", "trust init"
    )
    refused(site.admin("trust", "renew", *site.root_keys("alice")), 2, "renews its own")
    other = SigningKey.generate().public
    refused(site.admin("trust", "delegate", "team", "--key", other), 2, "cachesvc admin signers add")
    refused(site.admin("trust", "max-age", "team", "9d"), 2, "put team=9d into CACHESVC_SERVER_MAX_AGE")
    leaked = SigningKey.generate()
    done(site.admin("signers", "add", leaked.public, "-n", "team"))
    done(site.admin("trust", "revoke", leaked.public, "--why", "on a laptop", "--apply"))
    revision = site.publish(site.server.key)
    assert site.attach("node")["installed"] == [revision]  # through all roots since the first
    pin(site, monkeypatch)
    words = ("trust", "init", *site.root_keys("alice"), "--targets-key", site.key("targets"), "--apply")
    refused(site.admin(*words), 2, "0 of 1 signatures by keys of root 3")
    out = done(site.admin(*words, "--old-root-key", data / "root.key"))
    assert "root.key and targets.key are not needed any more" in out
    seen = json.loads(done(site.admin("trust", "show", "--json")))["rows"]
    assert [row["keys"] for row in seen if row["role"] == "revoked"] == [[leaked.public]]
    done(site.admin("trust", "rotate-online", *site.root_keys("alice"), "--apply"))
    assert site.attach("node")["installed"] == [revision]


class OneAddress(Remote):
    """A replica behind the address of all: a node keeps one set of files for both."""

    @property
    def url(self) -> str:
        return "https://cache.example"


def test_two_replicas_on_postgresql_sign_one_line_of_metadata(
    tmp_path: Path,
    database: str,
    command: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They start together, and a client that asks now one and now the other goes on."""
    online = SigningKey.generate()
    token = "csv_" + "chosen-by-the-operator-" * 2
    variables = {
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_FIRST_TOKEN": token,
        "CACHESVC_SERVER_ONLINE_KEY": online.text,
    }
    servers = [Server(tmp_path / name / "data", env=variables, token=token) for name in ("one", "two")]
    for server in servers:
        server.data.parent.mkdir()
        server.start()
    site = machine(servers[0], tmp_path, command, monkeypatch)
    refused(site.admin("trust", "show"), 4, "cachesvc admin trust init")
    init(site)
    pin(site, monkeypatch)
    builder = SigningKey.generate()
    words = ("trust", "delegate", "team", "--key", builder.public, "--targets-key", site.key("targets"))
    done(site.admin(*words, "--apply"))
    root, store = tmp_path / "out" / "root.json", tmp_path / "node"
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(Server.stop, servers)) == [0, 0]
        list(threads.map(Server.start, servers))
    for server in (*servers, *reversed(servers)):
        with OneAddress(server.url, token) as remote:
            policy, warning = refresh_policy(root, store, remote)
        assert policy.keys == (builder.public,) and warning == ""
    assert [server.stop() for server in servers] == [0, 0]
