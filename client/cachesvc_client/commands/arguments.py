"""Parse arguments that several commands have, and print JSON.

Every command imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..wire.errors import CacheSvcError, Unauthenticated
from ..wire.names import Lane, Name, Tag, Target

T = TypeVar("T")


def print_json(command: str, body: object) -> None:
    """Print the answer of a command as indented JSON. ``body``: a record, or a mapping of its fields."""
    import json

    from .documents import document

    print(json.dumps(document(command, body), indent=1))


def report_error(error: CacheSvcError, words: Sequence[str]) -> None:
    """Print an error on stderr: as one line of text, or where the command's ``words`` ask for JSON, as one
    line of JSON."""
    if isinstance(error, Unauthenticated):
        error = _name_other_login(error)
    if not wants_json(words):
        print(f"error: {error}", file=sys.stderr)
        return
    import json

    from .documents import error_document

    print(json.dumps(error_document(error)), file=sys.stderr)


def _name_other_login(error: Unauthenticated) -> Unauthenticated:
    """Return the error with the login that somebody means who writes this machine's name in another way."""
    from ..config import Config
    from .trust import other_login

    try:
        config = Config.read()
        other = other_login(config) if config.token is None else None
    except CacheSvcError:
        return error
    return Unauthenticated(error.message, f"your login is for {other}: use that URL") if other else error


def with_program(program: str, text: str) -> str:
    """Return a text with the commands in it as the user's program has them: ``cachesvc`` has all of the
    client's."""
    return text.replace("cachesvc-client ", f"{program} ")


def wants_json(words: Sequence[str]) -> bool:
    """Return whether the words of a command ask for JSON. What follows ``--`` is another program's."""
    own = words[: words.index("--")] if "--" in words else words
    output = [own[place : place + 2] for place, word in enumerate(own) if word in ("-o", "--output")]
    return (
        "--json" in own
        or any(pair[1:] == ["json"] for pair in map(list, output))
        or bool({"-ojson", "--output=json"} & set(own))
    )


def without_provenance(row: object) -> dict[str, Any]:
    """Return a row as JSON has it: the statement is whole, and what was read of it is left out."""
    from .documents import present

    return {name: value for name, value in present(row).items() if name != "provenance"}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a command."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="JSON on stdout; an error is JSON on stderr (docs/reference/json.md)",
    )


def add_tag_fallback(parser: argparse.ArgumentParser) -> None:
    """Add ``--tag-fallback`` to a command."""
    parser.add_argument(
        "--tag-fallback",
        action="append",
        default=[],
        type=tag_argument,
        metavar="TAG",
        help="a tag to try after the name's own; may be repeated",
    )


def name_argument(text: str) -> Name:
    """Parse ``namespace/name[:tag]`` of a command line."""
    return _parse(Name.parse, text)


def tag_argument(text: str) -> Tag:
    """Parse a tag of a command line."""
    return _parse(Tag, text)


def lane_argument(text: str) -> Lane:
    """Parse a lane of a command line."""
    return _parse(Lane, text)


def target_argument(text: str) -> Target:
    """Parse a target of a command line."""
    return _parse(Target, text)


def _parse(parse: Callable[[str], T], text: str) -> T:
    """Parse an argument. A ``ValueError`` becomes argparse's error, which names the argument."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
