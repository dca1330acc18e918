"""verify says who signed and built a bundle; explain --provenance and admin revisions show print it."""

from __future__ import annotations

import json
from dataclasses import replace

from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.wire.manifest.provenance import Dependency, Provenance

LOCAL = Provenance(
    builder="cachesvc:local",
    parameters={"name": "team/verified", "tag": "latest", "target": "bert/default"}
    | {"spec": {"name": "warm.toml", "sha256": "5bec" * 16}},
    environment={"torch": "2.13.0", "partition": "sha256:" + "0" * 64},
    dependencies=(
        Dependency("checkout", "git+https://github.com/org/app@refs/heads/main", {"gitCommit": "c0de" * 10}),
        Dependency("torch", "pkg:pypi/torch@2.13.0%2Bcpu"),
    ),
    invocation="urn:uuid:0",
    started="2026-01-01T00:00:00Z",
    finished="2026-01-01T00:01:00Z",
)
CI = replace(
    LOCAL,
    builder="https://github.com/org/app/.github/workflows/warm.yml@refs/heads/main",
    dependencies=(
        Dependency("source", "git+https://github.com/org/app@refs/heads/main", {"gitCommit": "ab" * 20}),
    ),
)
MAIN = "builder=https://github.com/org/app/*, ref=refs/heads/main"
OFFLINE = {"CACHESVC_URL": None, "CACHESVC_TOKEN": None}


def test_a_trusted_file_offline(command, bundle, registry):
    path = bundle("team/verified", provenance=CI)
    status, out, err = command("verify", path, CACHESVC_REQUIRE=MAIN, **OFFLINE)
    assert (status, err) == (0, ""), err
    for words in (
        f"{path}: trusted",
        "team/verified:latest",
        "bert/default",
        registry.trust.keyid,
        "every frame and file has the digest that was signed",
        CI.builder,
        f"git+https://github.com/org/app@refs/heads/main {'ab' * 20}",
        "warm.toml 5bec5bec",
        "trusted here for every namespace",
        f"{MAIN}: met",
        "never",
    ):
        assert words in out, (words, out)
    [row] = json.loads(command("verify", path, "--json", **OFFLINE)[1])["rows"]
    assert row["statement"]["predicate"]["runDetails"]["builder"]["id"] == CI.builder
    assert (row["signer"], row["trusted_for"], row["file_count"]) == (registry.trust, "*", 1)


def test_the_namespace_for_which_a_key_is_trusted(command, bundle, registry):
    trusted = {"CACHESVC_TRUSTED_KEYS": TrustedKey(f"team={registry.trust}")}
    path = bundle("team/verified")
    status, out, _ = command("verify", path, **trusted, **OFFLINE)
    assert status == 0 and "for namespace team" in out and "the revision does not say" in out
    status, out, err = command("verify", bundle("other/verified"), **trusted, **OFFLINE)
    assert (status, out) == (7, "") and "trusted for team only" in err and err.count("\n") == 1


def test_of_an_untrusted_file_nothing_but_the_key_is_said(command, bundle):
    stranger = SigningKey.generate()
    path = bundle("team/secret-name", provenance=CI, key=stranger)
    for more in ([], ["--json"]):
        status, out, err = command("verify", path, *more, **OFFLINE)
        assert (status, err.count("\n")) == (7, 1) and out == ""
        assert stranger.public.keyid in err and "not trusted" in err
        assert "secret-name" not in out + err and "github" not in out + err


def test_an_altered_file_is_told_apart(command, bundle):
    path = bundle("team/verified", content=b"kernel" * 100)
    whole = path.read_bytes()
    for altered, words in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "digest"),
        (whole[:-1], "bytes"),
        (whole + b"x", "bytes"),
        (whole.replace(b'"payload":"ey', b'"payload":"eY', 1), "does not match"),
        (whole[:200], "ends within its envelope"),
        (b"not a bundle", "does not begin"),
        (b"", "does not begin"),
    ):
        path.write_bytes(altered)
        status, out, err = command("verify", path, **OFFLINE)
        assert (status, out, err.count("\n")) == (7, "", 1), (words, out, err)
        assert words in err, err


def test_bad_input_is_one_line(command, bundle, tmp_path):
    for what, status, words in (
        (tmp_path / "absent.cachesvc", 4, "No such file"),
        (tmp_path, 4, "directory"),
        ("no name", 2, "neither a bundle file nor a name"),
        ("team/verified", 2, "no registry is configured"),
    ):
        code, out, err = command("verify", what, **OFFLINE)
        assert (code, out, err.count("\n")) == (status, "", 1), err
        assert words in err, err
    path = bundle("team/verified")
    code, _, err = command("verify", path, CACHESVC_TRUSTED_KEYS=None, **OFFLINE)
    assert code == 7 and "no key is trusted" in err
    code, _, err = command("verify", path, CACHESVC_REQUIRE="main", **OFFLINE)
    assert code == 2 and "CACHESVC_REQUIRE" in err and err.count("\n") == 1


def test_a_requirement_that_is_not_met(command, bundle):
    for made, words in (
        (bundle("team/v"), "nothing says"),
        (bundle("team/v", provenance=LOCAL), "cachesvc:local"),
    ):
        status, out, err = command("verify", made, CACHESVC_REQUIRE=MAIN, **OFFLINE)
        assert (status, out, err.count("\n")) == (7, "", 1)
        assert words in err and MAIN in err


def test_a_requirement_holds_for_pull_and_explain(command, bundle, tmp_path):
    command("push", bundle("team/required", provenance=LOCAL))
    required = {"CACHESVC_REQUIRE": MAIN}
    status, _, err = command("pull", "team/required", "--into", tmp_path / "into", **required)
    assert status == 7 and "cachesvc:local" in err and not list((tmp_path / "into").iterdir())
    status, out, _ = command("explain", "team/required", **required)
    assert status == 4 and "refused" in out and "cachesvc:local" in out
    assert command("explain", "team/required")[0] == 0


def test_what_a_name_offers_and_who_built_it(command, bundle, admin):
    made = bundle("team/shown", provenance=LOCAL)
    assert command("push", made)[0] == 0
    status, out, err = command("verify", "team/shown")
    assert (status, err) == (0, "") and "not on this node" in out
    status, out, err = command("explain", "team/shown", "--provenance")
    assert (status, err) == (0, "")
    for words in ("nobody vouches", "c0de" * 10, "warm.toml", "torch 2.13.0+cpu", "2026-01-01T00:00:00Z"):
        assert words in out, (words, out)
    [row] = json.loads(command("explain", "team/shown", "--provenance", "--json")[1])["rows"]
    assert row["statement"]["predicate"]["buildDefinition"]["buildType"] == LOCAL.build_type
    shown = admin("revisions", "show", row["revision"])
    assert "nobody vouches" in shown and "c0de" * 10 in shown
    record = json.loads(admin("revisions", "show", row["revision"], "--json"))
    assert record["provenance"]["statement"] == row["statement"] and record["builder"] == "cachesvc:local"
    assert MAIN in admin("namespaces", "set", "team", "--require", MAIN)
    try:
        status, _, err = command("push", bundle("team/shown", content=b"new", provenance=LOCAL))
        assert status == 7 and "requires" in err
    finally:
        assert MAIN not in admin("namespaces", "set", "team", "--require", "none")


def test_a_ci_identity_cannot_be_pushed(command, bundle):
    status, _, err = command("push", bundle("team/claimed", provenance=CI))
    assert status == 7 and "no job's" in err and CI.builder in err
