"""Test the tab key in real shells, of both programs, after the installation that their users make.

A shell that is not installed skips its tests: `apt-get install zsh fish` brings them."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachesvc_client.commands.shells import SCRIPTS

SECONDS = 30
Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path, registry) -> Environment:
    """Return the variables of a user who has both programs on the PATH and is logged in."""
    return {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
    }


def install(program: str, shell: str, environment: Environment) -> None:
    """Install the completion of a program as a user does."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    # Typer finds the shell from which it is started; with this variable it takes the one that is named.
    env = {**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [program, "--install-completion", shell]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "installed" in done.stdout, done.stderr


def plain(text: str) -> str:
    """Return what a terminal got without its control characters."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|.\x08|\x07", "", text)


def typed(shell: str, line: str, shown: Callable[[str], bool], environment: Environment, place: Path) -> str:
    """Type a line and two tabs into a shell that a user starts, and return what the terminal shows then."""
    with open(place / {"bash": ".bashrc", "zsh": ".zshrc"}[shell], "a") as start:
        start.write("PS1='READY> '\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execvpe(shell, [shell, "-i"], environment)
    text = ""

    def read_until(done: Callable[[str], bool], seconds: float) -> None:
        nonlocal text
        end = time.monotonic() + seconds
        while not done(plain(text)) and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                text += os.read(terminal, 4096).decode(errors="replace")

    try:
        read_until(lambda seen: "READY> " in seen, SECONDS)
        text = ""
        os.write(terminal, line.encode() + b"\t\t")
        read_until(shown, SECONDS)
        return plain(text)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def offered_by_fish(line: str, environment: Environment, place: Path) -> list[str]:
    """Return the words that fish offers for a line."""
    words = ["fish", "--command", f"complete --do-complete '{line}'"]
    done = subprocess.run(
        words, env=environment, cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("program", ["cachesvc-client", "cachesvc"])
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_a_name_and_lists_options(
    shell: str, program: str, environment: Environment, command, bundle, tmp_path: Path
) -> None:
    install(program, shell, environment)
    assert command("push", bundle("team/completed"))[0] == 0
    line = f"{program} explain team/compl"
    seen = typed(shell, line, lambda seen: "team/completed" in seen, environment, tmp_path)
    assert "team/completed" in seen, seen
    if program == "cachesvc-client":  # both complete by the same code
        line = f"{program} run --"
        seen = typed(shell, line, lambda seen: "--tag-fallback" in seen, environment, tmp_path)
        assert "--tag-fallback" in seen and "--strict" in seen, seen


@pytest.mark.parametrize("program", ["cachesvc-client", "cachesvc"])
def test_fish_completes_commands_names_options_and_values(
    program: str, environment: Environment, command, bundle, tmp_path: Path
) -> None:
    install(program, "fish", environment)
    assert command("push", bundle("team/completed"))[0] == 0
    lines = {
        "explain team/compl": ["team/completed"],
        "run --mode readw": ["readwrite"],
        "run --mode=readw": ["--mode=readwrite"],
        "run --stri": ["--strict"],
        "cache si": ["size"],
    }
    if program == "cachesvc":  # both complete by the same code
        lines = {"explain team/compl": ["team/completed"]}
    for line, expected in lines.items():
        assert sorted(offered_by_fish(f"{program} {line}", environment, tmp_path)) == expected, line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_files_complete_where_the_programs_have_no_choice(
    shell: str, environment: Environment, tmp_path: Path
) -> None:
    install("cachesvc-client", shell, environment)
    install("cachesvc", shell, environment)
    (tmp_path / "model.cachesvc").touch()
    for line in ("cachesvc push mod", "cachesvc-client run team/x -- mod"):
        if shell == "fish":
            assert offered_by_fish(line, environment, tmp_path) == ["model.cachesvc"]
        else:
            seen = typed(shell, line, lambda seen: "model.cachesvc" in seen, environment, tmp_path)
            assert "model.cachesvc" in seen, seen


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_an_installation_twice_changes_nothing_and_keeps_what_is_there(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    start = {"bash": ".bashrc", "zsh": ".zshrc"}.get(shell, "nothing")
    (tmp_path / start).write_text("alias x=y")

    def files() -> dict[str, str]:
        return {
            str(one.relative_to(tmp_path)): one.read_text() for one in tmp_path.rglob("*") if one.is_file()
        }

    from cachesvc_client.commands.cli import main

    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["--install-completion", shell])
        assert ended.value.code == 0
        first = files()
        assert first[start].startswith("alias x=y") and first[start].count("cachesvc") <= 1
    assert files() == first
    assert SCRIPTS[shell] in first.values()


def test_a_shell_that_does_not_complete_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cachesvc_client.commands import shells
    from cachesvc_client.commands.cli import main

    monkeypatch.setenv("SHELL", "/bin/dash")
    monkeypatch.setattr(shells.os, "getppid", lambda: 1)
    assert main(["--show-completion"]) == 2
    assert capsys.readouterr().err == (
        "error: not a shell that completes: dash (name one: bash, zsh, fish)\n"
    )
    assert main(["--show-completion", "fsh"]) == 2
    assert "did you mean fish" in capsys.readouterr().err
    monkeypatch.setenv("SHELL", "/bin/zsh")
    with pytest.raises(SystemExit):
        main(["--show-completion"])
    assert capsys.readouterr().out == SCRIPTS["zsh"]
