"""Whoever chooses a text that a client or an operator is shown chooses what one line says, and nothing else.

There is no line of its own in a log or a terminal, no escape sequence, and no other direction of writing."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesvc.api.logs import TEXT, JsonLines, TextLines
from cachesvc.cli import main as server_main
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.commands import cli
from cachesvc_client.commands.doctor import Check
from cachesvc_client.commands.doctor import render as render_checks
from cachesvc_client.console.tables import aligned
from cachesvc_client.outcome.show_log import _OneLine
from cachesvc_client.queries.explain import judge
from cachesvc_client.queries.explain import render as render_explanation
from cachesvc_client.queries.provenance import ProvenanceRow, render_provenance
from cachesvc_client.restore.accept import nothing_offered
from cachesvc_client.trust_root.signed import SignedFile
from cachesvc_client.wire import codec
from cachesvc_client.wire.compare import Difference, inert_difference, revoked_difference
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, from_wire
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import EntrySummary, Rejected, ResolveAnswer

from .hostile_registry import VALID, HostileRegistry, hostile_registry, record_with

HOSTILE = "\n\r\x1b\x07\x00\x7f\x85\x9b\u200b\u200f\u202e\u2066\u2028\ud800\udfff\ufeff"
"""Ends of lines, control characters of terminals, characters that turn the direction of writing, halves of
characters."""
FORGED = [
    "no\nWARNING:root:forged line\r\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe\u2066\u2028\x85next\x9b31m",
    "\ud800 half\x00\x7f\ufeff",
]
texts = st.text(st.sampled_from(HOSTILE + "ab: %s{}[/]é…"), max_size=40)


def harmless(text: str) -> str:
    """The text of the same length that says nothing to a terminal."""
    return "".join(char if char.isprintable() else "x" for char in text)


def error(text: str) -> str:
    return str(CacheSvcError(text, text))


def error_of_an_answer(text: str) -> str:
    return str(from_wire(403, {"error": {"code": "forbidden", "message": text, "hint": text}}))


def differences(text: str) -> str:
    row = Difference(text, text, text, True, text)
    rows = [row, inert_difference(text, text), revoked_difference(text, text)]
    return "\n".join(f"{row} {row.advice} {row.fix}" for row in rows)


def rejected(text: str) -> str:
    row = codec.build(Rejected, record_with(Rejected, text))
    return str(nothing_offered(Name.parse("team/bert"), [row]))


def explained(text: str) -> str:
    row = codec.build(EntrySummary, record_with(EntrySummary, text))
    answer = codec.build(ResolveAnswer, {**record_with(ResolveAnswer, text), "revisions": []})
    kept_out = {row.entry: ("withheld", answer.rejected[0].differences[0])}
    return render_explanation(judge("team/bert", {"torch": text, "gpu": text}, [row], None, kept_out))


def table(text: str) -> str:
    return aligned([(text, text), ("a", text)])


def checks(text: str) -> str:
    return render_checks([Check("fail", text, text, text)])


def provenance(text: str) -> str:
    revision = codec.build(EntrySummary, record_with(EntrySummary, "x")).entry
    return render_provenance([ProvenanceRow(text, revision, text, text)])


def metadata(text: str) -> str:
    for raw in (text.encode("utf-8", "replace"), json.dumps({"signed": {text: text}, text: 1}).encode()):
        try:
            SignedFile.parse(raw, limit=1 << 20, what=text)
        except CacheSvcError as refused:
            return str(refused)
    return ""


def log_of_the_client(text: str) -> str:
    return _OneLine().format(_record(text))


def log_of_the_server(text: str) -> str:
    return TextLines(TEXT).format(_record(text))


def json_log_of_the_server(text: str) -> str:
    return JsonLines().format(_record(text))


def _record(text: str) -> logging.LogRecord:
    record = logging.LogRecord(
        "cachesvc", logging.WARNING, "file", 1, "%s: %s", (text, ValueError(text)), None
    )
    record.created = 0.0
    return record


SHOWN = [
    error,
    error_of_an_answer,
    differences,
    rejected,
    explained,
    table,
    checks,
    provenance,
    metadata,
    log_of_the_client,
    log_of_the_server,
    json_log_of_the_server,
]


def demand_same_lines(shown: str, benign: str) -> None:
    """Demands printable lines, as many as a harmless text gives."""
    for line in shown.split("\n"):
        assert line.isprintable(), line
    assert len(shown.split("\n")) == len(benign.split("\n")), shown


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_a_hostile_text_stays_within_its_line(show: Callable[[str], str], text: str) -> None:
    demand_same_lines(show(text), show(harmless(text)))


@pytest.mark.parametrize("text", FORGED)
def test_an_exception_in_the_servers_log_begins_no_line_of_the_log(text: str) -> None:
    record = _record("x")
    try:
        raise ValueError(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *others = TextLines(TEXT).format(record).split("\n")
    assert first.isprintable() and others
    assert all(line.startswith("  ") and line.isprintable() for line in others), others


COMMANDS = [
    "admin tokens list",
    "admin tokens create --label x -n team",
    "admin tokens expire t-1 --now",
    "admin tokens expire t-1 --now --apply",
    "admin signers list",
    "admin signers add {key} -n team",
    "admin signers revoke {key}",
    "admin signers revoke {key} --apply",
    "admin publishers list",
    "admin publishers add -n team --issuer github --audience https://c --claim repository=a --claim ref=b",
    "admin publishers remove p-1 --apply",
    "admin webhooks list",
    "admin webhooks add https://hooks.example/ -n team",
    "admin webhooks test w-1",
    "admin webhooks remove w-1 --apply",
    "admin namespaces list",
    "admin namespaces show team",
    "admin namespaces set team --quota 1GiB",
    "admin names list team",
    "admin entries list",
    "admin entries show {digest}",
    "admin entries delete team",
    "admin revisions list {digest}",
    "admin revisions show {digest}",
    "admin revisions diff {digest} {digest}",
    "admin revisions pin {digest}",
    "admin revisions unpin {digest}",
    "admin revisions delete {digest}",
    "admin quarantine list",
    "admin quarantine set {digest} --why x",
    "admin quarantine set {digest} --why x --apply",
    "admin quarantine release {digest}",
    "admin stats",
    "admin gc",
    "admin gc --apply",
    "admin fsck",
    "admin fsck --apply",
    "admin audit",
    "admin export team -o {folder}/export",
    "admin trust show",
    "login {url} --token csv_x",
    "client doctor team/bert",
    "coverage team/bert",
    "client explain team/bert",
    "client explain team/bert --provenance",
    "client pull team/bert --into {folder}/bundles",
    "verify team/bert",
]
"""Commands of ``cachesvc`` and (*client*) of ``cachesvc-client`` that show what a registry answered."""


@pytest.fixture(scope="module")
def registry() -> Iterator[HostileRegistry]:
    with hostile_registry() as running:
        yield running


@pytest.fixture
def shown(
    registry: HostileRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[[str, str], str]:
    """Returns what a command prints where every free text of the registry is the one that is passed."""
    key = SigningKey.generate()
    for name, value in {
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": "csv_x",
        "CACHESVC_TRUSTED_KEYS": key.public,
        "CACHESVC_STORE": str(tmp_path / "store"),
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    places = {
        "key": key.public,
        "digest": Digest(VALID[Digest]).hex[:12],
        "folder": tmp_path,
        "url": registry.url,
    }

    def run(command: str, text: str) -> str:
        registry.text = text
        program, *words = command.format(**places).split()
        if program == "client":
            cli.main(words)
        else:
            monkeypatch.setattr(sys, "argv", ["cachesvc", program, *words])
            with pytest.raises(SystemExit):
                server_main()
                raise SystemExit
        both = capsys.readouterr()
        return both.out + both.err

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_registry_forges_no_line_of_a_command(shown: Callable[[str, str], str], command: str) -> None:
    text = FORGED[0] + FORGED[1] + FORGED[2].replace("\ud800", "")  # half of a character parses nowhere
    output = shown(command, text)
    assert output.strip(), command
    demand_same_lines(output, shown(command, harmless(text)))
