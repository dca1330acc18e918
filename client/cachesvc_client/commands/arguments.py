"""Parse arguments that several commands have, and print JSON.

Every command imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..wire import codec
from ..wire.errors import CacheSvcError
from ..wire.names import Lane, Name, Tag, Target

T = TypeVar("T")


def print_json(value: object) -> None:
    """Print a value of the wire as indented JSON."""
    import json

    print(json.dumps(codec.plain(value), indent=2))


def report_error(error: CacheSvcError, words: Iterable[str]) -> None:
    """Print an error as one line on stderr, and also as JSON on stdout where a command has ``--json`` among
    its ``words``: then whoever reads stdout gets an object in each case."""
    print(f"error: {error}", file=sys.stderr)
    if "--json" in words:
        print_json({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def without_provenance(row: object) -> dict[str, Any]:
    """Return a row as JSON has it: the statement is whole, and what was read of it is left out."""
    return {name: value for name, value in codec.plain(row).items() if name != "provenance"}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a command."""
    parser.add_argument("--json", action="store_true", help="JSON on stdout, also for an error")


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
