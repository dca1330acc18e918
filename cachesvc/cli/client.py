"""Offer the client's commands under this program's name: ``cachesvc run`` is ``cachesvc-client run``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from . import app

_CLIENT_COMMANDS = {
    "run": "Start a command with every Python process of it attached.",
    "explain": "Show which entries fit here, and what differs from the others.",
    "environment": "Print the facts of this environment that decide what fits, for coverage elsewhere.",
    "doctor": "Say whether this environment can hit, and how to fix it.",
    "pull": "Write what fits this environment as bundle files.",
    "stats": "Show what the starts on this machine came to.",
    "cache": "Show and empty the store that the processes of this node share.",
}


class _ClientCommand(TyperCommand):
    """A command whose words the client's parser reads, and which completes by that parser."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what may stand in the place of ``incomplete``."""
        from cachesvc_client.commands.cli import parser
        from cachesvc_client.commands.complete import complete

        # Typer has its own copy of Click, or uses the installed one, by version: the item is of the same.
        package = next(one for one in TyperCommand.__mro__ if one.__name__ == "Command").__module__
        item = importlib.import_module(package.rpartition(".")[0] + ".shell_completion").CompletionItem
        words = [str(self.name), *ctx.args]
        return [
            item(word, help=text or None) for word, text in complete(parser("cachesvc"), words, incomplete)
        ]


def _add(name: str, about: str) -> None:
    """Registers a command that passes its arguments, ``--help`` included, to the client: it parses them."""

    def command(context: typer.Context) -> None:
        from cachesvc_client.commands.cli import main

        del context
        sys.exit(main(sys.argv[sys.argv.index(name) :], program="cachesvc"))

    command.__doc__ = about
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, cls=_ClientCommand, context_settings=settings)(command)


for _name, _about in _CLIENT_COMMANDS.items():
    _add(_name, _about)
