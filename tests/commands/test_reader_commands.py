"""Test ``ls``, ``search`` and ``show`` as a reader types them, against a real registry."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from cachesvc_client.environment.detect import detect
from tests.commands.conftest import Registry, clean_environment

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def team(command: Command, bundle: Callable[..., Path]) -> str:
    """Publish three entries under two names of a namespace of its own; return the namespace."""
    namespace = f"reads-{uuid.uuid4().hex[:8]}"
    for name, target in (("bert", "encoder"), ("bert:prod", "encoder"), ("llama", "decoder")):
        path = bundle(f"{namespace}/{name}", target)
        status, _, errors = command("push", path)
        assert status == 0, errors
    return namespace


@pytest.fixture
def reader(admin: Callable[..., str]) -> Callable[[str], str]:
    """Return a function that makes a token of the role ``read`` for a namespace."""
    return lambda namespace: json.loads(
        admin("tokens", "create", "--label", "eyes", "--role", "read", "-n", namespace, "--json")
    )["secret"]


def lines(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_names_are_listed_and_one_name_is_looked_into(command: Command, team: str) -> None:
    status, out, _ = command("ls", team)
    assert status == 0
    assert [row[0] for row in lines(out)] == ["name", f"{team}/bert", f"{team}/llama"]
    assert lines(out)[1][1] == "2" and out.splitlines()[1].endswith("latest, prod")
    assert command("ls", f"{team}/b*")[1].count(team) == 1
    assert command("ls", f"{team[:9]}")[1].count("\n") >= 3, "a part of a name is enough"

    status, out, _ = command("ls", f"{team}/bert")
    assert status == 0 and [row[0] for row in lines(out)][0] == "entry"
    assert out.count(f"{team}/bert:latest") == 1 and out.count(f"{team}/bert:prod") == 1
    only = command("ls", f"{team}/bert:prod")[1]
    assert only.count(f"{team}/bert:prod") == 1 and "latest" not in only
    assert command("ls")[1].count(team) == 2


def test_entries_are_found_by_their_facts(command: Command, team: str) -> None:
    torch = detect()["torch"]
    status, out, _ = command("search", team, "--target", "deco", "--json")
    answer = json.loads(out)
    assert status == 0 and answer["format"] == "cachesvc.search/1"
    assert [(row["name"], row["target"]) for row in answer["rows"]] == [("llama", "decoder")]
    assert command("search", team, "--torch", torch)[1].count(team) == 3
    assert command("search", team, "--torch", torch, "--limit", 2)[1].count(team) == 2
    isa = detect()["cpu_isa"][:4]
    assert command("search", team, "--device", isa)[1].count(team) == 3, "a CPU is a device too"
    assert command("search", team, "--gpu", "H200")[1] == "none that has all these facts\n"
    narrow = command("search", team, COLUMNS="60")
    assert narrow[0] == 0 and "-o wide shows all" in narrow[2]
    assert all(len(line) <= 80 for line in narrow[1].splitlines())
    table = command("search", team, "-o", "csv")[1].splitlines()
    assert table[0].startswith("entry,name,target,torch") and len(table) == 4 and "UTC" in table[1]


def test_a_name_and_an_entry_are_shown(command: Command, team: str) -> None:
    status, out, _ = command("show", f"{team}/bert")
    assert status == 0 and ["tags", "latest,", "prod"] in lines(out)
    assert ["starts", "none", "reported"] in lines(out)
    answer = json.loads(command("show", f"{team}/bert:prod", "--json")[1])
    assert answer["format"] == "cachesvc.show/1"
    [entry] = answer["entries"]
    assert (entry["tag"], entry["target"]) == ("prod", "encoder")
    beginning = entry["entry"].removeprefix("sha256:")[:12]
    status, out, _ = command("show", beginning)
    assert status == 0 and ["name", f"{team}/bert:prod"] in lines(out) and "head" in out
    answer = json.loads(command("show", beginning, "--json")[1])
    assert answer["format"] == "cachesvc.show.entry/1"
    assert answer["revisions"][0]["revision"] == entry["revision"]


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (("show", "{team}/brt"), 4, "did you mean {team}/bert?"),
        (("show", "{team}/bert:prd"), 4, "did you mean prod?"),
        (("ls", "{team}/lama"), 4, "did you mean {team}/llama?"),
        (("ls", "x{team}/bert"), 4, "did you mean {team}/bert?"),
        (("ls", "{team}/zzzzzz"), 4, "nothing is under {team}/zzzzzz"),
        (("explain", "{team}/lama"), 4, "did you mean {team}/llama?"),
        (("coverage", "{team}/lama"), 4, "did you mean {team}/llama?"),
        (("explain", "{team}/llama:prd"), 4, "it has: "),
        (("search", "{team}/x*"), 4, "nothing is under {team}/x*"),
        (("show", "bert"), 2, "neither NAMESPACE/NAME nor the beginning of an entry's digest"),
        (("show", "{team}/be rt"), 2, "error: "),
        (("show", "0000ffff0000"), 4, "0000ffff0000"),
        (("search", "--limit", "0"), 2, "a number of rows, 1 or more"),
        (("search", "--gpus", "H200"), 2, "did you mean --gpu?"),
    ],
)
def test_a_mistake_is_one_line_that_says_how_to_go_on(
    command: Command, team: str, words: tuple[str, ...], status: int, hint: str
) -> None:
    got, out, errors = command(*(word.format(team=team) for word in words))
    assert (got, out) == (status, "") and errors.count("\n") == 1, errors
    assert hint.format(team=team) in errors


def test_a_reader_sees_its_own_namespace_and_no_other(
    command: Command, team: str, reader: Callable[[str], str]
) -> None:
    own, every, foreign = reader(team), reader("*"), reader("reads-elsewhere")
    assert command("ls", CACHESVC_TOKEN=own)[1].count(team) == 2
    assert command("search", CACHESVC_TOKEN=own)[1].count(team) == 3
    assert command("show", f"{team}/bert", CACHESVC_TOKEN=own)[0] == 0
    assert command("ls", f"{team}/*", CACHESVC_TOKEN=every)[1].count(team) == 2
    status, _, errors = command("ls", CACHESVC_TOKEN=every)
    assert status == 3 and "name a namespace" in errors and errors.count("\n") == 1
    for words in (("ls", f"{team}/bert"), ("search", f"{team}/bert"), ("show", f"{team}/bert")):
        status, out, errors = command(*words, CACHESVC_TOKEN=foreign)
        assert (status, out) == (3, "") and errors.count("\n") == 1, (words, errors)


def test_the_program_of_the_server_has_them_too(tmp_path: Path, registry: Registry, team: str) -> None:
    environment = clean_environment(tmp_path) | {
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
    }
    for words in (("ls", team), ("search", team), ("show", f"{team}/bert")):
        program = [sys.executable, "-m", "cachesvc", *words]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "bert" in done.stdout, done.stderr


def test_nobody_is_asked_without_a_registry_or_a_token(command: Command) -> None:
    status, _, errors = command("ls", CACHESVC_URL=None)
    assert status == 2 and "set CACHESVC_URL or run" in errors
    status, _, errors = command("ls", CACHESVC_TOKEN=None)
    assert status == 3 and errors.count("\n") == 1
