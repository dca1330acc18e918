"""Test what both programs say to a user who asks for help or mistypes a word."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from cachesvc import cli
from cachesvc_client.commands.cli import main, parser


@pytest.fixture
def server_program(tmp_path):
    """Return a function that runs ``cachesvc`` on a terminal of some columns."""

    def run(*words: str, columns: int = 80) -> tuple[int, str, str]:
        result = subprocess.run(
            [sys.executable, "-m", "cachesvc", *words],
            env={**os.environ, "COLUMNS": str(columns), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.returncode, result.stdout, result.stderr

    return run


def every_command(command: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the words of every command below one of the server's."""
    inner = getattr(command, "commands", {})
    return [path, *(words for name, one in inner.items() for words in every_command(one, (*path, name)))]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_cuts_no_sentence(server_program, columns, monkeypatch, capsys):
    for words in ((), ("admin",), ("admin", "entries"), ("admin", "trust")):
        status, out, _ = server_program(*words, "-h", columns=columns)
        assert status == 0
        assert "..." not in out.replace("[ARGS]...", ""), out
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["-h"])
    assert "..." not in capsys.readouterr().out.replace("COMMAND ...", "")


def test_every_command_of_the_server_has_a_short_option_for_help(capsys):
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    program = typer.main.get_command(cli.app)
    of_server = [words for words in every_command(program) if words[:1] not in CLIENT_COMMANDS]
    assert len(of_server) > 50
    for words in of_server:
        with pytest.raises(SystemExit) as ended:
            program.main([*words, "-h"], prog_name="cachesvc")
        out = capsys.readouterr().out
        assert ended.value.code == 0 and "-h, --help" in out
        usage, *_ = out.splitlines()
        assert usage.startswith(" ".join(["Usage: cachesvc", *words])) and not set("<{") & set(usage), usage
        assert "<path>" not in out and "<str>" not in out and "<list" not in out, out


CLIENT_COMMANDS = {(name,) for name in cli.COMMANDS["client"]}


def test_every_command_of_the_client_has_the_look_of_the_servers(capsys):
    for program in ("cachesvc", "cachesvc-client"):
        for (name,) in CLIENT_COMMANDS:
            with pytest.raises(SystemExit) as ended:
                main([name, "-h"], program=program)
            out = capsys.readouterr().out
            assert ended.value.code == 0
            assert out.startswith(f"Usage: {program} {name} [OPTIONS]"), out
            assert "\nOptions:\n" in out and "positional arguments" not in out
    assert "-h, --help" in parser("cachesvc").format_help()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["doctr"], ["command: 'doctr'", "did you mean doctor?"]),
        (["cache", "siz"], ["cachesvc-client cache", "did you mean size?"]),
        (["run", "team/x", "--stict"], ["no option --stict", "did you mean --strict?"]),
        (["run", "team/x", "--mode", "readwrit"], ["--mode: 'readwrit'", "did you mean readwrite?"]),
        (["run", "team/x", "python", "-c", "1"], ["too many arguments: python", "NAME -- COMMAND…"]),
        (["explain", "sentiment"], ["not a name: 'sentiment'", "namespace/name"]),
        (["pull", "team/x"], ["--into", "cachesvc-client pull --help"]),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_word(capsys, words, parts):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    for part in parts:
        assert part in err


def test_the_servers_program_names_the_nearest_command(server_program):
    status, _, err = server_program("serv")
    assert status == 2 and "Did you mean 'serve'" in err and "python -m" not in err
    assert "Did you mean 'tokens'?" in server_program("admin", "token")[2]
    assert "--role" in server_program("admin", "tokens", "create", "--rol")[2]
    for words, part in {
        ("oci", "psh"): "cachesvc oci: No such command 'psh'. Did you mean 'push'?",
        ("oci", "push", "file", "host/x", "--plan-http"): "--plain-http",
        ("oci", "push", "file"): "Missing argument 'REFERENCE' (see: cachesvc oci push --help)",
        ("oci", "push", "file", "host/x", "--format", "tar"): "'bundle', 'mcv', 'volume'",
        ("search", "--limit", "0"): "--limit '0': a number of rows, 1 or more",
        ("coverage", "bert"): "not a name: 'bert'",
        ("show",): "Missing argument 'NAME|ENTRY'",
    }.items():
        status, out, err = server_program(*words)
        assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ") and part in err, err


def test_the_examples_of_the_help_are_command_lines_that_parse(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for program in ("cachesvc", "cachesvc-client"):
        seen = set()
        for (name,) in CLIENT_COMMANDS:
            with pytest.raises(SystemExit):
                main([name, "-h"], program=program)
            for words in examples(capsys.readouterr().out):
                assert words[0] == program
                assert parser(program).parse_args(words[1 : words.index("--") if "--" in words else None])
                seen.add(name)
        assert seen >= {"run", "pull", "explain", "doctor", "environment"}


def examples(text: str) -> list[list[str]]:
    """Return the words of each example of a help."""
    lines = text.partition("Examples:\n")[2].splitlines()
    return [shlex.split(re.split(" [<>] ", line)[0]) for line in lines]


def test_the_examples_of_the_servers_program_are_command_lines_that_parse(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    program, seen = typer.main.get_command(cli.app), set()
    for name in set(program.commands) - {name for (name,) in CLIENT_COMMANDS}:
        with pytest.raises(SystemExit):
            program.main([name, "-h"], prog_name="cachesvc")
        for words in examples(capsys.readouterr().out):
            assert words[:2] == ["cachesvc", name]
            assert program.commands[name].make_context(name, words[2:])
            seen.add(name)
    assert seen >= {"serve", "warm", "push", "coverage", "verify", "login", "keygen", "ls", "show", "node"}


def test_an_error_is_json_on_stderr_where_json_is_asked_for(server_program, capsys, monkeypatch):
    monkeypatch.setenv("CACHESVC_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("CACHESVC_TOKEN", "csv_x")
    status, out, err = server_program("admin", "tokens", "list", "--json")
    assert (status, out, err.count("\n")) == (6, "", 1)
    first = json.loads(err)
    assert (first["format"], first["error"]["code"]) == ("cachesvc.error/1", "unavailable")
    assert main(["explain", "team/x", "--json"]) == 6
    out, err = capsys.readouterr()
    error = json.loads(err)["error"]
    assert out == "" and set(error) == {"code", "message", "hint", "exit_status"}
    assert error["exit_status"] == 6
    for words in (("tokens", "list", "--jsn", "--json"), ("tokens", "create", "--json"), ("tokns", "--json")):
        status, out, err = server_program("admin", *words)
        assert (status, out, json.loads(err)["error"]["code"]) == (2, "", "invalid"), words
    assert main(["explain", "sentiment", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["exit_status"] == 2
    assert main(["run", "team/x", "--strict", "--mod", "--", "program", "--json"]) == 2
    assert capsys.readouterr().err.startswith("error: "), "that --json is another program's"


def test_an_address_that_is_nearly_right_is_told_from_a_dead_one(command, registry):
    """TLS on a port of plain HTTP, the address of the API, and no token."""
    status, _, err = command("explain", "team/x", CACHESVC_URL=registry.url.replace("http:", "https:"))
    assert status == 6 and "plain HTTP: try http://" in err
    status, _, err = command("explain", "team/x", CACHESVC_URL=f"{registry.url}/v1")
    assert status == 2 and "leave /v1 out" in err
    status, _, err = command("explain", "team/x", CACHESVC_TOKEN=None)
    assert status == 3 and "set CACHESVC_TOKEN" in err


def test_each_help_fits_80_columns_and_says_what_each_argument_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    program = typer.main.get_command(cli.app)
    of_server = [words for words in every_command(program) if words[:1] not in CLIENT_COMMANDS]
    for words in [*of_server, *CLIENT_COMMANDS]:
        with pytest.raises(SystemExit):
            if words in CLIENT_COMMANDS:
                main([*words, "-h"], program="cachesvc-client")
            else:
                program.main([*words, "-h"], prog_name="cachesvc")
        lines = capsys.readouterr().out.splitlines()
        assert not [line for line in lines if len(line) > 80], words
        nameless = [line for line in lines if re.fullmatch(r"  [A-Z][A-Z|.]+( +\[required\])?", line)]
        assert not nameless, (words, nameless)


def test_an_interrupt_while_the_modules_load_is_no_traceback(monkeypatch):
    def interrupted(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["cachesvc", "admin", "stats"])
    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


WRONG = {
    "coverage team/x --model xyz": "--model: not a digest",
    "coverage team/x --tag-fallback a/b": "--tag-fallback: not a tag",
    "admin tokens create --label a --role read -n team --lane A!B": "--lane: not a lane",
    "admin --local --data absent restore x --digest 12": "--digest: not a digest",
    "admin quarantine set abc --why x -n T!": "--namespace: not a namespace",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_value_names_its_option(server_program, words):
    status, out, errors = server_program(*words.split())
    assert (status, out) == (2, "") and errors.startswith(f"error: {WRONG[words]}"), errors
