"""Test ``doctor``: it prints one line for each fact that decides whether this environment can hit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.variables import KNOWN

LINE = re.compile(r"(ok|warn|fail) +\S.*")


def lines(out: str) -> dict[str, str]:
    """Return the last line of each subject."""
    subjects = {}
    for line in out.splitlines():
        assert LINE.fullmatch(line), line
        status, subject, text = re.split(r" {2,}", line, maxsplit=2)
        subjects[subject] = f"{status}: {text}"
    return subjects


def test_a_healthy_environment_has_no_warning(command, bundle, registry):
    command("push", bundle("team/healthy"))
    status, out, err = command("doctor", "team/healthy", OMP_NUM_THREADS="2")
    subjects = lines(out)
    assert (status, err) == (0, ""), out
    assert subjects["name"] == "ok: team/healthy:latest: 1 fit here, 0 do not"
    assert subjects["registry"].startswith(f"ok: {registry.url}: cachesvc ")
    assert subjects["token"] == "ok: admin on *"
    assert subjects["clock"].startswith("ok")
    assert registry.trust.keyid in subjects["trust"]
    assert subjects["threads"] == "ok: 2"


@pytest.mark.parametrize(
    ("variables", "subject", "expected"),
    [
        ({"CACHESVC_TOKEN": "csv_wrong"}, "registry", "fail: "),
        ({"CACHESVC_TOKEN": None}, "token", "fail: none (set CACHESVC_TOKEN"),
        (
            {"CACHESVC_URL": "http://127.0.0.1:9"},
            "registry",
            "fail: http://127.0.0.1:9: connection refused (is it running?",
        ),
        ({"CACHESVC_URL": None}, "registry", "warn: none is configured"),
        ({"CACHESVC_TRUSTED_KEYS": None}, "trust", "fail: no key is trusted"),
        ({"CACHESVC_MODE": "sideways"}, "configuration", "fail: CACHESVC_MODE"),
        ({"CACHESVC_MODE": "off"}, "mode", "warn: CACHESVC_MODE=off"),
        ({"CACHESVC_NAME": "team/never-published"}, "name", "fail: "),
        ({"CACHESVC_STORE": "/proc/store"}, "node store", "fail: "),
        ({"CACHESVC_SIGNING_KEY": "/absent"}, "signing key", "warn: signing key /absent: No such file"),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, "settings", "ok: TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"),
        (
            {"TORCHINDUCTOR_CACHE_DIR": "/proc/x"},
            "folders",
            "fail: TORCHINDUCTOR_CACHE_DIR=/proc/x: not writable",
        ),
        ({"PATH": "/nowhere"}, "compiler", "ok: none"),
        ({"CXX": "/bin/false"}, "compiler", "fail: /bin/false compiles nothing: exit status 1 (set CXX"),
        ({"OMP_NUM_THREADS": None}, "threads", "ok: not set"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "compiler", "INVALID_VEC_ISA"),
    ],
)
def test_a_fault_is_named_with_its_fix(command, variables, subject, expected):
    status, out, err = command("doctor", **variables)
    subjects = lines(out)
    assert expected in subjects[subject], out
    assert status == (1 if "\nfail" in "\n" + out else 0)
    assert err == ""
    for line in out.splitlines():
        assert not line.startswith(("warn", "fail")) or "(" in line or "allowed: " in line


def test_each_folder_for_the_store_is_shown_with_what_its_probe_said(command, tmp_path):
    home, named, temporary = tmp_path / "my home", tmp_path / "a$b", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    variables = {"HOME": str(home), "CACHESVC_STORE": str(named), "TMPDIR": str(temporary)}
    out = command("doctor", **variables)[1]
    shown = [line for line in out.splitlines() if re.match(r"\w+ +(candidate|node store)", line)]
    assert [line.split()[0] for line in shown] == ["warn", "warn", "ok", "fail"], out
    assert f"CACHESVC_STORE={named}: path the character '$'" in shown[0]
    assert f"{home}/.cache/cachesvc: path the character ' '" in shown[1]
    assert "load not tried" in shown[1] and "(not used)" in shown[1]
    assert f"{temporary}/cachesvc-{os.geteuid()}: path ok, owner ok, room ok, write ok, load ok" in shown[2]
    assert f"CACHESVC_STORE is not used: {named}: path: " in shown[3]
    assert not named.exists() and not (home / ".cache").exists()


def test_a_folder_that_is_only_probed_is_not_left_behind(command, tmp_path):
    (tmp_path / "tmp").mkdir()
    out = command("doctor", TMPDIR=str(tmp_path / "tmp"))[1]
    assert lines(out)["node store"].startswith("ok: "), out
    assert list((tmp_path / "tmp").iterdir()) == []


def test_caches_that_are_switched_off_are_a_failure(command):
    status, out, _ = command("doctor", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1", CI="true")
    assert status == 1
    assert "fail  settings" in out
    assert "warn  settings    CI=true (it alone changes PyTorch's AOT keys" in out


def test_with_bundles_no_registry_is_needed(command, bundle, tmp_path):
    (tmp_path / "bundles").mkdir()
    variables = {"CACHESVC_BUNDLE": str(tmp_path / "bundles"), "CACHESVC_URL": "http://127.0.0.1:9"}
    status, out, _ = command("doctor", **variables)
    assert (status, lines(out)["bundle"].startswith("fail")) == (1, True), out
    bundle("team/one", path=tmp_path / "bundles" / "one.cachesvc")
    subjects = lines(command("doctor", **variables)[1])
    assert subjects["bundle"] == f"ok: {tmp_path}/bundles: 1 of them, and no registry is asked"
    assert "registry" not in subjects


def test_an_entry_that_does_not_fit_is_reported_with_the_nearest_one(command, bundle):
    command("push", bundle("team/far", platform="linux-s390x"))
    status, out, _ = command("doctor", "team/far")
    assert status == 1
    assert "platform: here linux-" in lines(out)["name"]
    assert "warm on this platform" in lines(out)["name"]


def test_json_has_the_same_lines_and_the_fingerprint(command):
    status, out, _ = command("doctor", "--json", CACHESVC_TRUSTED_KEYS=SigningKey.generate().public)
    report = json.loads(out)
    assert report["ok"] is (status == 0)
    assert report["fingerprint"]["platform"] == f"linux-{os.uname().machine}"
    assert {check["status"] for check in report["checks"]} <= {"ok", "warn", "fail"}
    assert [check["what"] for check in report["checks"]][:4] == ["versions", "hooks", "gpu", "compiler"]


def test_a_login_file_that_others_may_read_is_refused(command, registry, tmp_path):
    assert command("login", registry.url, "--token", registry.token, "--trust", registry.trust)[0] == 0
    path = tmp_path / ".config/cachesvc/login.json"
    variables = {"CACHESVC_URL": None, "CACHESVC_TOKEN": None, "CACHESVC_TRUSTED_KEYS": None}
    _, out, _ = command("doctor", **variables)  # The login alone is enough.
    assert "login" not in lines(out)
    assert lines(out)["token"] == "ok: admin on *"
    path.chmod(0o644)
    status, out, _ = command("doctor", **variables)
    assert status == 1 and "chmod 600" in lines(out)["configuration"]


def test_login_stores_no_token_that_the_registry_refuses(command, registry, tmp_path):
    status, _, err = command("login", registry.url, "--token", "csv_wrong")
    assert status == 3
    assert "csv_wrong" not in err
    assert not (tmp_path / ".config").exists()


def test_a_mistyped_variable_is_named_by_doctor_and_in_the_log_of_a_service(command, log_of_a_service):
    status, out, _ = command("doctor", CACHESVC_DEADLIN="3", CACHESVC_FOO_BAR_BAZ="1")
    said = lines(out)["settings"]
    assert status == 0 and said.startswith("warn: ")
    assert "CACHESVC_DEADLIN does nothing" in said and "did you mean CACHESVC_DEADLINE?" in said
    assert "CACHESVC_FOO_BAR_BAZ does nothing, since cachesvc has no such variable: unset it" in said
    quiet = {"CACHESVC_SERVICE_HOST": "10.0.0.1", "CACHESVC_PORT": "tcp://10.0.0.1:80", "CACHESVC_LANE": ""}
    assert "settings" not in lines(command("doctor", **quiet)[1])
    first, *_ = log_of_a_service("team/none", CACHESVC_DEADLIN="3")
    assert "CACHESVC_DEADLIN does nothing" in first and "did you mean CACHESVC_DEADLINE?" in first


def test_doctor_knows_the_variables_that_are_documented():
    page = (Path(__file__).parents[2] / "docs/reference/variables.md").read_text()
    assert set(re.findall(r"^\| `(CACHESVC_\w+)`", page, re.MULTILINE)) == KNOWN


@pytest.fixture
def quarantined(command, bundle, registry):
    """Publish an entry that fits here, and have an operator withhold it."""
    command("push", bundle("team/withheld", content=b"withheld"))
    headers = {"Authorization": f"Bearer {registry.token}"}
    [entry] = httpx.get(f"{registry.url}/v1/namespaces/team/entries?name=withheld", headers=headers).json()
    url = f"{registry.url}/v1/revisions/{entry['revision']}/quarantine"
    answer = httpx.put(url, json={"why": "wrong numbers"}, headers=headers)
    assert answer.status_code < 300, answer.text


@pytest.mark.usefixtures("quarantined")
def test_explain_doctor_and_the_service_give_the_same_reason_for_a_quarantine(command, log_of_a_service):
    status, out, _ = command("explain", "team/withheld")
    assert status == 4, out
    assert out.splitlines()[0] == "team/withheld:latest: 0 of 1 entries fit here"
    assert out.splitlines()[1].split()[:2] == ["withheld", "bert/default"]
    reason = "quarantine: here withheld by an operator (wrong numbers)"
    assert reason in out.splitlines()[1]
    status, out, _ = command("doctor", "team/withheld")
    in_doctor = lines(out)["name"].removeprefix("fail: ")
    assert status == 1 and reason in in_doctor
    in_log = log_of_a_service("team/withheld")
    assert in_log == [f"cachesvc: team/withheld:latest: not restored, this process compiles: {in_doctor}"]


def test_explain_and_doctor_name_an_untrusted_signer(command, bundle):
    command("push", bundle("team/stranger"))
    trusted = {"CACHESVC_TRUSTED_KEYS": SigningKey.generate().public}
    status, out, _ = command("explain", "team/stranger", **trusted)
    assert status == 4 and out.splitlines()[1].split()[0] == "refused", out
    assert lines(command("doctor", "team/stranger", **trusted)[1])["name"].startswith("fail: ")


def test_doctor_prints_every_hook_of_the_installed_torch(command):
    status, out, _ = command("doctor", "--hooks")
    assert status == 0
    assert "there: torch._inductor.compile_fx.compile_fx\n    waits for the restore" in out
    assert "missing: torch" not in out and "no such module: torch" not in out, out
    status, out, _ = command("doctor", "--hooks", "--json")
    rows = json.loads(out)["rows"]
    assert {"module", "path", "purpose", "if_missing", "presence"} <= set(rows[0])


def test_a_bundle_without_a_trusted_key_says_which_variable_is_missing(bundle, tmp_path):
    path = bundle("team/alone")
    own = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import cachesvc_client; cachesvc_client.attach(bundle={str(path)!r}).wait(60)",
        ],
        env={**own, "HOME": str(tmp_path), "CACHESVC_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr.count("\n")) == (0, 1), result.stderr
    assert "no key is trusted (set CACHESVC_TRUSTED_KEYS" in result.stderr
