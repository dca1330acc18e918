"""Owns what a shell may complete a command line with: commands, options, values, and names of the registry.

It runs while a user waits for the tab key, so it says nothing of what fails, and asks the registry for a
second at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..queries.names import registry_names


def complete(parser: argparse.ArgumentParser, words: Sequence[str], incomplete: str) -> list[tuple[str, str]]:
    """Return what may stand in the place of ``incomplete``, each with its help.

    ``words``: those before it.
    """
    if "--" in words:  # the rest is another program's command line
        return []
    *words, incomplete = _joined([*words, incomplete])
    option, equals, value = incomplete.partition("=")
    if option.startswith("--") and equals:
        return [(f"{option}={word}", text) for word, text in complete(parser, [*words, option], value)]
    values: list[str] = []
    for place, word in enumerate(words):
        inner = commands_of(parser)
        if word in inner:
            parser, values = inner[word], []
        elif not word.startswith("-") and not (place and _takes_value(parser, words[place - 1])):
            values.append(word)
    return [pair for pair in _choices(parser, words, values, incomplete) if pair[0].startswith(incomplete)]


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words as they are typed: bash takes ``team/bert:prod`` and ``--mode=read`` apart."""
    joined: list[str] = []
    glue = False
    for word in words:
        if word == ":" and joined:
            joined[-1] += ":"
            glue = True
        elif word == "=" and joined and joined[-1].startswith("--"):
            glue = False
        elif glue:
            joined[-1] += word
            glue = False
        else:
            joined.append(word)
    return joined if words[-1] != "=" else [*joined, ""]


def _choices(
    parser: argparse.ArgumentParser, words: Sequence[str], values: Sequence[str], incomplete: str
) -> list[tuple[str, str]]:
    positional = [action for action in parser._actions if not action.option_strings]
    many = bool(positional) and positional[-1].nargs in ("*", "+")
    if len(values) > len(positional) and not many:  # of the program that `run` starts
        return []
    option = _takes_value(parser, words[-1]) if words else None
    if option is not None:
        return _values(option)
    if incomplete.startswith("-"):
        return [
            (name, _help(action))
            for action in parser._actions
            for name in action.option_strings
            if len(name) > 2
        ]
    if inner := commands_of(parser):
        return [(name, command.description or "") for name, command in inner.items()]
    if not positional or (len(values) == len(positional) and not many):
        return []
    return _values(positional[min(len(values), len(positional) - 1)])


def _values(action: argparse.Action) -> list[tuple[str, str]]:
    if action.choices:
        return [(str(choice), "") for choice in action.choices]
    if getattr(action.type, "__name__", "") == "name_argument" or "NAME" in str(action.metavar or ""):
        return [(name, "") for name in registry_names()]
    return []


def _takes_value(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    action = parser._option_string_actions.get(word)
    return action if action is not None and action.nargs != 0 else None


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands of a parser, each with its help; none for a command that is no group."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, command in action.choices.items():
                command.description = helps.get(name)
            return dict(action.choices)
    return {}


def _help(action: argparse.Action) -> str:
    return "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
