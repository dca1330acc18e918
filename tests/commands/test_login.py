"""Test ``login``, ``logout`` and ``whoami`` as a user types them, with two registries."""

from __future__ import annotations

import json
from pathlib import Path

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.login import Login

NO_VARIABLES = {"CACHESVC_URL": None, "CACHESVC_TOKEN": None, "CACHESVC_TRUSTED_KEYS": None}


def test_the_token_comes_from_standard_input(command, registry, tmp_path):
    status, out, err = command(
        "login", registry.url, "--token-stdin", typed=registry.token + "\n", **NO_VARIABLES
    )
    assert (status, err) == (0, "") and "admin on *" in out
    assert Login.read({"HOME": str(tmp_path)}).registries[registry.url].token == registry.token
    both = command("login", registry.url, "--token-stdin", "--token", "x", typed="y\n")
    assert both[0] == 2 and "one of them" in both[2]


def test_a_user_has_two_registries_and_leaves_them(command, registry, second_registry, tmp_path):
    for url, token in ((registry.url, registry.token), (second_registry.url, second_registry.token)):
        assert command("login", url, "--token-stdin", typed=token, **NO_VARIABLES)[0] == 0

    def whoami(**variables: str) -> dict:
        status, out, err = command("whoami", "--json", **{**NO_VARIABLES, **variables})
        assert status == 0, err
        return json.loads(out)

    assert whoami()["registry"] == second_registry.url, "the newest login is the default"
    other = whoami(CACHESVC_URL=registry.url)
    assert (other["registry"], other["role"], other["namespace"]) == (registry.url, "admin", "*")
    assert other["label"] == "first start" and other["token"].startswith("t-")
    status, out, _ = command("whoami", **NO_VARIABLES)
    assert status == 0 and f"{registry.url} (CACHESVC_URL chooses one)" in out
    facts = dict(line.split(None, 1) for line in out.splitlines())
    assert (facts["role"], facts["namespaces"], facts["expires"]) == ("admin", "all", "never")

    root = Login.read({"HOME": str(tmp_path)}).registries[second_registry.url].trust_root
    assert root is not None
    status, out, _ = command("logout", **NO_VARIABLES)
    assert status == 0 and second_registry.url in out and f"the default is now {registry.url}" in out
    assert whoami()["registry"] == registry.url
    left = Login.read({"HOME": str(tmp_path)}).registries[second_registry.url]
    assert (left.token, left.trusted_keys, left.trust_root) == (None, (), root), "the pin alone stays"
    typo = registry.url.replace("127.0.0.1", "127.0.0.2")
    status, _, err = command("logout", typo, **NO_VARIABLES)
    assert status == 4 and f"did you mean {registry.url}?" in err
    assert command("logout", registry.url, **NO_VARIABLES)[0] == 0
    assert command("logout", **NO_VARIABLES)[0] == 4
    status, _, err = command("whoami", **NO_VARIABLES)
    assert status == 2 and "cachesvc login URL" in err
    assert registry.token not in Path(tmp_path, ".config/cachesvc/login.json").read_text()


def test_a_login_under_another_name_of_this_machine_is_named(command, registry):
    assert command("login", registry.url, "--token-stdin", typed=registry.token, **NO_VARIABLES)[0] == 0
    spelt = {**NO_VARIABLES, "CACHESVC_URL": registry.url.replace("127.0.0.1", "localhost")}
    for words, status in (
        (("whoami",), 3),
        (("explain", "team/x"), 3),
        (("pull", "team/x", "--into", "y"), 7),
    ):
        result = command(*words, **spelt)
        assert result[0] == status and f"your login is for {registry.url}: use that URL" in result[2]
    elsewhere = {**NO_VARIABLES, "CACHESVC_URL": "http://localhost:1"}
    assert "your login" not in command("whoami", **elsewhere)[2]


def test_whoami_says_what_a_token_may_do(command, admin):
    made = json.loads(
        admin(
            "tokens",
            "create",
            "--label",
            "ci of team",
            "--role",
            "write",
            "-n",
            "team",
            "--lane",
            "pr-1",
            "--json",
        )
    )
    _, out, _ = command("whoami", CACHESVC_TOKEN=made["secret"])
    for part in (made["token"], "ci of team", "write", "team", "pr-1", "in 90.0 d", " UTC"):
        assert part in out
    assert made["secret"] not in out
    assert command("whoami", CACHESVC_TOKEN="csv_wrong")[0] == 3
    assert command("whoami", CACHESVC_TOKEN=None)[0] == 3


def test_the_signing_key_comes_from_a_variable(command, bundle, tmp_path):
    key = tmp_path / "my.key"
    public = command("keygen", key)[1].strip()
    path = bundle("team/by-variable")
    variables = {"CACHESVC_SIGNING_KEY": "env:CI_KEY", "CI_KEY": key.read_text()}
    status, out, err = command("doctor", **variables)
    assert f"the variable CI_KEY: {SigningKey.load(key).public.short}" in out, err
    # A push trusts the user's own key too: the bundle of another key needs no other trust.
    mine = bundle("team/by-variable", key=SigningKey.load(key))
    assert command("push", mine, CACHESVC_TRUSTED_KEYS=None, **variables)[0] == 7, (
        "the registry does not know it"
    )
    status, _, err = command("push", path, CACHESVC_SIGNING_KEY="env:NOTHING")
    assert status == 2 and "'NOTHING' is not set" in err and public not in err
    status, _, err = command("push", path, CACHESVC_SIGNING_KEY="env:CI_KEY", CI_KEY="secret-text")
    assert status == 2 and "CI_KEY: not a signing key" in err and "secret-text" not in err
    status, _, err = command("push", path, CACHESVC_SIGNING_KEY="key.pem")
    assert status == 2 and "an absolute path, or env:NAME" in err
