"""What warm seals says who built it; with the job's own token, the registry vouches for that."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesvc.warm.checkout import Checkout, find_checkout, source_uri
from cachesvc.warm.provenance import BuildOrigin
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import BuilderIdentity
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.names import Name, Target

from .conftest import TINY, allow_main, command

COMMIT = "c0ffee" * 6 + "beef"
SPEC = f"""\
name = "team/vouched"
[[target]]
id = "tiny"
factory = "models:tiny"
inputs = {{a = {{x = {{shape = [4, 8]}}}}}}
device = "cpu"
runs = 1
paths = ["{TINY}"]
[target.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
"""
FINGERPRINT = {"torch": "2.13.0", "cpu_flags": ["avx", "avx2"], "cpu_isa": "avx2"}


def checkout(folder: Path, url: str = "https://github.com/org/app.git") -> None:
    git = folder / ".git"
    (git / "refs/heads/feature").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/feature/x\n")
    (git / "refs/heads/feature/x").write_text(f"{COMMIT}\n")
    (git / "config").write_text(f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n\tfetch = x\n')


def test_a_run_of_a_checkout(tmp_path: Path) -> None:
    checkout(tmp_path)
    (tmp_path / "deep").mkdir()
    spec = tmp_path / "deep" / "warm.toml"
    spec.write_text(SPEC)
    origin = BuildOrigin.of(spec, {})
    name = Name.parse("team/vouched:v1")
    built = origin.provenance(name, None, Target("tiny"), FINGERPRINT, ("host",))
    assert (built.builder, built.source, built.ref) == ("cachesvc:local", None, "")
    found = built.named("checkout")
    assert found is not None
    assert (found.uri, found.commit) == ("git+https://github.com/org/app.git@refs/heads/feature/x", COMMIT)
    spec_row = built.named("spec")
    assert spec_row is not None and spec_row.digest == {"sha256": Digest.of(SPEC.encode()).hex}
    torch = built.named("torch")
    assert torch is not None and torch.uri.startswith("pkg:pypi/torch@2.")
    assert built.environment["cpu_isa"] == "avx2" and "cpu_flags" not in built.environment
    pack = PackRecord(Digest.of(b"pack"), 4)
    subject = origin.statement(built, pack)["subject"]
    assert subject == [{"name": "team/vouched:v1 tiny", "digest": {"sha256": pack.digest.hex}}]


def committed(folder: Path) -> Path:
    """Make a repository of one commit with a spec and a model; `.gitignore` ignores `ignored/`."""
    folder.mkdir()
    (folder / "warm.toml").write_text(SPEC)
    (folder / "model.py").write_text("size = 8\n")
    (folder / ".gitignore").write_text("ignored/\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder / "warm.toml"


def tree_facts(spec: Path) -> dict[str, Any]:
    checkout = (
        BuildOrigin.of(spec, {})
        .provenance(Name.parse("a/b"), None, Target("t"), FINGERPRINT, ())
        .named("checkout")
    )
    assert checkout is not None
    return checkout.annotations


def test_the_statement_says_whether_the_files_are_those_of_the_commit(tmp_path: Path) -> None:
    spec = committed(tmp_path / "app")
    (spec.parent / "ignored").mkdir()
    (spec.parent / "ignored" / "log").write_text("x")
    assert tree_facts(spec) == {"tree": "clean"}
    (spec.parent / "model.py").write_text("size = 9\n")
    (spec.parent / "new\x1b.py").write_text("")
    assert tree_facts(spec) == {"tree": "changed", "changes": 2, "changed": ["model.py", "new?.py"]}
    subprocess.run(["git", "add", "."], cwd=spec.parent, check=True)
    assert tree_facts(spec)["changes"] == 2, "what is staged is not of the commit"


def test_no_program_of_the_repository_runs_when_its_files_are_compared(tmp_path: Path) -> None:
    """The process has the signing key."""
    spec = committed(tmp_path / "app")
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    config = spec.parent / ".git" / "config"
    before = config.read_text()
    (spec.parent / ".gitattributes").write_text("*.py filter=x\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (hooks / hook).symlink_to(program)
    config.write_text(f"{before}[core]\n\tfsmonitor = {program}\n\thooksPath = {hooks}\n")
    (spec.parent / "model.py").write_text("size = 9\n")
    assert tree_facts(spec)["tree"] == "changed"
    for settings in (f'[filter "x"]\n\tclean = {program}\n', f"[Include]\n\tpath = {tmp_path}/more\n"):
        (tmp_path / "more").write_text(f'[filter "x"]\n\tclean = {program}\n')
        config.write_text(before + settings)
        assert tree_facts(spec) == {"tree": "unknown"}
    assert not ran.exists()


def test_without_git_nobody_says_how_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = committed(tmp_path / "app")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tree_facts(spec) == {"tree": "unknown"}


def test_an_identity_replaces_the_local_builder(tmp_path: Path) -> None:
    spec = tmp_path / "warm.toml"
    spec.write_text(SPEC)
    identity = BuilderIdentity(
        "https://ci/x", "git+https://ci/org/app@refs/heads/main", COMMIT, "https://ci/run/1"
    )
    origin = BuildOrigin("warm.toml", Digest.of(b""), identity=identity)
    built = origin.provenance(Name.parse("a/b"), None, Target("t"), FINGERPRINT, ())
    assert (built.builder, built.ref, built.invocation) == (
        "https://ci/x",
        "refs/heads/main",
        "https://ci/run/1",
    )


def test_what_git_keeps_elsewhere_is_found_and_damage_is_no_error(tmp_path: Path) -> None:
    checkout(tmp_path)
    git = tmp_path / ".git"
    settings = (git / "config", git / "config.worktree")
    expected = Checkout(COMMIT, "git+https://github.com/org/app.git@refs/heads/feature/x", tmp_path, settings)
    (git / "refs/heads/feature/x").unlink()
    (git / "packed-refs").write_text(
        f"# pack-refs\n{'0' * 40} refs/heads/main\n{COMMIT} refs/heads/feature/x\n"
    )
    assert find_checkout(tmp_path) == expected
    second = tmp_path / "second"
    (git / "worktrees/second").mkdir(parents=True)
    (git / "worktrees/second/HEAD").write_text("ref: refs/heads/feature/x\n")
    (git / "worktrees/second/commondir").write_text("../..\n")
    second.mkdir()
    (second / ".git").write_text(f"gitdir: {git / 'worktrees/second'}\n")
    found = find_checkout(second)
    assert found is not None
    assert found.settings == (git / "config", git / "worktrees/second/config.worktree")
    assert replace(found, root=tmp_path, settings=settings) == expected
    for head in (
        "ref: refs/heads/../../../etc/passwd",
        "ref: /etc/passwd",
        "",
        "junk",
        "ref: refs/heads/gone",
    ):
        (git / "HEAD").write_text(head)
        assert find_checkout(tmp_path) is None
    (git / "HEAD").unlink()
    assert find_checkout(tmp_path) is None


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("https://github.com/org/app", "git+https://github.com/org/app"),
        ("https://user:word@host:8443/a b", "git+https://host:8443/a%20b"),
        ("git@github.com:org/app.git", "git+ssh://github.com/org/app.git"),
        ("ssh://git@host/x?y#z", "git+ssh://host/x"),
        ("/srv/app", ""),
        ("file:///srv/app", ""),
        ("ext::sh -c id", ""),
        ("https://", ""),
        ("https://host:port/x", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_repository(url: str, uri: str) -> None:
    assert source_uri(url) == uri


@pytest.mark.compiles
def test_a_job_with_its_own_token_is_the_builder(registry, issuer, tmp_path: Path) -> None:
    allow_main(registry, issuer)
    checkout(tmp_path)
    (tmp_path / "warm.toml").write_text(SPEC)
    environ = {name: value for name, value in registry.items() if name != "CACHESVC_TOKEN"}
    arguments = command("warm", tmp_path / "warm.toml", "--oidc", "github")
    done = subprocess.run(
        arguments, env={**environ, **issuer.github()}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    requirement = f"builder={issuer.url}/org/app@*, ref=refs/heads/main"
    program = [sys.executable, "-m", "cachesvc"]

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *words], env={**registry, **variables}, capture_output=True, text=True, timeout=60
        )

    shown = run("explain", "team/vouched", "--provenance", "--json", CACHESVC_REQUIRE=requirement)
    assert shown.returncode == 0, shown.stderr
    [row] = json.loads(shown.stdout)["rows"]
    predicate = row["statement"]["predicate"]
    assert predicate["runDetails"]["builder"]["id"] == f"{issuer.url}/org/app@refs/heads/main"
    names = {one["name"]: one for one in predicate["buildDefinition"]["resolvedDependencies"]}
    assert names["checkout"]["digest"] == {"gitCommit": COMMIT} and "torch" in names
    refused = run("verify", "team/vouched", CACHESVC_REQUIRE=requirement.replace("main", "other"))
    assert refused.returncode == 7 and "refs/heads/main" in refused.stderr
    secrets = (issuer.request_secret, registry["CACHESVC_TOKEN"])
    assert not any(secret in shown.stdout for secret in secrets)
