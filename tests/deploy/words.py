"""Compare the commands, options, variables and settings that a text names with those that exist."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from cachesvc import cli
from cachesvc.settings import PREFIX, Settings
from cachesvc_client.commands import cli as client

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\bCACHESVC_[A-Z_]+[A-Z]\b")
_ELSEWHERE = re.compile(
    r"\b(?:secrets|vars)\.CACHESVC_\w+|^#\s+(?:secrets? .*|\s+)CACHESVC_\w+", re.MULTILINE
)
"""Names that are settings of a CI system."""
_CODE = re.compile(
    r"`([^`\n]+)`|^\s*(?:\$|RUN|#  +)\s*(\S.*)$|^ {2,}(\S.*)$|^(cachesvc(?:-client)? .*)$", re.MULTILINE
)
_COMMAND = re.compile(r"(?<![\w./-])(?<!generic )(cachesvc(?:-client)?)(?= +[a-z-])([^|;&()`\n]*)")


def unknown_words(text: str, *, code: bool = False) -> list[str]:
    """Return the words of the text that do not exist. ``code``: treat the whole text as commands, not only
    what looks like code."""
    problems = [
        f"variable {name}" for name in _VARIABLE.findall(_ELSEWHERE.sub("", text)) if not _known(name)
    ]
    text = re.sub(r"\\\n\s*", " ", text)
    places = [text] if code else [next(filter(None, groups)) for groups in _CODE.findall(text)]
    for place in places:
        for program, words in _COMMAND.findall(place):
            problems += [f"{program}{words}: {what}" for what in unknown_in_command(program, words)]
    return problems


@functools.cache
def _client_variables() -> frozenset[str]:
    variables = set()
    for folder in ("client", "cachesvc"):
        for file in (ROOT / folder).rglob("*.py"):
            variables |= set(_VARIABLE.findall(file.read_text()))
    return frozenset(variables)


def _known(name: str) -> bool:
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX).lower() in Settings.model_fields
    return name in _client_variables()


def unknown_in_command(program: str, words: str) -> Iterator[str]:
    try:
        tokens = shlex.split(words)
    except ValueError:  # The quotation goes on in the next line.
        tokens = words.split()
    if program == "cachesvc-client" or tokens[0] in _client_commands():
        yield from unknown_in_client_command(tokens)
        return
    for name in cli.COMMANDS:
        importlib.import_module(f"cachesvc.cli.{name}")
    command: Any = typer.main.get_command(cli.app)
    allowed = {"--help"}
    while tokens:
        word = tokens.pop(0)
        if word == "--":
            return
        if word.startswith("-"):
            option = word.partition("=")[0]
            here = {name: parameter for parameter in command.params for name in _names(parameter)}
            if option not in here and option not in allowed:
                yield f"no option {option}"
            elif option in here and not here[option].is_flag and "=" not in word and tokens:
                tokens.pop(0)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                yield f"no command {word}"
                return
            command = command.commands[word]


def _names(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []


@functools.cache
def _client_commands() -> dict[str, argparse.ArgumentParser]:
    actions = client.parser("cachesvc-client")._actions
    return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))


def _group(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    """Return the commands of a group; ``None`` for a command that is no group."""
    actions = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else None


def unknown_in_client_command(tokens: list[str]) -> Iterator[str]:
    if tokens[0].startswith("-"):
        return
    command = _client_commands().get(tokens[0])
    if command is None:
        yield f"no command {tokens[0]}"
        return
    for word in tokens[1:]:
        if word == "--":
            return
        group = _group(command)
        if group is not None:
            if not word.startswith("-") and word not in group:
                yield f"no command {tokens[0]} {word}"
                return
            command = group.get(word, command)
            continue
        option = word.partition("=")[0]
        if option.startswith("--") and option not in command._option_string_actions:
            yield f"no option {option}"
