"""Parse command lines as the server's program does: the same look of the help, and one line for a mistake."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ..console.answers import sentence
from ..wire.errors import InvalidRequest, printable
from ..wire.suggestion import did_you_mean

_WIDEST = 100
"""Columns of the help, at most: longer lines are hard to read."""


EXAMPLES = "Examples:\n"
"""Beginning of the examples below the help of a command."""


def examples(*lines: str) -> str:
    """Return the examples of a command, for its ``epilog``."""
    return EXAMPLES + "\n".join(f"  {line}" for line in lines)


class Parser(argparse.ArgumentParser):
    """Parses the words of one command. A mistake is an ``InvalidRequest`` that names the nearest word."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        options |= {"formatter_class": _Formatter, "add_help": False}
        super().__init__(prog, **options)
        self._positionals.title = "Arguments"
        self._optionals.title = "Options"
        self.add_argument("-h", "--help", action="help", help="show this message and exit")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse ``args``. Raises ``InvalidRequest`` for a word that no argument takes."""
        known, extra = super().parse_known_args(args, namespace)
        if extra and self._subparsers is None:
            self._refuse(extra)
        return known, extra

    def add_subparsers(self, **options: Any) -> Any:
        """Add the commands of a group. Their errors and usage lines begin with the words that lead there."""
        return super().add_subparsers(title="Commands", metavar="COMMAND", prog=self.prog, **options)

    def _refuse(self, extra: Sequence[str]) -> NoReturn:
        option = extra[0].partition("=")[0]
        if not option.startswith("-"):
            hint = f"usage: {self.usage % {'prog': self.prog}}" if self.usage else f"see: {self.prog} --help"
            raise InvalidRequest(f"{self.prog}: too many arguments: {' '.join(extra)[:80]}", hint)
        hint = did_you_mean(option, self._option_string_actions, f"see: {self.prog} --help")
        raise InvalidRequest(f"{self.prog}: there is no option {option[:80]}", hint)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises ``InvalidRequest`` for a value that is none of the action's choices."""
        if action.choices is None or value in action.choices:
            return
        allowed = [str(choice) for choice in action.choices]
        where = "/".join(action.option_strings) or "command"
        all_allowed = "one of: " + ", ".join(allowed)
        hint = f"{did_you_mean(str(value), allowed)} {all_allowed}".strip()
        raise InvalidRequest(f"{self.prog}: {where}: {str(value)[:80]!r}", hint)

    def error(self, message: str) -> NoReturn:
        """Raises ``InvalidRequest``: the command ends with one line, as for every other mistake."""
        hint = "" if message.endswith(")") else f"see: {self.prog} --help"
        raise InvalidRequest(f"{self.prog}: {printable(message)}", hint)


class _Formatter(argparse.HelpFormatter):
    """Formats the help as the server's program does."""

    def __init__(self, prog: str) -> None:
        width = min(_WIDEST, shutil.get_terminal_size().columns)
        super().__init__(prog, max_help_position=26, width=width - 2)

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None,
    ) -> str:
        del groups, prefix
        words = ["%(prog)s", "[OPTIONS]"]
        for action in actions:
            if not action.option_strings:
                default = self._get_default_metavar_for_positional(action)
                words.append(self._format_args(action, default))
            elif action.required:
                value = self._format_args(action, self._get_default_metavar_for_optional(action))
                words.append(f"{action.option_strings[0]} {value}")
        return "Usage: " + (usage or " ".join(words)) % {"prog": self._prog} + "\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return a text as it is where it has examples, and else in lines of ``width``."""
        if text.startswith(EXAMPLES):
            return text
        return super()._fill_text(text, width, indent)

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return action.dest.upper()

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # its own line would only repeat the heading
            commands = action._get_subactions()
            return "".join(super(_Formatter, self)._format_action(command) for command in commands)
        return super()._format_action(action)

    def _expand_help(self, action: argparse.Action) -> str:
        return sentence(super()._expand_help(action))
