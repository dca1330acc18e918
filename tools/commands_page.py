"""``python -m tools.commands_page``: writes docs/reference/commands.md from the command lines themselves.

``make pages`` runs it, and a test fails if the page is not what the commands say.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

import typer

from cachesvc import cli
from cachesvc.cli.group import metavar
from cachesvc_client.commands.cli import parser as client_parser
from cachesvc_client.commands.complete import commands_of
from tools.markdown import DOCS, generated, single_quoted, table

PAGE = DOCS / "reference" / "commands.md"

_OF_EVERY_PROGRAM = ("help", "install_completion", "show_completion")

HEAD = f"""\
# Commands

{generated("the commands' own help")}

There are two programs. `cachesvc-client` comes with the thin client and has the commands that a service image
needs. `cachesvc` has these commands too, and those that people and CI type. The last column of a table is the
default. Exit codes are on [their own page](exit-codes.md).
"""


def render() -> str:
    """The whole page."""
    lines = [HEAD, "\n## Of both programs\n"]
    lines += ["`cachesvc-client COMMAND` and `cachesvc COMMAND` are the same program code."]
    client = _client_commands()
    for name, parser in client.items():
        lines += _client_command(name, parser)
    lines += ["\n## Of `cachesvc` alone"]
    for name, command in _server_commands():
        if name not in {known.partition(" ")[0] for known in client}:
            lines += _server_command(name, command)
    return "\n".join(lines) + "\n"


def _client_commands() -> dict[str, argparse.ArgumentParser]:
    """The client's commands by name; those of a group have the group's name before them."""
    commands: dict[str, argparse.ArgumentParser] = {}
    for name, parser in commands_of(client_parser("cachesvc-client")).items():
        inner = commands_of(parser)
        commands |= {f"{name} {word}": command for word, command in inner.items()} or {name: parser}
    return commands


def _client_command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    about = (parser.description or "").strip()
    yield f"\n### {name}\n"
    yield about[:1].upper() + about[1:] + "."
    yield f"\n```\n{_usage(parser)}\n```"
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    rows = [_client_row(action) for action in actions]
    if rows:
        yield ""
        yield from table(("argument", "meaning", "default"), rows)


def _usage(parser: argparse.ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("Usage: ").split())


def _client_row(action: argparse.Action) -> tuple[str, str, str]:
    value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
    takes_value = action.nargs != 0
    named = ", ".join(action.option_strings)
    shown = (f"{named} {value}" if takes_value else named) if named else str(action.metavar or action.dest)
    default = f"`{action.default}`" if action.default not in (None, False, [], "", argparse.SUPPRESS) else ""
    required = bool(named) and action.required
    return f"`{shown}`", action.help or "", "required" if required else default


def _server_commands() -> Iterator[tuple[str, Any]]:
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    yield from _walk("", typer.main.get_command(cli.app))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        # A process that imported a module of commands before has those in another order.
        order = [name for names in cli.COMMANDS.values() for name in names] if not path else []
        if path:
            yield path, command
        for name, inner in sorted(
            command.commands.items(), key=lambda one: order.index(one[0]) if one[0] in order else 0
        ):
            yield from _walk(f"{path} {name}".strip(), inner)
    else:
        yield path, command


def _server_command(name: str, command: Any) -> Iterator[str]:
    group = hasattr(command, "commands")
    yield f"\n### {name}\n"
    yield single_quoted(" ".join((command.help or "").split()))
    shown = [
        one for one in command.params if one.name not in ("help", "install_completion", "show_completion")
    ]
    words = [
        metavar(one) if one.required else f"[{metavar(one)}]"
        for one in shown
        if one.param_type_name == "argument"
    ]
    options = ["[OPTIONS]"] if any(one.param_type_name == "option" for one in shown) else []
    yield (
        "\n```\n" + " ".join(["cachesvc", name, *options, *words, *(["COMMAND"] if group else [])]) + "\n```"
    )
    if shown:
        yield ""
        yield from table(("argument", "meaning", "default"), map(_server_row, shown))


def _server_row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        return f"`{metavar(parameter)}`", getattr(parameter, "help", None) or "", ""
    value = "" if parameter.is_flag else f" {metavar(parameter)}"
    named = ", ".join((*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    plain = default not in (None, False, (), "") and not callable(default)
    shown = "required" if parameter.required else f"`{default}`" if plain else ""
    return f"`{named}{value}`", parameter.help or "", shown


if __name__ == "__main__":
    PAGE.write_text(render())
