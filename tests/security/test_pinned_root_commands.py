"""What operators and builders with a pinned root accept and sign. The attacker has a key that was removed, or
the registry, which goes on to show what that key signed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_making import Publication, Server, make, ok

from cachesvc import cli
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from tests.e2e.registries import client

from .signer_programs import REPOSITORY

Run = Callable[..., tuple[int, str]]
"""Runs ``cachesvc`` with some words and variables: (exit status, output)."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


@pytest.fixture(scope="module")
def root(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the pinned root."""
    return str(server.pin_root(tmp_path_factory.mktemp("home")))


@pytest.fixture
def run(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs ``cachesvc`` in this process, with the first token and no key."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)
    for name in [name for name in os.environ if name.startswith("CACHESVC_")]:
        monkeypatch.delenv(name)
    variables = {"XDG_CONFIG_HOME": tmp_path, "CACHESVC_STORE": tmp_path / "store"}
    variables |= {"CACHESVC_URL": server.url, "CACHESVC_TOKEN": server.token}

    def run_words(*words: object, **more: object) -> tuple[int, str]:
        capfd.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            for name, value in {**variables, **more}.items():
                patch.setenv(name, str(value))
            patch.setattr(sys, "argv", ["cachesvc", *map(str, words)])
            cli.main()
        return int(ended.value.code or 0), "".join(capfd.readouterr())

    return run_words


@pytest.fixture
def team() -> str:
    return "n" + os.urandom(6).hex()


def publish(server: Server, key: SigningKey, team: str, head: Publication | None = None, **more: Any):
    made = make(key, namespace=team, name="good", **more)
    ok(server.api().publish(made, head.revision if head else None))
    return made


def signers(server: Server, deed: str, key: PublicKey, team: str) -> None:
    row = {"namespace": team, "key": key}
    http = server.api().http
    ok(http.post("/v1/signers", json=row) if deed == "add" else http.delete("/v1/signers", params=row))


@pytest.fixture
def removed(server: Server, team: str) -> SigningKey:
    """A key that signed two revisions of ``team/good``, the second of them the head, and was removed then."""
    key = SigningKey.generate()
    signers(server, "add", key.public, team)
    publish(server, key, team, publish(server, key, team), content=b"second")
    signers(server, "remove", key.public, team)
    return key


def revisions(server: Server, team: str) -> list[dict[str, Any]]:
    [entry] = ok(server.api().http.get("/v1/entries", params={"namespace": team}))["rows"]
    return ok(server.api().http.get(f"/v1/entries/{entry['entry']}/revisions"))


def test_an_operator_with_an_old_list_of_keys_signs_no_bytes_of_a_removed_signer(
    server: Server, root: str, run: Run, removed: SigningKey, team: str
) -> None:
    old = next(row["revision"] for row in revisions(server, team) if not row["head"])
    operator = {
        "CACHESVC_SIGNING_KEY": server.ready["signing_key"],
        "CACHESVC_TRUSTED_KEYS": f"{server.key.public},{removed.public}",
    }
    for words in (("tag", f"{team}/good", "prod"), ("revisions", "rollback", old)):
        status, said = run("admin", *words, **operator)
        assert status == 0 and "nothing was changed" in said, "without a pinned root the list decides"
        status, said = run("admin", *words, "--apply", **operator, CACHESVC_TRUST_ROOT=root)
        assert status == 7 and f"signed by key {removed.public.short}, which {server.url} revoked" in said, (
            said
        )
    assert len(revisions(server, team)) == 2


def test_an_operator_s_key_that_the_root_does_not_name_signs_nothing(
    server: Server, root: str, run: Run, team: str, tmp_path: Path
) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "key")
    old = publish(server, server.key, team)
    publish(server, server.key, team, old, content=b"second")
    own = {"CACHESVC_SIGNING_KEY": tmp_path / "key", "CACHESVC_TRUST_ROOT": root}
    for words in (("tag", f"{team}/good", "prod"), ("revisions", "rollback", old.revision)):
        status, said = run("admin", *words, **own)
        assert status == 7 and "services would refuse what this key signs" in said, said
        assert f"signers add {key.public} -n {team}" in said and said.count("\n") == 1, said
    signers(server, "add", key.public, team)
    status, said = run("admin", "tag", f"{team}/good", "prod", **own)
    assert status == 0 and "tag 1 of 1 entry" in said, said


def test_the_root_alone_lets_an_operator_sign_with_a_program(
    server: Server, root: str, run: Run, team: str, tmp_path: Path
) -> None:
    """No key is on the operator's machine: openssl signs, and the root says whose signatures count."""
    pem = tmp_path / "operator.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", pem], check=True)
    program = f"{REPOSITORY / 'examples/signer/openssl.sh'} {pem}"
    public = subprocess.run([*program.split(), "public-key"], capture_output=True, text=True, check=True)
    signers(server, "add", PublicKey(public.stdout.strip()), team)
    publish(server, server.key, team)
    pinned = {"CACHESVC_TRUST_ROOT": root, "CACHESVC_SIGNER": f"cmd:{program}"}
    status, said = run("admin", "tag", f"{team}/good", "prod", "--apply", **pinned)
    assert status == 0 and "published" in said, said
    [tagged] = ok(server.api().resolve(team, "good", tags=["prod"]))["revisions"]
    shown = ok(server.api().http.get(f"/v1/revisions/{tagged['revision']}"))
    assert shown["signer"] == public.stdout.strip()
    status, said = run(
        "pull", f"{team}/good:prod", "--all", "--into", tmp_path / "out", CACHESVC_TRUST_ROOT=root
    )
    assert status == 0, said


def test_a_removed_signer_s_export_is_not_imported(
    server: Server, root: str, run: Run, team: str, tmp_path: Path
) -> None:
    key, out = SigningKey.generate(), tmp_path / "team.tar"
    signers(server, "add", key.public, team)
    publish(server, key, team)
    status, said = run("admin", "export", team, "-o", out, CACHESVC_TRUST_ROOT=root)
    assert status == 0 and "left out" not in said, said
    trust = ("--trust", f"{team}={key.public}")
    status, said = run("admin", "import", out, *trust, CACHESVC_TRUST_ROOT=root)
    assert status == 0 and "same" in said, said
    signers(server, "remove", key.public, team)
    assert run("admin", "import", out, *trust)[0] == 0, "without a pinned root the list decides"
    status, said = run("admin", "import", out, *trust, CACHESVC_TRUST_ROOT=root)
    assert status == 7 and "revoked on" in said, said


def test_an_export_leaves_out_what_services_would_refuse(
    server: Server, root: str, run: Run, team: str, tmp_path: Path
) -> None:
    names = ("offered", "quarantined", "removed", "revoked")
    keys = {name: SigningKey.generate() for name in names}
    made = {}
    for name, key in keys.items():
        signers(server, "add", key.public, team)
        made[name] = make(key, namespace=team, name=name, content=name.encode())
        ok(server.api().publish(made[name]))
    http = server.api().http
    ok(http.put(f"/v1/revisions/{made['quarantined'].revision}/quarantine", json={"why": "wrong numbers"}))
    signers(server, "remove", keys["removed"].public, team)
    ok(http.post("/v1/revocations", json={"key": keys["revoked"].public, "namespace": team, "why": "leaked"}))
    out, left_out = tmp_path / "team.tar", f"left out: {team}/"
    for variables in ({}, {"CACHESVC_TRUST_ROOT": root}):
        status, said = run("admin", "export", team, "-o", out, **variables)
        assert status == 0 and "1 revision of" in said and said.count(left_out) == 3, said
        for reason in (
            "quarantined:latest: withheld by an operator (wrong numbers)",
            "removed:latest: withheld by an operator (its signer was removed)",
            "revoked:latest: its signer was revoked: leaked",
        ):
            assert f"{left_out}{reason}\n" in said, said
        status, said = run("admin", "export", team, "--withheld", "-o", out, **variables)
        assert status == 0 and "4 revisions of" in said and left_out not in said, said
    requirement = {"require": "builder=https://github.com/org/*"}
    ok(http.put(f"/v1/namespaces/{team}/require", json=requirement))
    status, said = run("admin", "export", f"{team}/offered", "-o", tmp_path / "none.tar")
    assert status == 4 and "nothing says who built it; the namespace requires" in said, said
    assert not (tmp_path / "none.tar").exists()


def test_a_pushed_bundle_of_a_removed_signer_goes_nowhere(
    server: Server, root: str, run: Run, team: str, removed: SigningKey, tmp_path: Path
) -> None:
    for key, status, words in ((removed, 7, "revoked on"), (server.key, 0, "published")):
        made = make(key, namespace=team, name="other")
        (tmp_path / "pack").write_bytes(made.pack)
        write_bundle(tmp_path / "b.cachesvc", made.envelope, tmp_path / "pack")
        pushed, said = run("push", tmp_path / "b.cachesvc", CACHESVC_TRUST_ROOT=root)
        assert pushed == status and words in said, said


def test_a_builder_whose_key_the_root_does_not_name_compiles_nothing(
    server: Server, root: str, team: str, tmp_path: Path
) -> None:
    SigningKey.generate().save(tmp_path / "key")
    spec = f'name = "{team}/good"\n[[target]]\nid = "x"\nfactory = "no_such_module:f"\n'
    (tmp_path / "warm.toml").write_text(spec)
    url = {"CACHESVC_URL": server.url, "CACHESVC_TOKEN": server.token, "HOME": str(tmp_path)}
    own = {"CACHESVC_SIGNING_KEY": str(tmp_path / "key"), "CACHESVC_TRUST_ROOT": root}
    done = client("warm", str(tmp_path / "warm.toml"), **url, **own)
    assert done.returncode == 7 and done.stdout == "", done
    assert done.stderr.count("\n") == 1 and "services would refuse what this key signs" in done.stderr
