"""``cachesvc quickstart``: the quick start of the README, run by one command that shows each step."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Unsupported

from . import app
from .signals import interruptible

NAME = "demo/classifier"
FILES = ("models.py", "serve.py", "warm.toml")
_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "example", _PACKAGE.parent / "examples" / "quickstart")
"""Where the files lie: in an installed package, and in a checkout."""
_START_SECONDS = 60.0
"""How long the registry may take until it listens."""
_GRACE = 15.0
"""Seconds that the registry has to end by itself after it is asked to."""


@app.command()
def quickstart(
    folder: Annotated[
        Path, typer.Argument(help="A new folder. Everything is written below it, nothing elsewhere.")
    ] = Path("cachesvc-quickstart"),
) -> None:
    """See a proven hit: registry, warm, and a service that compiles nothing. A minute or two; needs torch."""
    try:
        with interruptible():
            _run(folder)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; the registry is stopped", err=True)
        raise typer.Exit(130) from None


def _run(folder: Path) -> None:
    place = _write_files(folder)
    session = _Session(place, _own_environment(place))
    session.say(f"the files of the example are in {folder}: {', '.join(FILES)}")
    with _registry(session) as login:
        session.say("store the registry's address, a token and the key to trust, in this folder alone")
        session.command(login)
        session.say("compile once, prove it in a fresh process, sign it and publish it")
        session.command(["cachesvc", "warm", "warm.toml"])
        session.say("start the service with PyTorch alone, and an empty cache folder")
        session.command(["python", "serve.py"], TORCHINDUCTOR_CACHE_DIR="empty")
        session.say("start it with cachesvc, which finds what was published")
        session.command(["cachesvc", "run", NAME, "--", "python", "serve.py"], CACHESVC_LOG="info")
        session.say("ask what fits this machine, and what came of the starts")
        session.command(["cachesvc", "explain", NAME])
        hits = _hits(session)
    if not hits:
        raise CacheSvcError(
            "the service with cachesvc compiled", "the lines above say why; see `cachesvc doctor`"
        )
    typer.echo(
        "\nThe second start compiled nothing. Read warm.toml and serve.py in that folder to see how.\n"
        f"To remove everything: rm -r {shlex.quote(str(folder))}"
    )


def _write_files(folder: Path) -> Path:
    """Copy the example into a new or empty folder, and return its absolute path."""
    source = next((place for place in _PLACES if place.is_dir()), None)
    if source is None:
        raise Unsupported("this installation has no example", "install the package cachesvc again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise InvalidRequest(f"{folder} is not empty", "name a new folder: cachesvc quickstart FOLDER")
        for name in FILES:
            shutil.copyfile(source / name, folder / name)
    except OSError as error:
        raise InvalidRequest(f"{folder}: {error.strerror}", "name a folder that can be written") from None
    return folder.absolute()


def _own_environment(place: Path) -> dict[str, str]:
    """Return the variables of the steps: login and caches lie in the folder, and no setting of the user's own
    counts. Programs are found beside this interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    own = {"XDG_CONFIG_HOME": str(place / "config"), "XDG_CACHE_HOME": str(place / "cache")}
    return kept | own | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class _Session:
    """Runs commands in a folder, and shows each as a user would type it."""

    place: Path
    environment: Mapping[str, str]

    def say(self, what: str) -> None:
        typer.echo(f"\n# {what}")

    def show(self, command: Sequence[str], variables: Mapping[str, str], after: str = "") -> None:
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
        typer.echo(f"$ {settings}{shlex.join(command)}{after}")

    def command(self, command: Sequence[str], **variables: str) -> None:
        """Show and run a command. Raises ``CacheSvcError`` if it fails."""
        self.show(command, variables)
        status = subprocess.run(
            _program(command), cwd=self.place, env={**self.environment, **variables}, check=False
        ).returncode
        if status:
            raise CacheSvcError(f"`{shlex.join(command)}` ended with status {status}", "its output says why")


def _program(command: Sequence[str]) -> list[str]:
    """Return a command with this interpreter in the place of ``python`` and of ``cachesvc``."""
    start = {"python": [sys.executable], "cachesvc": [sys.executable, "-m", "cachesvc"]}[command[0]]
    return [*start, *(sys.executable if word == "python" else word for word in command[1:])]


@contextmanager
def _registry(session: _Session) -> Iterator[list[str]]:
    """Run a registry on a free port for the length of the block. Yield the command that logs in to it."""
    session.say("start a registry: one process, SQLite and a folder")
    command = ["cachesvc", "serve", "--data", "registry", "--port", "0"]
    session.show(command, {}, " > registry.log &")
    log = session.place / "registry.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _program(command),
            cwd=session.place,
            env=session.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the registry.
        )
    try:
        yield _login_command(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _login_command(process: subprocess.Popen[bytes], log: Path) -> list[str]:
    """Wait until the registry listens, and return the command that its log tells to type."""
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        lines = log.read_text("utf-8", "replace").splitlines()
        if any(line.startswith("listening on ") for line in lines):
            words = [line.strip() for line in lines if line.strip().startswith("cachesvc login ")]
            if words:
                return shlex.split(words[0])
        time.sleep(0.1)
    tail = log.read_text("utf-8", "replace").splitlines()[-1:]
    raise CacheSvcError(f"the registry did not start: {' '.join(tail)}", f"its log is {log}")


def _hits(session: _Session) -> int:
    """Return how many starts of the service the registry knows as full hits."""
    answer = subprocess.run(
        _program(["cachesvc", "explain", NAME, "--json"]),
        cwd=session.place,
        env=session.environment,
        stdout=subprocess.PIPE,
        check=False,
    ).stdout
    entries = json.loads(answer)["entries"]
    return sum(use["starts"]["hit"] for entry in entries for use in entry["entry"]["usefulness"])
