"""Test push, pull and explain against a real registry."""

from __future__ import annotations

import json
import os
import stat
import time

import pytest

from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey


def test_push_then_pull_gives_the_same_bundle(command, bundle, tmp_path, registry):
    path = bundle("team/round:v1")
    assert command("push", path)[:2] == (0, f"published  team/round:v1  bert/default  {size(path)}  {path}\n")
    assert "there already" in command("push", path)[1]
    status, out, err = command("pull", "team/round:v1", "--into", tmp_path / "image" / "bundles")
    assert (status, err) == (0, "")
    (pulled,) = (tmp_path / "image" / "bundles").iterdir()
    assert pulled.read_bytes() == path.read_bytes()
    assert pulled.name.startswith("bert-default-")
    assert str(pulled) in out
    assert registry.trust.keyid in out


def test_a_key_is_made_once_and_signs_for_nobody_until_an_admin_adds_it(command, bundle, tmp_path):
    status, public, err = command("keygen", tmp_path / "ci.key")
    assert (status, err) == (0, "")
    assert stat.S_IMODE((tmp_path / "ci.key").stat().st_mode) == 0o600
    key = SigningKey.load(tmp_path / "ci.key")
    assert public == f"{key.public}\n"
    status, out, err = command("keygen", tmp_path / "ci.key")
    assert (status, out) == (2, "") and "is not overwritten" in err
    assert SigningKey.load(tmp_path / "ci.key").public == key.public
    path = bundle("team/own-key", key=key)
    status, _, err = command("push", path, CACHESVC_SIGNING_KEY=str(tmp_path / "ci.key"))
    assert (
        status == 7 and key.public.keyid in err and "signers add" in err
    )  # An admin must add the key as a signer first.


def size(path):
    return f"{path.stat().st_size - open_bundle(path)[1]} B"


def test_a_second_pull_downloads_nothing_and_repairs_a_damaged_bundle(command, bundle, tmp_path):
    path = bundle("team/again", content=os.urandom(5000))
    command("push", path)
    pull = ("pull", "team/again", "--into", tmp_path / "into", "--json")
    (first,) = json.loads(command(*pull)[1])["rows"]
    assert first["moved_bytes"] == first["bytes"]
    (second,) = json.loads(command(*pull)[1])["rows"]
    assert second["moved_bytes"] == 0
    with open(first["path"], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    (third,) = json.loads(command(*pull)[1])["rows"]
    assert third["moved_bytes"] == third["bytes"]
    with open(first["path"], "rb") as file:
        assert file.read() == path.read_bytes()


def test_a_newer_revision_replaces_the_bundle(command, bundle, tmp_path):
    command("push", bundle("team/newer", content=b"old"))
    command("pull", "team/newer", "--into", tmp_path / "into")
    newer = bundle("team/newer", content=b"new")
    command("push", newer)
    command("pull", "team/newer", "--into", tmp_path / "into")
    (only,) = (tmp_path / "into").iterdir()
    assert only.read_bytes() == newer.read_bytes()


def test_tags_fall_back_if_the_caller_allows_it(command, bundle, tmp_path):
    command("push", bundle("team/tagged:latest"))
    status, _, err = command("pull", "team/tagged:abc123", "--into", tmp_path / "a")
    assert status == 4
    assert "latest" in err
    assert command("pull", "team/tagged:abc123", "--tag-fallback", "latest", "--into", tmp_path / "a")[0] == 0
    environment = {"CACHESVC_TAG_FALLBACK": "latest"}
    assert command("pull", "team/tagged:abc123", "--into", tmp_path / "b", **environment)[0] == 0


def test_an_entry_that_does_not_fit_is_reported_and_pulled_only_with_all(command, bundle, tmp_path):
    command("push", bundle("team/other", torch="2.11.0+cu130"))
    status, _, err = command("pull", "team/other", "--into", tmp_path / "into")
    assert status == 4
    assert "torch: here" in err
    assert "entry 2.11.0+cu130" in err
    assert list((tmp_path / "into").iterdir()) == []
    assert command("pull", "team/other", "--into", tmp_path / "into", "--all")[0] == 0
    assert len(list((tmp_path / "into").iterdir())) == 1


@pytest.mark.parametrize("differs", [{}, {"torch": "2.11.0+cu130"}])
def test_an_image_without_bundles_is_not_built_in_silence(command, admin, bundle, tmp_path, differs):
    """Also with ``--all``, and also if what is withheld would not fit here."""
    name = f"team/gone{len(differs)}"
    command("push", bundle(name, content=name.encode(), **differs))
    [row] = json.loads(admin("entries", "list", name, "--json"))["rows"]
    admin("quarantine", "set", row["revision"], "--why", "wrong numbers", "--apply")
    status, out, err = command("pull", name, "--all", "--into", tmp_path / "into")
    assert (status, out) == (4, "")
    assert "withheld by an operator (wrong numbers)" in err and err.count("\n") == 1


def test_untrusted_signers_and_old_bundles_are_refused(command, bundle, tmp_path, registry):
    stranger = SigningKey.generate()
    status, _, err = command("push", bundle("team/signed", key=stranger))
    assert (status, "not trusted" in err) == (7, True)
    status, _, err = command(
        "push", bundle("team/signed", key=stranger), CACHESVC_TRUSTED_KEYS=stranger.public
    )
    assert (status, "not trusted" in err) == (7, True)  # The registry's reason.
    now = time.time_ns() // 1_000_000
    command("push", bundle("team/signed", content=b"new", sequence=now))
    status, _, err = command("push", bundle("team/signed", content=b"old", sequence=now - 1000))
    assert status == 5, err
    status, _, err = command(
        "pull", "team/signed", "--into", tmp_path / "x", CACHESVC_TRUSTED_KEYS=stranger.public
    )
    assert status == 7
    assert registry.trust.keyid in err
    assert list((tmp_path / "x").iterdir()) == []
    status, _, err = command("pull", "team/signed", "--into", tmp_path / "x", CACHESVC_TRUSTED_KEYS=None)
    assert (status, "no key is trusted" in err) == (7, True)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "absent"])
def test_damaged_bundles_are_not_published(command, bundle, tmp_path, damage):
    path = bundle(f"team/{damage}", content=os.urandom(3000))
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-10])
    elif damage == "flip":
        path.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    good = bundle(f"team/{damage}-good", path=tmp_path / "good.cachesvc")
    status, out, err = command("push", path, good)
    assert status in (4, 7)
    assert err.startswith(f"error: {path}: ")
    assert len(err.splitlines()) == 1
    assert "published" in out  # The good bundle is published all the same.
    assert command("explain", f"team/{damage}")[0] == 4


def test_lanes_are_visible_from_their_lane_only(command, bundle, tmp_path):
    assert command("push", bundle("team/lane", lane="pr-1"))[0] == 0
    assert command("pull", "team/lane", "--into", tmp_path / "trunk")[0] == 4
    assert command("pull", "team/lane", "--into", tmp_path / "lane", CACHESVC_LANE="pr-1")[0] == 0


def test_explain_factor_by_factor(command, bundle):
    command("push", bundle("team/why", "fits/here"))
    command("push", bundle("team/why", "other/cpu", cpu_isa="neon", cpu_flags=["asimd"], cpu_model="other"))
    command("push", bundle("team/why", "other/all", torch="2.11.0", cpu_isa="neon", platform="linux-aarch64"))
    status, out, err = command("explain", "team/why")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "team/why:latest: 1 of 3 entries fit here"
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["fits", "fits/here"],
        ["differs", "other/cpu"],
        ["differs", "other/all"],
    ]
    assert lines[5] == "factor by factor, other/cpu (nearest that does not fit):"
    table = {line.split()[0]: line.split("  ")[-1] for line in lines[7 : lines.index("to fix:")] if line}
    assert list(table)[:3] == ["cpu_isa", "cpu_flags", "cpu_model"], "the factors that differ come first"
    assert table["torch"] == "same"
    assert table["cpu_isa"] == "differs"
    assert table["libc"] == "enough"
    fix = "  cpu_isa: warm under the same ATEN_CPU_CAPABILITY and CPU generation; "
    assert any(line.startswith(fix) for line in lines)
    answer = json.loads(command("explain", "team/why", "--json")[1])
    nearest = answer["entries"][1]
    assert nearest["fits"] is False
    assert [difference["factor"] for difference in nearest["differences"]] == ["cpu_isa", "cpu_flags"]
    verdicts = {row["factor"]: row["verdict"] for row in nearest["factors"]}
    assert verdicts["cpu_isa"] == "differs"
    assert verdicts["cpu_model"] == "differs, decides nothing"


def test_explain_one_target_for_another_environment(command, bundle, tmp_path):
    graphs = {"dtype": ["float32"], "shapes": ["4x8"], "operations": ["linear x1"]}
    command("push", bundle("team/elsewhere", "bert/float32", graphs=graphs))
    command("push", bundle("team/elsewhere", "vit/float32"))
    doctor = json.loads(command("doctor", "--json")[1])
    here = tmp_path / "here.json"
    here.write_text(json.dumps(doctor))
    status, out, _ = command("explain", "team/elsewhere", "--target", "bert", "--here", here)
    assert status == 0 and out.splitlines()[0] == "team/elsewhere:latest: 1 of 1 entries fit here"
    facts = {**doctor["fingerprint"], **graphs, "dtype": ["bfloat16"], "shapes": ["6x8"]}
    here.write_text(json.dumps({"facts": facts}))
    status, out, _ = command("explain", "team/elsewhere", "--target", "bert", "--here", here)
    lines = out.splitlines()
    assert status == 0, "cachesvc does not decide by the contents of PyTorch's keys"
    assert "dtype: here bfloat16, entry float32; shapes: here 6x8, entry 4x8" in lines[1]
    assert lines[lines.index("to fix:") + 1].startswith("  dtype: warm this dtype too")
    here.write_text(json.dumps({**facts, "torch": "2.11.0"}))
    status, out, _ = command("explain", "team/elsewhere", "--target", "bert/float32", "--here", here)
    assert status == 4 and "to fix:\n  torch: install the torch" in out


def test_explain_shows_a_factor_that_only_a_newer_builder_knows(command, bundle):
    command("push", bundle("team/newer", colour="red", shades=["dark", "x" * 5000]))
    status, out, _ = command("explain", "team/newer")
    assert status == 0 and "not compared: this client does not know it" in out
    command("push", bundle("team/newest", schema=99, colour="red"))
    status, out, _ = command("explain", "team/newest")
    assert status == 4 and "schema: upgrade cachesvc-client" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "no factor"),
        ('{"fingerprint": {"torch": {"deep": 1}}}', "no factor"),
        ('{"fingerprint": 3}', "no factor"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_explain_refuses_a_malformed_environment(command, tmp_path, text, message):
    here = tmp_path / "here.json"
    if text is not None:
        here.write_text(text)
    status, _, err = command("explain", "team/x", "--here", here)
    assert status == 2 and message in err and str(here) in err and len(err.splitlines()) == 1


def test_explain_of_a_missing_target_is_an_error(command, bundle):
    command("push", bundle("team/targets", "bert/float32"))
    status, _, err = command("explain", "team/targets", "--target", "ber")
    assert status == 4 and "it has: bert/float32" in err and len(err.splitlines()) == 1


def test_explain_of_a_missing_name_is_an_error(command, bundle):
    status, _, err = command("explain", "team/nothing")
    assert status == 4
    assert "team/nothing" in err
    assert len(err.splitlines()) == 1
    command("push", bundle("team/unfit", platform="linux-s390x"))
    status, out, _ = command("explain", "team/unfit")
    assert status == 4
    assert "platform: warm on this platform" in out


@pytest.mark.parametrize(
    ("words", "variables", "status", "message"),
    [
        (("pull", "team/x", "--into", "d"), {"CACHESVC_TOKEN": "csv_wrong"}, 3, "token"),
        (("pull", "team/x", "--into", "d"), {"CACHESVC_URL": "http://127.0.0.1:9"}, 6, "refused"),
        (("pull", "team/x", "--into", "d"), {"CACHESVC_URL": None}, 2, "CACHESVC_URL"),
        (("pull", "team/x", "--into", "d"), {"CACHESVC_URL": "ftp://x"}, 2, "CACHESVC_URL"),
        (("pull", "Team/x", "--into", "d"), {}, 2, "namespace"),
        (("pull", "team/x", "--into", "/proc/x"), {}, 6, "/proc/x"),
        (("push", "absent.cachesvc"), {"CACHESVC_URL": None}, 4, "absent"),
        (("explain", "team/x"), {"CACHESVC_DEADLINE": "soon"}, 2, "CACHESVC_DEADLINE"),
        (("frobnicate",), {}, 2, "frobnicate"),
    ],
)
def test_bad_input_is_one_clear_line(command, words, variables, status, message):
    actual_status, _, err = command(*words, **variables)
    assert (actual_status, message in err.splitlines()[-1]) == (status, True), err
    assert "Traceback" not in err


def test_without_a_login_the_registry_is_missing_and_not_a_key(command, tmp_path):
    nothing = dict.fromkeys(("CACHESVC_URL", "CACHESVC_TOKEN", "CACHESVC_TRUSTED_KEYS"))
    for words in (("pull", "team/x", "--into", tmp_path / "into"), ("verify", "team/x")):
        status, out, err = command(*words, **nothing)
        assert (status, out) == (2, "") and "no registry is configured" in err and "login URL" in err, err
    assert not (tmp_path / "into").exists()


def test_a_url_without_a_login_names_itself_and_the_login_that_there_is(command, registry, tmp_path):
    nothing = dict.fromkeys(("CACHESVC_URL", "CACHESVC_TOKEN", "CACHESVC_TRUSTED_KEYS"))
    status, _, err = command("login", registry.url, "--token-stdin", typed=registry.token, **nothing)
    assert status == 0, err
    typo = "http://127.0.0.1:1"
    status, _, err = command(
        "pull", "team/x", "--into", tmp_path / "into", **{**nothing, "CACHESVC_URL": typo}
    )
    assert (
        status == 7 and f"no key is trusted for {typo}" in err and f"your login is for {registry.url}" in err
    )


def test_a_file_in_the_place_of_the_folder_and_the_reverse(command, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    status, _, err = command("pull", "team/x", "--into", file)
    assert status == 2 and f"{file}: is a file (name a folder" in err
    (tmp_path / "folder").mkdir()
    status, _, err = command("verify", "folder")
    assert status == 2 and "is a folder (name its bundle files" in err


def test_a_push_that_fails_prints_one_line_with_the_file_once(command, tmp_path):
    status, out, err = command("push", tmp_path / "absent.cachesvc")
    assert (status, out, err.count("absent.cachesvc"), err.count("\n")) == (4, "", 1, 1), (out, err)


def test_the_table_of_a_pull_fits_the_terminal(command, bundle):
    assert command("push", bundle("team/narrow"))[0] == 0
    status, out, err = command("pull", "team/narrow", "--into", "b", COLUMNS="80")
    assert status == 0, err
    assert max(map(len, out.splitlines())) <= 80 and "b/" in out, out
