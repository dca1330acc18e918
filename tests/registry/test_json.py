"""Test the JSON of every command against its schema, which docs/reference has, with a real registry."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from admin_command import Admin
from registry_making import Server, make, ok

from cachesvc import cli
from cachesvc.queries.release import SUFFIX
from cachesvc.warm.checkout import Checkout
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.commands.cli import parser
from cachesvc_client.console.documents import TIMES, UNITS, format_of
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.manifest.provenance import ATTESTATION
from tools.json_page import ANSWERS, SCHEMA, schema
from tools.release_files import statement

CLAIM = ("--claim", "repository=org/app", "--claim", "repository_owner_id=1", "--claim", "repository_id=2")
COUNTS = {
    *("bound_bytes", "bytes", "keep_bytes", "quota_bytes", "compile_seconds"),
    *("checked", "collected", "count", "entries", "exit_status", "id", "inert_hosts", "left_out"),
    *("keep_days", "keep_revisions", "minutes", "names", "namespaces", "objects", "repaired", "revisions"),
    *("sequence", "starts", "threshold", "unused_days", "uploads", "version"),
    *("files_added", "files_changed", "files_removed", "files_same"),
    *("hit", "inert", "miss", "partial", "unused"),
    *("behind", "compilations", "days", "dead", "failures", "seconds", "tuning_runs", "waiting"),
    *("packs", "wait_seconds"),
}
"""Fields of numbers whose own names say what they count, or that have their unit."""


def with_json() -> set[str]:
    """Return every command of both programs that has ``--json``, but `warm` and `warm-report`."""
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    server = _server_commands("", typer.main.get_command(cli.app))
    return {*server, *_client_commands("", parser("cachesvc-client"))} - {"warm", "warm-report"}


def _server_commands(path: str, command: Any) -> set[str]:
    if hasattr(command, "commands"):
        inner = (_server_commands(f"{path} {name}".strip(), one) for name, one in command.commands.items())
        return set().union(*inner)
    return {path} if any("--json" in one.opts for one in command.params) else set()


def _client_commands(path: str, command: Any) -> set[str]:
    if command._subparsers is None:
        return {path} if "--json" in command._option_string_actions else set()
    choices = command._subparsers._group_actions[0].choices
    return set().union(*(_client_commands(f"{path} {name}".strip(), one) for name, one in choices.items()))


def test_every_command_with_json_has_a_schema() -> None:
    variants = {
        "ls entries",
        "show entry",
        "doctor hooks",
        "explain provenance",
        "oci pull mcv",
        "oci import mcv",
        "verify release",
    }
    assert set(ANSWERS) - variants == with_json()
    assert json.loads(SCHEMA.read_text()) == schema(), "run `make pages`"
    jsonschema.Draft202012Validator.check_schema(schema())


def _records(hint: Any, seen: set[type]) -> None:
    if isinstance(hint, dict):
        for one in hint.values():
            _records(one, seen)
    elif isinstance(hint, list):
        _records(hint[0], seen)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in seen:
        seen.add(hint)
        for one in typing.get_type_hints(hint).values():
            _records(one, seen)
    else:
        for one in typing.get_args(hint):
            _records(one, seen)


def test_no_number_of_an_answer_lacks_its_unit() -> None:
    """A new field of an answer needs a decision: a time, seconds, bytes or a count."""
    records: set[type] = set()
    _records(ANSWERS, records)
    assert len(records) > 40
    unknown = {
        f"{record.__name__}.{name}"
        for record in records
        for name, hint in typing.get_type_hints(record).items()
        if {int, float} & {hint, *typing.get_args(hint)}
        and name not in TIMES
        and name not in UNITS
        and name not in COUNTS
    }
    assert unknown == set()


class Site:
    """Runs commands with ``--json``, checks each answer against its schema, and notes which were checked."""

    def __init__(self, command: Admin) -> None:
        self._command = command
        self._definitions = schema()["$defs"]
        self.checked: set[str] = set()

    def validate(self, name: str, answer: Any) -> None:
        """Check an answer, and that none of its objects has a field that its schema does not name."""
        whole = json.loads(json.dumps({"$defs": self._definitions, **self._definitions[format_of(name)]}))
        for one in (whole, *whole["$defs"].values()):
            if "properties" in one:
                one["additionalProperties"] = False
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(whole, format_checker=checker).validate(answer)
        assert answer["format"] == format_of(name)
        self.checked.add(name)

    def __call__(self, words: str, *more: object, status: int = 0, name: str = "") -> Any:
        result = self._command(*words.split(), *more, "--json")
        assert result.status == status, (words, result)
        answer = result.json
        self.validate(name or words, answer)
        return answer


def test_every_answer_has_the_form_of_its_schema(
    command: Admin, own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run every command of both programs that has ``--json``, but those that need a registry of OCI, or keys
    of several holders: their answers have the types of `oci export`, `oci import` and `trust rotate-root`."""
    server = own_server.start()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CACHESVC_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CACHESVC_SIGNING_KEY", server.ready["signing_key"])
    monkeypatch.setenv("CACHESVC_URL", server.url)
    monkeypatch.setenv("CACHESVC_TOKEN", server.token)
    assert command("login", server.url, "--trust", server.ready["trust"]).status == 0
    run, key = Site(command), server.key
    here = detect()
    first = make(key, fingerprint=here, measured={"compile": 9.0, "steady": 0.002})
    second = make(key, fingerprint=here, content=b"another")
    ok(server.api().publish(first))
    ok(server.api().publish(second, first.revision))
    report = {
        "node": "5" * 32,
        "fingerprint": here,
        "revisions": [{"revision": second.revision, "state": "hit", "files": 1, "used": 1, "saved": 1.5}],
    }
    ok(server.api().http.post("/v1/reports", json=report))

    read_commands(run, first, second, tmp_path)
    change_commands(run, first, second, tmp_path)
    server.stop()
    local_commands(run, server)
    released = statement_of_release(server.key, tmp_path / "release")
    monkeypatch.setenv("CACHESVC_TRUSTED_KEYS", f"cachesvc={server.key.public}")
    assert run("verify", released, name="verify release")["rows"][0]["files"] == ["one.whl"]
    unchecked = {"trust", "oci"}
    assert {name for name in set(ANSWERS) - run.checked if not set(name.split()) & unchecked} == set()


def statement_of_release(key: SigningKey, folder: Path) -> Path:
    """Write a file and the signed statement about it, as `make release` does; return the statement."""
    folder.mkdir()
    (folder / "one.whl").write_bytes(b"one")
    checkout = Checkout("c0de" * 10, "git+https://github.com/org/cachesvc", Path("/"), ())
    path = folder / f"cachesvc{SUFFIX}"
    path.write_bytes(key.sign_bytes(canonical(statement([folder / "one.whl"], checkout)), ATTESTATION))
    return path


def read_commands(run: Site, first: Any, second: Any, folder: Path) -> None:
    """Run what changes nothing."""
    assert run("whoami")["role"] == "admin"
    assert run("stats", "--days", 3)["last_compiled"] is None
    assert run("doctor", "team/bert")["ok"]
    assert run("doctor --hooks", name="doctor hooks")["rows"]
    assert [row["name"] for row in run("ls", "team")["rows"]] == ["bert"]
    [entry] = run("ls", "team/bert", name="ls entries")["rows"]
    assert run("search", "team", "--target", "bert")["rows"] == [entry]
    assert run("show", "team/bert")["name"]["tags"] == ["latest"]
    assert len(run("show", entry["entry"], name="show entry")["revisions"]) == 2
    [judged] = run("explain", "team/bert")["entries"]
    assert judged["entry"]["usefulness"][0]["starts"]["hit"] == 1
    run("explain --provenance", "team/bert", name="explain provenance")
    run("coverage", "team/bert")
    run("environment")
    [pulled] = run("pull", "team/bert", "--into", folder / "into")["rows"]
    assert pulled["moved_bytes"] == pulled["bytes"] > 0
    run("verify", pulled["path"])
    [sent] = run("oci export", pulled["path"], folder / "layout")["rows"]
    assert sent["digest"].startswith("sha256:")
    run("oci import", folder / "layout", folder / "imported")
    run("cache size")
    assert run("misses")["rows"] == []
    [name] = run("admin names list")["rows"]
    assert name["tags"] == ["latest"]
    [entry] = run("admin entries list", "team")["rows"]
    assert entry["published"].endswith("Z") and entry["file_count"] == 1
    assert run("admin entries list", "team", "-o", "json") == run("admin entries list", "team")
    assert len(run("admin entries show", entry["entry"])["revisions"]) == 2
    assert len(run("admin revisions list", entry["entry"])["rows"]) == 2
    assert run("admin revisions show", first.revision)["measured_seconds"]["compile"] == 9.0
    run("admin revisions diff", first.revision, second.revision)
    assert run("admin stats")["saved_seconds"] == 1.5
    run("admin namespaces list")
    run("admin namespaces show", "team")
    run("admin trust show")
    run("admin trust rotate-root")
    run("admin trust rotate-online")
    run("admin audit")
    assert run("admin fsck", "--deep")["rows"] == []
    plan = run("admin gc")
    assert plan["applied"] is False and plan["collected"] is None and plan["summary"].startswith("would ")
    kept = "the newest 10 revisions of each entry, and all of 30 days, without --unused-days and --keep-bytes"
    assert plan["kept"] == f"team: {kept}", "an empty plan says why"


def change_commands(run: Site, first: Any, second: Any, folder: Path) -> None:
    """Run what changes something, and what shows the change."""
    token = run("admin tokens create", "--label", "ci", "-n", "team", "--role", "write")
    assert token["expires"].endswith("Z") and token["secret"]
    assert run("admin tokens rotate", token["token"], "--apply")["rows"][0]["previous_until"]
    assert run("admin tokens expire", token["token"], "--never", "--apply")["rows"][0]["expires"] is None
    run("admin tokens list")
    run("admin tokens revoke", token["token"], "--apply")
    policy = run("admin namespaces set", "team", "--quota", "none", "--keep-days", 7)["policy"]
    assert (policy["quota_bytes"], policy["keep_days"], policy["keep_bytes"]) == ("none", 7, "default")
    other = SigningKey.generate()
    run("admin signers add", other.public, "-n", "team")
    run("admin signers remove", other.public, "-n", "team")
    run("admin signers revoke", other.public, "--why", "leaked", "--apply")
    assert run("admin signers list")["revoked"][0]["revoked"].endswith("Z")
    issuer = ("--issuer", "github", "--audience", "https://cache.example", "-n", "team")
    rule = run("admin publishers add", *issuer, *CLAIM, "--lane", "pr-{number}")
    run("admin publishers list")
    run("admin publishers remove", rule["publisher"], "--apply")
    webhook = run("admin webhooks add", "https://hooks.invalid/events", "-n", "team")
    assert webhook["secret"] and webhook["created"].endswith("Z") and webhook["oldest"] is None
    assert run("admin webhooks list")["rows"][0]["secret"] is None
    outcome = run("admin webhooks test", webhook["webhook"], status=Unavailable.exit_status)
    assert outcome["delivered"] is False and outcome["said"]
    run("admin webhooks remove", webhook["webhook"], "--apply")
    run("admin revisions pin", first.revision)
    run("admin revisions unpin", first.revision)
    run("admin quarantine set", second.revision, "--why", "wrong", "--apply")
    run("admin quarantine list")
    run("admin quarantine release", second.revision)
    run("admin revisions rollback", first.revision)
    run("admin tag", "team/bert", "prod", "--apply")
    run("admin export", "team", "-o", folder / "team.export")
    run("admin import", folder / "team.export")
    run("admin revisions delete", first.revision, "--apply")
    stranger = make(SigningKey.generate(), target="stranger", fingerprint=detect())
    write_bundle(folder / "strange.cachesvc", stranger.envelope, _pack(folder, stranger.pack))
    files = [next((folder / "into").glob("*.cachesvc")), folder / "strange.cachesvc"]
    pushed = run("push", *files, status=7)
    assert len(pushed["rows"]) == 1 and pushed["refused"][0]["exit_status"] == 7
    run("admin entries delete", "team", "--apply")
    run("admin gc", "--apply")


def _pack(folder: Path, data: bytes) -> Path:
    path = folder / "pack"
    path.write_bytes(data)
    return path


def local_commands(run: Site, server: Server) -> None:
    """Run what works on the data folder itself."""
    run("admin --local --data", server.data, "migrate", name="admin migrate")
    run("admin --local --data", server.data, "doctor", name="admin doctor")
    backup = server.data.parent / "backup"
    made = run("admin --local --data", server.data, "backup", backup, name="admin backup")
    assert made["applied"] and made["created"].endswith("Z")
    run("admin --local --data", server.data.parent / "new", "restore", backup, name="admin restore")


def test_the_summary_of_a_command_line_mistake_is_json_too(tmp_path: Path) -> None:
    """Run the program as a shell does: Typer prints its own mistakes otherwise."""
    done = subprocess.run(
        [sys.executable, "-m", "cachesvc", "admin", "gc", "--aply", "--json"],
        env={"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, done.stdout, error["exit_status"]) == (2, "", 2)
    assert "--apply" in error["message"] or "--aply" in error["message"]
