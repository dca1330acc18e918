"""Groups of commands: their help has whole sentences, and one notation for values."""

from __future__ import annotations

import typing
from enum import Enum
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from cachesvc_client.console.answers import sentence


class Group(TyperGroup):
    """A group whose help names each command with the first sentence of its help, whole: on a terminal of
    any width no sentence is cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of the group."""
        del ctx
        rows = [(name, first_sentence(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, whose help then names each kind of value in one way."""
        command = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            _name_plainly(parameter)
        return command


def _name_plainly(parameter: Any) -> None:
    """Let the help show ``NAME`` and ``[NAME]`` for an argument, and ``PATH``, ``NUMBER`` or ``TEXT`` for the
    value of an option: Typer's own notation differs between its versions."""
    if parameter.param_type_name == "argument":
        name, help_record = metavar(parameter), parameter.get_help_record
        many = "..." if parameter.nargs == -1 else ""
        parameter.get_usage_pieces = lambda _: [(name if parameter.required else f"[{name}]") + many]
        parameter.get_error_hint = lambda *_: f"'{name}'"
        parameter.get_help_record = lambda context: (name, (help_record(context) or ("", ""))[1])
    elif parameter.metavar is None and not parameter.is_flag:
        parameter.metavar = metavar(parameter)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text, on one line."""
    words = " ".join(text.split())
    return sentence(words.partition(". ")[0].rstrip("."))


def metavar(parameter: Any) -> str:
    """Return what stands for the value of an option or an argument. Typer has kept its type in two places,
    by version."""
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    if hasattr(parameter, "type_descriptor"):
        annotation = parameter.type_descriptor.annotation
        kind = (typing.get_args(annotation) or (annotation,))[0]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(one.value) for one in kind)
    elif choices := getattr(parameter.type, "choices", None):
        return "|".join(map(str, choices))
    else:
        kind = {"path": Path, "file": Path, "integer": int, "float": float}.get(parameter.type.name, str)
    return {Path: "PATH", int: "NUMBER", float: "NUMBER"}.get(kind, "TEXT")
